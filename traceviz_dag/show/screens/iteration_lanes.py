"""The lanes of an iteration of the lake: of each rank, from its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.nsys.launches import queue_depth
from traceviz_dag.arrays import NONE, Int64, distinct
from traceviz_dag.show.page.activity import read_steps
from traceviz_dag.show.page.facts import lead_in
from traceviz_dag.show.report.tracks import OF_A_WAIT, AllWaits, integers_of, parted
from traceviz_dag.show.screens.bundles import PARTS, Bundle, part_rows
from traceviz_dag.show.screens.counters import Changes
from traceviz_dag.show.screens.model import Lane, LaneKind, Mark, MarkKind
from traceviz_dag.show.screens.rows import LaneRows
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import Category, Phase

CATEGORIES = tuple(category.value for category in Category)
STEP_KINDS = (Phase.FORWARD.value, Phase.BACKWARD.value)
GAP_KINDS = ("blocked", "starved", "unexplained")
RANGE_KINDS = ("range", "nccl")
CALL_KINDS = ("launch call",)
KERNEL_NAMES, CALL_NAMES, RANGE_NAMES = "kernels", "launches", "nvtx_ranges"

_KERNELS = ("kernel_id", "name", "start_ns", "duration_ns", "device", "stream", "kind", "category", "dimension")
_LAUNCHES = ("launch_name", "launch_start_ns", "launch_duration_ns", "launch_thread")
_NEVER = np.iinfo(np.int64).min
_MOST_LEVELS = 24

Spans = Mapping[int, tuple[int, int]]


def rank_key(rank: int) -> str:
    """Key of the lane of a rank."""
    return f"rank:{rank}"


def spans_of(source: TableSource) -> dict[int, tuple[int, int]]:
    """Rank → start of its first and end of its last kernel, ns on its own clock, over all its devices."""
    table = source.table("overlap", ("rank", "window_name", "window_start_ns", "window_end_ns"))
    table = table.filter(pc.equal(table["window_name"], "kernels"))
    found: dict[int, tuple[int, int]] = {}
    columns = (table[name].to_pylist() for name in ("rank", "window_start_ns", "window_end_ns"))
    for rank, start, end in zip(*columns, strict=True):
        low, high = found.get(rank, (start, end))
        found[rank] = (min(low, start), max(high, end))
    return dict(sorted(found.items()))


def root_bundle(source: TableSource, spans: Spans) -> Bundle:
    """The lanes of the ranks alone, those at fault first; each says its stage where the topology is known."""
    topology = source.table("topology", ("rank", "stage"))
    stages = dict(zip(topology["rank"].to_pylist(), topology["stage"].to_pylist(), strict=True))
    bundle = Bundle()
    lead = lead_in(source)
    for rank in sorted(spans, key=lambda rank: (lead.place(rank), rank)):
        stage = stages.get(rank)
        label = f"rank {rank}" + (f" stage {stage}" if stage is not None else "")
        bundle.lanes.append(Lane(rank_key(rank), label, None, LaneKind.RANK, holds_lanes=True))
    return bundle


class OfAllRanks:
    """Tables of the whole iteration, read once for all of its ranks."""

    def __init__(self, source: TableSource) -> None:
        self.source = source

    @cached_property
    def waits(self) -> AllWaits:
        """What is known of the waits of communications."""
        return AllWaits(self.source.table("collectives", OF_A_WAIT))

    @cached_property
    def path(self) -> pa.Table:
        """The critical paths of the training steps."""
        return self.source.table("path_segments", ("rank", "segment", "cause", "start_ns", "duration_ns"))


def rank_bundle(every: OfAllRanks, rank: int) -> Bundle:
    """The lanes of one rank: parts of its time, micro-batches, streams, dimensions, gaps, path, NVTX, launches."""
    source = every.source
    order = [("start_ns", "ascending"), ("kernel_id", "ascending")]
    kernels = source.table("kernels", (*_KERNELS, *_LAUNCHES), rank).sort_by(order)
    waits = every.waits.of(rank, integers_of(kernels, "kernel_id"))
    bundle, key = Bundle(), rank_key(rank)
    parts = part_rows(parted(kernels, waits))
    bundle.add(Lane(key, f"rank {rank}", None, LaneKind.RANK, len(parts), holds_lanes=True), parts, PARTS)
    _add_steps(bundle, source, rank, key)
    name, words = codes(kernels, "name")
    bundle.words[KERNEL_NAMES] = list(words)
    category = _vocabulary(kernels, "category", CATEGORIES)
    starts, ids = integers_of(kernels, "start_ns"), integers_of(kernels, "kernel_id")
    ends = starts + integers_of(kernels, "duration_ns")

    def add(lane: Lane, rows: Int64) -> None:
        found = LaneRows.of(starts[rows], ends[rows], category[rows], name[rows], ids[rows])
        bundle.add(lane, found, CATEGORIES, KERNEL_NAMES)

    device, devices = codes(kernels, "device")
    stream = integers_of(kernels, "stream", absent=_NEVER)
    for place, word in enumerate(devices):
        for number in distinct(stream[device == place]).tolist():
            rows = np.flatnonzero((device == place) & (stream == number))
            told = "unknown" if number == _NEVER else str(number)
            where = f"{word} stream {told}" if len(devices) > 1 or word == "cpu" else f"stream {told}"
            add(Lane(f"{key}/{word}/stream:{told}", where, key, LaneKind.STREAM, len(rows)), rows)
    dimension, dimensions = codes(kernels, "dimension")
    for place, word in enumerate(dimensions):
        rows = np.flatnonzero(dimension == place)
        lane_key, label = f"{key}/dimension:{word}", f"{word} communication"
        add(Lane(lane_key, label, key, LaneKind.DIMENSION, len(rows), dimension=word), rows)
    _add_gaps(bundle, source, rank, key)
    _add_path(bundle, every.path, rank, key)
    _add_ranges(bundle, source, rank, key)
    _add_launches(bundle, kernels, key)
    _add_memory(bundle, source, rank, key)
    bundle.marks = _steps(source, rank, key)
    return bundle


def _add_steps(bundle: Bundle, source: TableSource, rank: int, key: str) -> None:
    steps = read_steps(source, rank)
    if not len(steps):
        return
    words = [
        ("backward " if backward else "forward ") + (f"{microbatch}" if chunk <= 0 else f"{microbatch} chunk {chunk}")
        for backward, microbatch, chunk in zip(
            steps.backward.tolist(), steps.microbatch.tolist(), steps.chunk.tolist(), strict=True
        )
    ]
    places = {word: place for place, word in enumerate(dict.fromkeys(words))}
    bundle.words["microbatches"] = list(places)
    rows = LaneRows.of(
        steps.time.starts,
        steps.time.ends,
        steps.backward.astype(np.int8),
        np.array([places[word] for word in words], np.int32),
    )
    lane = Lane(f"{key}/microbatches", "micro-batches", key, LaneKind.MICROBATCHES, len(rows))
    bundle.add(lane, rows, STEP_KINDS, "microbatches")


def _add_gaps(bundle: Bundle, source: TableSource, rank: int, key: str) -> None:
    columns = ("window_name", "start_ns", "duration_ns", "blocked_ns", "starved_ns", "unexplained_ns")
    table = source.table("gpu_gaps", columns, rank)
    # Of an iteration with training steps, their gaps; both windows would show the same time twice.
    names = set(table["window_name"].to_pylist())
    table = table.filter(pc.equal(table["window_name"], "step" if "step" in names else "kernels"))
    if not table.num_rows:
        return
    parts = np.stack([integers_of(table, f"{name}_ns") for name in GAP_KINDS])
    start = integers_of(table, "start_ns")
    rows = LaneRows.of(start, start + integers_of(table, "duration_ns"), parts.argmax(axis=0))
    lane = Lane(f"{key}/gaps", "without computation", key, LaneKind.GAPS, len(rows))
    bundle.add(lane, rows, GAP_KINDS)


def _add_path(bundle: Bundle, table: pa.Table, rank: int, key: str) -> None:
    table = table.filter(pc.equal(table["rank"], rank))
    if not table.num_rows:
        return
    kind, words = codes(table, "cause")
    start = integers_of(table, "start_ns")
    end = start + integers_of(table, "duration_ns")
    rows = LaneRows.of(start, end, np.maximum(kind, 0), source=integers_of(table, "segment"))
    bundle.add(Lane(f"{key}/path", "critical path", key, LaneKind.PATH, len(rows)), rows, tuple(words))


def _add_ranges(bundle: Bundle, source: TableSource, rank: int, key: str) -> None:
    columns = ("range_id", "depth", "name", "thread", "start_ns", "duration_ns", "communicator", "bytes")
    table = source.table("nvtx_ranges", columns, rank)
    if not table.num_rows:
        return
    name, words = codes(table, "name")
    bundle.words[RANGE_NAMES] = list(words)
    thread = integers_of(table, "thread")
    level = np.minimum(integers_of(table, "depth"), _MOST_LEVELS)
    of_nccl = np.array([word.startswith("nccl") for word in words] + [False])[name].astype(np.int8)
    start, ids = integers_of(table, "start_ns"), integers_of(table, "range_id")
    end = start + integers_of(table, "duration_ns")
    for one in distinct(thread).tolist():
        for depth in distinct(level[thread == one]).tolist():
            rows = np.flatnonzero((thread == one) & (level == depth))
            label = f"NVTX thread {one}" if depth == 0 else f"NVTX {depth}"
            label += " and deeper" if depth == _MOST_LEVELS else ""
            lane = Lane(f"{key}/thread:{one}/ranges:{depth}", label, key, LaneKind.RANGES, len(rows), level=depth)
            found = LaneRows.of(start[rows], end[rows], of_nccl[rows], name[rows], ids[rows])
            bundle.add(lane, found, RANGE_KINDS, RANGE_NAMES)


def _add_launches(bundle: Bundle, kernels: pa.Table, key: str) -> None:
    """The calls that launched kernels, each once, and how many kernels are launched and have not started."""
    start = integers_of(kernels, "launch_start_ns", absent=_NEVER)
    known = np.flatnonzero(start != _NEVER)
    if not len(known):
        return
    thread = integers_of(kernels, "launch_thread")[known]
    end = start[known] + integers_of(kernels, "launch_duration_ns", absent=0)[known]
    name, words = codes(kernels, "launch_name")
    bundle.words[CALL_NAMES] = list(words)
    ids = integers_of(kernels, "kernel_id")[known]
    for one in distinct(thread).tolist():
        mine = np.flatnonzero(thread == one)
        begin, first = np.unique(start[known][mine], return_index=True)
        rows = mine[first]
        label = "launches" if one == NONE else f"launches of thread {one}"
        lane = Lane(f"{key}/thread:{one}/calls", label, key, LaneKind.CALLS, len(rows))
        found = LaneRows.of(begin, end[rows], 0, name[known][rows], ids[rows])
        bundle.add(lane, found, CALL_KINDS, CALL_NAMES)
    changes = Changes.of(*queue_depth(end, integers_of(kernels, "start_ns")[known]))
    lane = Lane(f"{key}/queue", "launched, waiting", key, LaneKind.COUNTER, len(changes), unit="operations")
    bundle.add_counter(lane, changes)


def _add_memory(bundle: Bundle, source: TableSource, rank: int, key: str) -> None:
    """What the allocator holds and has reserved; of nsys what the driver gave since the recording began."""
    columns = ("device", "action", "time_ns", "bytes", "requested_bytes", "allocated_bytes", "reserved_bytes")
    table = source.table("memory_events", columns, rank)
    table = table.filter(pc.is_valid(table["time_ns"])).sort_by([("time_ns", "ascending")])
    for device in pc.unique(table["device"]).to_pylist():
        mine = table.filter(pc.equal(table["device"], device)) if device is not None else table.slice(0, 0)
        held = pc.coalesce(mine["allocated_bytes"], mine["requested_bytes"])
        for name, label, values in (
            ("allocated", "memory allocated", held),
            ("reserved", "memory reserved", mine["reserved_bytes"]),
        ):
            rows = mine.append_column("value", values).filter(pc.is_valid(values))
            if rows.num_rows:
                changes = Changes.of(integers_of(rows, "time_ns"), integers_of(rows, "value"))
                _add_bytes(bundle, f"{key}/memory:{name}:{device}", label, key, changes)
        action = mine["action"].cast(pa.string())
        given = mine.filter(pc.and_(pc.is_in(action, pa.array(["segment_alloc", "segment_free"])), pc.is_null(held)))
        given = given.filter(pc.is_null(given["reserved_bytes"]))
        if given.num_rows:
            gone = pc.equal(given["action"].cast(pa.string()), "segment_free").to_numpy(zero_copy_only=False)
            step = integers_of(given, "bytes") * np.where(gone, -1, 1)
            changes = Changes.of_steps(integers_of(given, "time_ns"), step)
            _add_bytes(bundle, f"{key}/memory:driver:{device}", "memory from the driver", key, changes)


def _add_bytes(bundle: Bundle, key: str, label: str, parent: str, changes: Changes) -> None:
    lane = Lane(key, label, parent, LaneKind.COUNTER, len(changes), unit="bytes")
    bundle.add_counter(lane, changes)


def _steps(source: TableSource, rank: int, key: str) -> list[Mark]:
    """The training steps of a rank; without any the iteration, on its own clock."""
    columns = ("window_name", "step", "window_start_ns", "window_end_ns")
    table = source.table("overlap", columns, rank)
    found = {
        (row["step"], row["window_start_ns"], row["window_end_ns"], row["window_name"]) for row in table.to_pylist()
    }
    steps = sorted((row for row in found if row[3] == "step"), key=lambda row: row[1])
    if steps:
        return [
            Mark(MarkKind.ITERATION, start, end, f"step {step}", key, number=step, evidence="ProfilerStep")
            for step, start, end, _ in steps
        ]
    whole = [row for row in found if row[3] == "kernels"]
    if not whole:
        return []
    start, end = min(row[1] for row in whole), max(row[2] for row in whole)
    return [Mark(MarkKind.ITERATION, start, end, "iteration", key, evidence="from the first kernel to the last")]


def _vocabulary(table: pa.Table, column: str, words: Sequence[str]) -> np.ndarray:
    """A text column as places in a vocabulary; what is not there counts as unclassified."""
    code, names = codes(table, column)
    other = words.index(Category.UNCLASSIFIED.value)
    places = [words.index(name) if name in words else other for name in names]
    return np.array([*places, other], np.int8)[code]
