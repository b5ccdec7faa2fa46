"""Snapshots of simulated Megatron stages against the simulator's own account, to the byte."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.analyze.memory.plain_snapshots import read_here
from traceviz_dag.analyze.memory.comparison import held_at_peak, peak_changes
from traceviz_dag.analyze.memory.examination import Examined, examined
from traceviz_dag.analyze.memory.layout import fragmentation_at, ranges_at
from traceviz_dag.analyze.memory.leaks import leaks, step_ends
from traceviz_dag.analyze.memory.out_of_memory import Verdict, out_of_memory
from traceviz_dag.analyze.memory.tables import memory_tables
from traceviz_dag.analyze.memory.timeline import intervals, pending_bytes
from traceviz_dag.simulate.memory.allocator import Allocator, OutOfMemoryError
from traceviz_dag.simulate.memory.stage import Stage, StageSettings, one_forward_one_backward

MIB = 1 << 20
FRAMES = [{"name": "forward", "filename": "model.py", "line": 1}]


def _stage(settings: StageSettings, allocator: Allocator, steps: int = 5) -> tuple[Stage, Examined]:
    stage = Stage(settings, allocator)
    for number in range(steps):
        stage.step(number, one_forward_one_backward(1, 4, 8))
    return stage, _examined(allocator)


def _examined(allocator: Allocator) -> Examined:
    return examined(read_here(allocator.snapshot()))[0]


def _at_peak(one: Examined) -> Counter[str]:
    found: Counter[str] = Counter()
    for part in one.parts(one.replay.peak_event):
        found[part.category] += part.requested_bytes
    return found


@pytest.mark.parametrize(
    ("settings", "recording"),
    [
        (StageSettings(), {}),
        (StageSettings(cpp=False), {}),
        (StageSettings(streams=True), {}),
        (StageSettings(recompute=True), {}),
        (StageSettings(stored_scores=True, tensor=2, leak_bytes=MIB), {}),
        (StageSettings(), {"expandable": True}),
        (StageSettings(), {"most_events": 300, "tells_overflow": True}),
    ],
    ids=["plain", "without C++", "streams", "recompute", "scores and leak", "expandable", "overflow"],
)
def test_the_peak_and_its_categories_are_the_truth(settings, recording):
    allocator = Allocator(**recording)
    stage, one = _stage(settings, allocator)
    assert one.replay.contradictions == {}
    assert one.replay.peak_requested == stage.truth.peak_bytes
    found = _at_peak(one)
    # Of blocks whose allocation the ring lost while they were live, only the stack in the block is left; of those
    # freed since then, only who freed them: an input is then told as what the backward pass frees.
    if recording.get("most_events"):
        found["input"], found["activation"] = stage.truth.peak["input"], stage.truth.peak["activation"]
    assert found == +stage.truth.peak
    assert one.at_end.reserved_bytes == allocator.reserved()
    assert one.snapshot.ring[0] is (True if recording.get("most_events") else None)


def test_what_was_allocated_before_a_late_recording_is_in_the_peak_and_unknown():
    stage, one = _stage(StageSettings(late=True), Allocator())
    assert one.replay.peak_requested == stage.truth.peak_bytes
    early = sum(stage.truth.peak[name] for name in ("parameter", "gradient", "optimizer_state"))
    assert _at_peak(one)["unknown"] == early
    assert _at_peak(one)["activation"] == stage.truth.peak["activation"]


def test_pending_frees_count_until_the_other_stream_is_done():
    allocator = Allocator()
    kept = allocator.allocate(3 * MIB, FRAMES, stream=7)
    allocator.allocate(5 * MIB, FRAMES)
    allocator.free(kept, FRAMES, pending=True)
    one = _examined(allocator)
    assert pending_bytes(one).tolist()[-1] == 3 * MIB
    assert (one.at_end.requested_bytes, one.at_end.pending_bytes) == (8 * MIB, 3 * MIB)
    assert one.at_end.reserved_bytes == 40 * MIB
    allocator.complete(kept, ())
    one = _examined(allocator)
    assert (one.at_end.requested_bytes, one.at_end.pending_bytes, one.at_end.unused_segments_bytes) == (
        5 * MIB,
        0,
        20 * MIB,
    )


def test_the_timeline_is_what_a_walk_through_the_events_gives():
    allocator = Allocator()
    _stage(StageSettings(streams=True), allocator, 2)
    one = _examined(allocator)
    plain = allocator.snapshot()
    blocks = [block for segment in plain["segments"] for block in segment["blocks"] if block["state"] != "inactive"]
    live = {block["address"]: block["size"] for block in blocks}
    events = plain["device_traces"][0]
    last = {event["addr"]: place for place, event in enumerate(events) if event["action"] == "alloc"}
    active: dict[int, int] = {}
    allocated: dict[int, int] = {}
    parts = intervals(one, len(events))
    for place, (event, part) in enumerate(zip(events, parts, strict=True)):
        address, size = event["addr"], -(-event["size"] // 512) * 512
        if event["action"] == "alloc":
            stays = last[address] == place and address in live
            allocated[address] = active[address] = live[address] if stays else size
        elif event["action"] == "free_requested":
            del allocated[address]
        elif event["action"] == "free_completed":
            del active[address]
        assert (part.allocated_bytes, part.active_bytes) == (sum(allocated.values()), sum(active.values()))
        # A step has the events of its first and last microsecond, too.
        names = [
            row["name"]
            for row in plain["external_annotations"]
            if row["time_us"] < event["time_us"] + (row["stage"] == "START")
        ]
        assert set(part.steps) == {name for name in names if names.count(name) % 2}
    assert sum(active.values()) == sum(live.values()) and any(part.pending_bytes for part in parts)


def test_steps_are_known_from_stacks_where_events_have_no_times_and_none_ended_before_the_first_event():
    allocator = Allocator()
    stage, one = _stage(StageSettings(), allocator)
    snapshot = allocator.snapshot()
    for event in snapshot["device_traces"][0]:
        del event["time_us"]
    timeless = examined(read_here(snapshot))[0]
    assert (one.steps.evidence, timeless.steps.evidence) == ("annotation", "frames")
    assert _at_peak(timeless) == +stage.truth.peak
    assert len(timeless.steps) == len(one.steps) == 5
    allocator = Allocator(most_events=300)
    _, short = _stage(StageSettings(), allocator)
    assert 0 < len(short.steps) < 5 and (short.steps.last >= 0).all()


def test_times_that_are_none_are_unknown():
    allocator = Allocator()
    _stage(StageSettings(), allocator, 1)
    snapshot = allocator.snapshot()
    snapshot["external_annotations"][-1]["time_us"] = snapshot["device_traces"][0][3]["time_us"] = (1 << 63) - 1
    content = read_here(snapshot)
    tables = memory_tables(content, examined(content))
    assert tables["memory_events"]["time_ns"].null_count == 1 and content.unusable == {"external_annotations": 1}


def test_a_leak_is_named_with_its_bytes_a_step_and_nothing_else_is():
    stage, one = _stage(StageSettings(leak_bytes=MIB), Allocator())
    found = leaks(one.replay, step_ends(one.replay, one.steps))
    assert [(each.bytes_per_step, each.bytes) for each in found] == [(8 * MIB, 40 * MIB)]
    assert one.sites[found[0].stack].startswith("~/Megatron-LM/user/metrics.py:42")
    assert [
        after - before for before, after in zip(stage.truth.at_ends[1:], stage.truth.at_ends[2:], strict=False)
    ] == [8 * MIB] * 3
    _, sound = _stage(StageSettings(), Allocator())
    assert leaks(sound.replay, step_ends(sound.replay, sound.steps)) == []
    _, short = _stage(StageSettings(leak_bytes=MIB), Allocator(), steps=3)
    assert leaks(short.replay, step_ends(short.replay, short.steps)) is None


def _holes(allocator: Allocator, holes: int, size: int) -> None:
    """Free every second of the blocks of whole segments: as many holes, none of which touch."""
    addresses = [allocator.allocate(size, FRAMES) for _ in range(2 * holes)]
    for address in addresses[::2]:
        allocator.free(address, FRAMES)


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("early_end", [False, True])
@pytest.mark.parametrize(
    ("device", "holes", "asked", "verdict", "missing"),
    [
        (200, 20, 50, Verdict.FRAGMENTATION, 0),
        (205, 20, 50, Verdict.FRAGMENTATION, 0),
        (200, 20, 100, Verdict.FRAGMENTATION, 0),
        (200, 20, 102, Verdict.REALLY_FULL, 2),
        (200, 20, 300, Verdict.REALLY_FULL, 200),
        (208, 20, 109, Verdict.REALLY_FULL, 1),
    ],
)
def test_out_of_memory_is_explained_right(device, holes, asked, verdict, missing, expandable, early_end):
    allocator = Allocator(device * MIB, expandable=expandable)
    _holes(allocator, holes, 5 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(asked * MIB, FRAMES)
    if not early_end:
        # What comes later must not change what is said of then.
        allocator.allocate(4 * MIB, FRAMES)
    one = _examined(allocator)
    [found] = out_of_memory(one.replay)
    assert (found.verdict, found.missing_bytes) == (verdict, missing * MIB)
    assert (found.asked_bytes, found.device_free_bytes) == (asked * MIB, (device - 200) * MIB)
    assert (found.inactive_bytes, found.largest_free_block_bytes) == (100 * MIB, 5 * MIB)


def test_free_memory_of_another_stream_and_a_limit_are_reported():
    allocator = Allocator(100 * MIB)
    _holes(allocator, 4, 5 * MIB)
    _ = [allocator.allocate(30 * MIB, FRAMES, stream=7)]
    hole = allocator.allocate(9 * MIB, FRAMES, stream=7)
    allocator.allocate(9 * MIB, FRAMES, stream=7)
    allocator.free(hole, FRAMES)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(25 * MIB, FRAMES)
    [found] = out_of_memory(_examined(allocator).replay)
    assert found.other_streams_bytes == 11 * MIB and found.verdict is Verdict.FRAGMENTATION
    snapshot = allocator.snapshot()
    snapshot["device_traces"][0][-1]["device_free"] = 26 * MIB
    [found] = out_of_memory(examined(read_here(snapshot))[0].replay)
    assert found.verdict is Verdict.LIMIT
    del snapshot["device_traces"][0][-1]["device_free"]
    snapshot["device_traces"][0][-1]["size"] = 90 * MIB
    [found] = out_of_memory(examined(read_here(snapshot))[0].replay)
    assert found.verdict is Verdict.UNKNOWN and found.device_free_bytes is None


def test_an_expandable_segment_that_lacks_a_whole_page_meets_no_limit():
    allocator = Allocator(116 * MIB, expandable=True)
    allocator.allocate(100 * MIB, FRAMES)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(15 * MIB, FRAMES)
    [found] = out_of_memory(_examined(allocator).replay)
    assert (found.device_free_bytes, found.segment_bytes) == (16 * MIB, 20 * MIB)
    assert found.verdict is Verdict.FRAGMENTATION


@pytest.mark.parametrize("expandable", [False, True])
def test_the_layout_at_any_event_is_the_one_of_a_snapshot_taken_then(expandable):
    allocator = Allocator(expandable=expandable)
    now = []
    live = []
    for number in range(60):
        if number % 3 == 2:
            allocator.free(live.pop(number % len(live)), FRAMES)
        else:
            live.append(allocator.allocate((number * 7 % 23 + 1) * 300_000, FRAMES, stream=number % 2))
        now.append((len(allocator.snapshot()["device_traces"][0]), _examined(allocator)))
    last = now[-1][1]
    for events, then in now:
        ranges = {(one.begin, one.end) for one in ranges_at(last.replay, events - 1)}
        assert sum(end - begin for begin, end in ranges) == then.at_end.reserved_bytes
        found = fragmentation_at(last.replay, events - 1)
        assert found.requested_bytes == then.at_end.requested_bytes
        # A block may be larger than its request, rounded up; that is known of blocks that are live at the end alone.
        assert found.inactive_bytes >= then.at_end.inactive_bytes
        assert found.inactive_bytes + found.rounding_bytes == then.at_end.inactive_bytes + then.at_end.rounding_bytes
        assert found.unused_segments_bytes == then.at_end.unused_segments_bytes


def test_the_parts_of_a_diff_are_the_change_of_the_peak():
    _, before = _stage(StageSettings(), Allocator())
    _, after = _stage(StageSettings(leak_bytes=MIB, recompute=True), Allocator())
    changes = peak_changes(held_at_peak(before), held_at_peak(after))
    assert sum(change.change_bytes for change in changes) == after.replay.peak_requested - before.replay.peak_requested
    leaked = next(change for change in changes if "metrics.py" in change.text)
    assert (leaked.before_bytes, leaked.after_bytes) == (0, 40 * MIB)
    assert all(change.change_bytes == 0 for change in peak_changes(held_at_peak(before), held_at_peak(before)))
