"""Tiles of every level say the same as the rows that they are made of; boxes show every slice once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceviz_dag.analyze.intervals import measure, union
from traceviz_dag.show.lanes.lane import Window
from traceviz_dag.show.lanes.rows import LaneRows
from traceviz_dag.show.screens import levels as of_levels
from traceviz_dag.show.screens.drawing import Drawn, draw, time_by_kind
from traceviz_dag.show.screens.levels import level_of, levels_of
from traceviz_dag.show.screens.model import Filter

KINDS = ("a", "b", "c")

slices = st.lists(
    st.tuples(st.integers(-(10**5), 10**6), st.one_of(st.integers(0, 50), st.integers(0, 10**6)), st.integers(0, 2)),
    min_size=1,
    max_size=60,
)
places = st.sampled_from([0, 155_000_000_000, 2**61])


def _rows(found: list[tuple[int, int, int]], place: int = 0) -> LaneRows:
    start, length, kind = (np.array(column, np.int64) for column in zip(*found, strict=True))
    return LaneRows.of(start + place, start + place + length, kind)


@pytest.fixture(autouse=True)
def levels_of_few_rows(monkeypatch: pytest.MonkeyPatch):
    """Lanes of a few slices have levels, down to cells of 1 ns and up to a few cells."""
    monkeypatch.setattr(of_levels, "FEW_ROWS", 0)
    monkeypatch.setattr(of_levels, "_LEAST_EXPONENT", 0)
    monkeypatch.setattr(of_levels, "_FEWEST_CELLS", 2)


@given(slices, places)
def test_every_level_has_the_count_the_busy_time_and_the_longest_slice_of_the_rows(found, place):
    rows = _rows(found, place)
    length = rows.end_ns - rows.start_ns
    covered = measure(union(rows.start_ns, rows.end_ns))
    every = levels_of(rows)
    assert every
    for level in every:
        own_start, own_end = rows.own_of(level.long.astype(np.int64))
        assert int(level.count.sum()) + len(level.long) == len(rows)
        assert int(level.busy_ns.sum()) + int((own_end - own_start).sum()) == covered
        assert max([*length[level.long], *length[level.longest]]) == length.max()
        # The same level, made from the rows at once and not from the level below.
        again = level_of(rows, level.exponent)
        for name in ("cell", "kind", "count", "reaching", "busy_ns", "long"):
            assert getattr(level, name).tolist() == getattr(again, name).tolist(), name
        assert (length[level.longest] == length[again.longest]).all()


@given(slices, st.integers(-(10**5), 10**6), st.integers(1, 10**6), st.integers(1, 40))
def test_boxes_hold_each_slice_of_the_window_and_cells_its_time(found, start, length, pixels):
    rows = _rows(found)
    lane = Drawn("lane", rows, levels_of(rows), KINDS, [""])
    window = Window(start, start + length)
    drawn = draw(lane, window, pixels)
    touching = {
        row
        for row, (begin, end) in enumerate(zip(rows.start_ns.tolist(), rows.end_ns.tolist(), strict=True))
        if begin < window.end_ns and (end > window.start_ns or begin >= window.start_ns)
    }
    single = {row for row, count in zip(drawn.row.tolist(), drawn.count.tolist(), strict=True) if count == 1}
    boxes = [
        (begin, end)
        for begin, end, count in zip(drawn.start_ns.tolist(), drawn.end_ns.tolist(), drawn.count.tolist(), strict=True)
        if count > 1
    ]
    assert (np.diff(drawn.start_ns) >= 0).all()
    assert len(drawn) <= 12 * pixels + 2
    for row in touching - single:
        begin, end = int(rows.start_ns[row]), int(rows.end_ns[row])
        held = drawn.left_out or any(low <= begin < high or low < end <= high for low, high in boxes)
        assert held, (begin, end)
    first, width, time = time_by_kind(lane, window, pixels)
    for place, cell in enumerate(time):
        low = first + place * width
        clipped = np.clip(rows.start_ns, low, low + width), np.clip(rows.end_ns, low, low + width)
        assert int(cell.sum()) == measure(union(*clipped))
    assert width <= max(length / pixels, 1)


def test_what_one_long_slice_covers_is_drawn_without_looking_at_all_of_it(monkeypatch):
    count = 50_000
    start = np.arange(count, dtype=np.int64) * 1000
    rows = LaneRows.of(np.append(0, start), np.append(count * 1000, start + 400), np.append(0, np.full(count, 1)))
    lane = Drawn("lane", rows, levels_of(rows), KINDS, [""])
    looked = []
    real = LaneRows.own_of
    monkeypatch.setattr(LaneRows, "own_of", lambda self, chosen: looked.append(len(chosen)) or real(self, chosen))
    for length in (300, 30_000, 3_000_000):
        window = Window(40_000_000, 40_000_000 + length)
        drawn = draw(lane, window, 10)
        assert 0 in drawn.row.tolist()
        assert len(drawn) >= min(length // 1000, 10)
    assert max(looked) < 1000


def test_a_filter_leaves_kinds_and_short_slices_out():
    rows = _rows([(0, 10, 0), (20, 500, 1), (600, 30, 1)])
    lane = Drawn("lane", rows, [], KINDS, [""])
    assert draw(lane, Window(0, 1000), 80, Filter(kinds=frozenset("b"))).row.tolist() == [1, 2]
    assert draw(lane, Window(0, 1000), 80, Filter(least_ns=30)).row.tolist() == [1, 2]
