"""Counters show at each place what held there: of levels, of allocations of exports and tables, of queues."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.nsys_file import small_export
from tests.show.job import MemorySource, one_row
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.show.lanes.bundle import Bundle
from traceviz_dag.show.lanes.iteration import add_memory
from traceviz_dag.show.lanes.lane import LaneKind, Window
from traceviz_dag.show.screens import counters as module
from traceviz_dag.show.screens.counters import Changes, DrawnCounter, counter_levels, draw_counter
from traceviz_dag.show.screens.model import Counter
from traceviz_dag.show.screens.profile_model import ProfileModel

changed = st.lists(st.tuples(st.integers(-1000, 10**5), st.integers(-5, 1000)), min_size=1, max_size=60)


@given(changed, st.integers(-2000, 10**5), st.integers(1, 10**5), st.integers(1, 40))
def test_each_cell_has_the_least_most_and_last_of_its_changes(found, start, length, pixels):
    found.sort(key=lambda change: change[0])
    changes = Changes.of(*(np.array(column, np.int64) for column in zip(*found, strict=True)))
    once = dict(found)
    few, least = module.FEW_ROWS, module._LEAST_EXPONENT
    try:
        module.FEW_ROWS, module._LEAST_EXPONENT = 0, 0
        levels = counter_levels(changes)
    finally:
        module.FEW_ROWS, module._LEAST_EXPONENT = few, least
    window = Window(start, start + length)
    drawn = draw_counter(DrawnCounter("counter", changes, levels, "bytes"), window, pixels)
    shown = set()
    for begin, end, low, high, last in zip(
        *(getattr(drawn, name).tolist() for name in ("start_ns", "end_ns", "least", "most", "last")), strict=True
    ):
        inside = {time: value for time, value in once.items() if begin <= time < max(end, begin + 1)}
        shown |= set(inside)
        assert inside
        # A cell at the edge of the window may be drawn as far as it is inside: what held there, if nothing changed.
        seen = [value for time, value in inside.items() if start <= time < start + length]
        seen = seen or [value for time, value in inside.items() if time < start][-1:]
        assert min(inside.values()) <= low <= high <= max(inside.values())
        assert all(low <= value <= high for value in seen)
        assert last in inside.values()
    assert {time for time in once if start <= time < start + length} <= shown
    before = [time for time in once if time < start]
    assert not before or max(before) in shown
    assert len(drawn.start_ns) <= 2 * pixels + 3


def _value_at(counter: Counter, time: int) -> int | None:
    places = np.flatnonzero(counter.start_ns <= time)
    return int(counter.last[places[-1]]) if len(places) else None


def test_an_export_shows_what_is_allocated_and_what_waits(tmp_path):
    export = small_export()
    export.allocation(100, 1 << 20)
    export.allocation(200, 1 << 21)
    export.allocation(300, 1 << 20, memoryOperationType=1)
    model = ProfileModel(open_profile(export.write(tmp_path / "export.sqlite"), None), load_rules(None))
    lanes = {lane.unit: lane.key for lane in model.lanes("gpu:0") if lane.kind is LaneKind.COUNTER}
    memory = model.counter(lanes["bytes"], Window(0, 1000), 1000)
    assert [_value_at(memory, time) for time in (50, 150, 250, 350)] == [None, 1 << 20, 3 << 20, 1 << 21]
    # Launches return at 25, 35 and 45; their kernels start at 100, 200 and 600.
    queue = model.counter(lanes["operations"], Window(0, 1000), 1000)
    assert [_value_at(queue, time) for time in (30, 40, 50, 150, 300, 700)] == [1, 2, 3, 2, 1, 0]


def test_tables_of_memory_become_counters():
    place = {"device": 0, "address": 0, "source": "kineto"}
    rows = [
        one_row("memory_events", event_id=0, action="alloc", bytes=5, time_ns=10, allocated_bytes=5, **place),
        one_row("memory_events", event_id=1, action="free_completed", bytes=5, time_ns=30, allocated_bytes=0, **place),
        one_row("memory_events", event_id=2, action="segment_alloc", bytes=64, time_ns=5, **place),
        one_row("memory_events", event_id=3, action="segment_free", bytes=64, time_ns=50, **place),
    ]
    bundle = Bundle()
    source = MemorySource({"memory_events": {0: pa.concat_tables(rows)}})
    add_memory(bundle, source, 0)
    found = {key: (c.time_ns.tolist(), c.value.tolist()) for key, c in bundle.counters.items()}
    assert found == {
        "rank:0/memory:allocated:0": ([10, 30], [5, 0]),
        "rank:0/memory:driver:0": ([5, 50], [64, 0]),
    }
