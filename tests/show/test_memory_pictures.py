"""Pictures of GPU memory: no state is drawn longer than it lasts, and no area is larger than its part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceviz_dag.show.memory.peak import squarified
from traceviz_dag.show.memory.timeline import _COLUMNS, _columns


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), min_size=1, max_size=60))
def test_a_column_shows_its_highest_state_and_what_follows_the_last_one(events):
    times = np.array(sorted(time for time, _ in events))
    values = np.array([value for _, value in events])
    where, shown = _columns(times, values, (0.0, 100.0))
    assert (np.diff(where) >= -1e-9).all() and values[shown].max() == values.max()
    wide = 100.0 / _COLUMNS
    for time, value in zip(times.tolist(), values.tolist(), strict=True):
        # Drawn in the column of an event is no less than its state.
        left = min(int(time / wide), _COLUMNS - 1) * wide
        drawn = values[shown[np.flatnonzero(where <= left + wide / 2)[-1]]]
        assert drawn >= value
    for before, after in zip(range(len(times)), range(1, len(times)), strict=False):
        if times[after] - times[before] > 3 * wide:
            middle = (times[before] + times[after]) / 2
            assert values[shown[np.flatnonzero(where <= middle)[-1]]] == values[before]


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=50))
def test_a_tree_map_fills_its_rectangle_and_each_part_has_its_share(sizes):
    sizes = sorted(sizes, reverse=True)
    boxes = squarified(sizes, (1.0, 2.0, 9.0, 4.0))
    areas = [across * down for _, _, across, down in boxes]
    assert areas == pytest.approx([36.0 * size / sum(sizes) for size in sizes], rel=1e-6, abs=1e-9)
    for left, top, across, down in boxes:
        assert left > 1 - 1e-6 and top > 2 - 1e-6 and left + across < 10 + 1e-6 and top + down < 6 + 1e-6
