"""The lanes of an iteration of the lake: of each rank, from its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.causes.critical_path import RUN_CAUSES
from traceviz_dag.analyze.intervals import subtract, union
from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.nsys.launches import queue_depth
from traceviz_dag.arrays import NONE, Bool, Int64, distinct
from traceviz_dag.show.lanes import words as said
from traceviz_dag.show.lanes.bundle import PART_KINDS, Bundle, part_rows
from traceviz_dag.show.lanes.lane import Lane, LaneKind, Mark, MarkKind
from traceviz_dag.show.lanes.rows import Changes, LaneRows
from traceviz_dag.show.lanes.waits import OF_A_WAIT, AllWaits, integers_of, parted
from traceviz_dag.show.page.activity import Steps, read_steps
from traceviz_dag.show.page.facts import lead_in, step_name
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import CPU_DEVICE, Category, Kind

CATEGORIES = tuple(category.value for category in Category)
KERNEL_NAMES, CALL_NAMES, RANGE_NAMES, STEP_NAMES = "kernels", "launches", "nvtx_ranges", "microbatches"

STREAM_COLUMNS = ("kernel_id", "name", "start_ns", "duration_ns", "device", "stream", "kind", "category", "dimension")
LAUNCH_COLUMNS = ("launch_name", "launch_start_ns", "launch_duration_ns", "launch_thread")
STEP_MARK = "ProfilerStep"
"""What a training step is read from."""

_PARTS_OF_GAPS = ("blocked_ns", "starved_ns", "unexplained_ns")
"""As ``GAP_KINDS`` names them."""

_GAPS = ("window_name", "start_ns", "duration_ns", *_PARTS_OF_GAPS)
_NEVER = np.iinfo(np.int64).min
_MOST_LEVELS = 24
_BY_START = [("start_ns", "ascending"), ("kernel_id", "ascending")]

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
        label = said.rank_label(rank, stages.get(rank))
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
        """The critical paths of the training steps, in the order of the path."""
        columns = ("step", "segment", "rank", "cause", "category", "start_ns", "duration_ns")
        return self.source.table("path_segments", columns).sort_by([("step", "ascending"), ("segment", "ascending")])


def rank_bundle(every: OfAllRanks, rank: int) -> Bundle:
    """All lanes of one rank; those of communication by dimension repeat slices of its streams."""
    source, key = every.source, rank_key(rank)
    kernels = by_start(source.table("kernels", (*STREAM_COLUMNS, *LAUNCH_COLUMNS), rank))
    waits = every.waits.of(rank, integers_of(kernels, "kernel_id"))
    bundle = Bundle()
    parts = part_rows(parted(kernels, waits), PART_KINDS)
    lane = Lane(key, said.rank_label(rank, None), None, LaneKind.RANK, len(parts), holds_lanes=True)
    bundle.add(lane, parts, PART_KINDS)
    steps = read_steps(source, rank)
    add_microbatches(bundle, steps, rank)
    columns = KernelColumns(bundle, kernels)
    for each in (*stream_lanes(kernels, rank), *dimension_lanes(kernels, rank)):
        columns.add(bundle, each.lane, each.rows)
    add_gaps(bundle, source, rank)
    add_path(bundle, every.path, rank)
    add_host(bundle, source, kernels, rank)
    add_in_flight(bundle, steps, rank)
    add_exposed(bundle, kernels, rank)
    add_memory(bundle, source, rank)
    bundle.marks = step_marks(source, rank)
    return bundle


def by_start(kernels: pa.Table) -> pa.Table:
    """Kernels by their starts. Most are there in that order, and sorting them would copy all columns."""
    start, number = integers_of(kernels, "start_ns"), integers_of(kernels, "kernel_id")
    ascending = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (number[1:] >= number[:-1]))
    return kernels if ascending.all() else kernels.sort_by(_BY_START)


def add_microbatches(bundle: Bundle, steps: Steps, rank: int) -> None:
    """Forward and backward steps; nothing where they are unknown."""
    key = rank_key(rank)
    if not len(steps):
        return
    columns = (steps.backward.tolist(), steps.microbatch.tolist(), steps.chunk.tolist())
    named = said.step_names(*columns, chunks=len(distinct(steps.chunk)))
    places = {word: place for place, word in enumerate(dict.fromkeys(named))}
    bundle.words[STEP_NAMES] = list(places)
    rows = LaneRows.of(
        steps.time.starts,
        steps.time.ends,
        steps.backward + 2 * (np.maximum(steps.chunk, 0) % 2),
        np.array([places[word] for word in named], np.int32),
    )
    lane = Lane(f"{key}/microbatches", said.MICROBATCHES, key, LaneKind.MICROBATCHES, len(rows))
    bundle.add(lane, rows, said.STEP_KINDS, STEP_NAMES)


def add_in_flight(bundle: Bundle, steps: Steps, rank: int) -> None:
    """How many micro-batches are in flight: forward begun, backward not ended; nothing without backward steps."""
    key = rank_key(rank)
    if steps.backward.any():
        begun, ended = steps.time.starts[~steps.backward], steps.time.ends[steps.backward]
        changes = Changes.of_steps(np.concatenate((begun, ended)), np.repeat([1, -1], [len(begun), len(ended)]))
        lane = Lane(f"{key}/in_flight", said.IN_FLIGHT, key, LaneKind.COUNTER, len(changes), unit=said.MICROBATCHES)
        bundle.add_counter(lane, changes)


class KernelColumns:
    """What lanes of a rank's kernels are made of; the source of their slices is the ``kernel_id``.

    Args:
        bundle: gets the kernels' names.
        kernels: with ``STREAM_COLUMNS``.
    """

    def __init__(self, bundle: Bundle, kernels: pa.Table) -> None:
        self.kernels = kernels
        self.starts = integers_of(kernels, "start_ns")
        self.ends = self.starts + integers_of(kernels, "duration_ns")
        self.dimension, self.dimensions = codes(kernels, "dimension")
        self._ids = integers_of(kernels, "kernel_id")
        self._name, words = codes(kernels, "name")
        self._category = _vocabulary(kernels, "category", CATEGORIES)
        bundle.words[KERNEL_NAMES] = list(words)

    def add(self, bundle: Bundle, lane: Lane, rows: Int64) -> None:
        """Add a lane of some of the kernels."""
        starts, ends, ids = (column[rows] for column in (self.starts, self.ends, self._ids))
        found = LaneRows.of(starts, ends, self._category[rows], self._name[rows], ids)
        bundle.add(lane, found, CATEGORIES, KERNEL_NAMES)


@dataclass(frozen=True, slots=True, eq=False)
class KernelLane:
    """A lane of kernels.

    Attributes:
        rows: of the table of kernels.
        holds: what those of the lane have in common: ``device`` and ``stream``, or ``dimension``.
    """

    lane: Lane
    rows: Int64
    holds: Mapping[str, str | int | None]


def stream_lanes(kernels: pa.Table, rank: int) -> list[KernelLane]:
    """The streams of each device, those with the most computation first; what runs on each is part of its label."""
    key = rank_key(rank)
    length = integers_of(kernels, "duration_ns")
    device, devices = codes(kernels, "device")
    stream = integers_of(kernels, "stream", absent=_NEVER)
    dimension, dimensions = codes(kernels, "dimension")
    computes = of_kind(kernels, Kind.COMPUTATION)
    found: list[tuple[int, int, KernelLane]] = []
    for place, word in enumerate(devices):
        for number in distinct(stream[device == place]).tolist():
            rows = np.flatnonzero((device == place) & (stream == number))
            computing = rows[computes[rows]]
            held = {dimensions[code] for code in distinct(dimension[rows]).tolist() if code >= 0}
            label = said.stream_label(
                None if number == _NEVER else number,
                word if len(devices) > 1 or word == CPU_DEVICE else "",
                Kind.COMPUTATION if len(computing) else said.held_dimensions(held),
            )
            told = None if number == _NEVER else number
            ending = "unknown" if told is None else str(told)
            lane = Lane(f"{key}/{word}/stream:{ending}", label, key, LaneKind.STREAM, len(rows))
            found.append(
                (-int(length[computing].sum()), place, KernelLane(lane, rows, {"device": word, "stream": told}))
            )
    return [lane for _, _, lane in sorted(found, key=lambda each: each[:2])]


def dimension_lanes(kernels: pa.Table, rank: int) -> list[KernelLane]:
    """The communication of each dimension, from all streams."""
    key, (dimension, dimensions) = rank_key(rank), codes(kernels, "dimension")
    found = []
    for place, word in enumerate(dimensions):
        rows = np.flatnonzero(dimension == place)
        label = said.dimension_label(word)
        lane = Lane(f"{key}/dimension:{word}", label, key, LaneKind.DIMENSION, len(rows), dimension=word)
        found.append(KernelLane(lane, rows, {"dimension": word}))
    return found


def of_kind(kernels: pa.Table, wanted: Kind) -> Bool:
    """Which kernels are of a kind."""
    kind, kinds = codes(kernels, "kind")
    return np.isin(kind, [place for place, name in enumerate(kinds) if name == wanted.value])


def add_gaps(bundle: Bundle, source: TableSource, rank: int) -> pa.Table:
    """Times without computation, each of the kind that most of it is; returns their rows of ``gpu_gaps``, by start."""
    table, key = source.table("gpu_gaps", _GAPS, rank), rank_key(rank)
    # Of an iteration with training steps, their gaps; both windows would show the same time twice.
    names = set(table["window_name"].to_pylist())
    table = table.filter(pc.equal(table["window_name"], "step" if "step" in names else "kernels")).sort_by("start_ns")
    if table.num_rows:
        split = np.stack([integers_of(table, name) for name in _PARTS_OF_GAPS])
        start = integers_of(table, "start_ns")
        rows = LaneRows.of(start, start + integers_of(table, "duration_ns"), split.argmax(axis=0))
        bundle.add(Lane(f"{key}/gaps", said.GAPS, key, LaneKind.GAPS, len(rows)), rows, said.GAP_KINDS)
    return table


def add_path(bundle: Bundle, table: pa.Table, rank: int) -> None:
    """What of the critical path is on a rank."""
    table, key = table.filter(pc.equal(table["rank"], rank)), rank_key(rank)
    if not table.num_rows:
        return
    kind, words = path_kinds(table)
    start = integers_of(table, "start_ns")
    end = start + integers_of(table, "duration_ns")
    rows = LaneRows.of(start, end, kind, source=integers_of(table, "segment"))
    bundle.add(Lane(f"{key}/path", said.PATH, key, LaneKind.PATH, len(rows)), rows, words)


def path_kinds(segments: pa.Table) -> tuple[Int64, tuple[str, ...]]:
    """What each segment of the critical path is: the category of a kernel that runs, else the cause."""
    cause, category = segments["cause"].cast(pa.string()), segments["category"].cast(pa.string())
    runs = pc.is_in(cause, pa.array([cause.value for cause in RUN_CAUSES]))
    told = pc.if_else(runs, pc.fill_null(category, Category.UNCLASSIFIED.value), cause)
    told = told.combine_chunks() if isinstance(told, pa.ChunkedArray) else told
    told = told.dictionary_encode()
    return np.asarray(told.indices, np.int64), tuple(told.dictionary.to_pylist())


def add_exposed(bundle: Bundle, kernels: pa.Table, rank: int) -> None:
    """1 while a device communicates and does not compute, 0 otherwise; per device that communicates."""
    key = rank_key(rank)
    communicates, computes = of_kind(kernels, Kind.COMMUNICATION), of_kind(kernels, Kind.COMPUTATION)
    start = integers_of(kernels, "start_ns")
    end = start + integers_of(kernels, "duration_ns")
    device, devices = codes(kernels, "device")
    there = distinct(device[communicates]).tolist()
    for place in there:
        mine = [(device == place) & chosen for chosen in (communicates, computes)]
        exposed = subtract(*(union(start[one], end[one]) for one in mine))
        times = np.stack((exposed.starts, exposed.ends), axis=1).reshape(-1)
        changes = Changes.of(times, np.tile(np.array([1, 0]), len(exposed.starts)))
        label = said.EXPOSED_TIME + (f" {devices[place]}" if len(there) > 1 else "")
        lane = Lane(f"{key}/exposed:{devices[place]}", label, key, LaneKind.COUNTER, len(changes))
        bundle.add_counter(lane, changes)


def add_host(bundle: Bundle, source: TableSource, kernels: pa.Table, rank: int) -> None:
    """NVTX ranges, the calls that launched kernels, and how many wait for their start.

    Args:
        kernels: with ``LAUNCH_COLUMNS``.
    """
    key = rank_key(rank)
    _add_ranges(bundle, source, rank, key)
    _add_launches(bundle, kernels, key)


def _add_ranges(bundle: Bundle, source: TableSource, rank: int, key: str) -> None:
    columns = ("range_id", "depth", "name", "thread", "start_ns", "duration_ns", "communicator", "bytes")
    table = source.table("nvtx_ranges", columns, rank)
    if not table.num_rows:
        return
    name, words = codes(table, "name")
    bundle.words[RANGE_NAMES] = list(words)
    thread = integers_of(table, "thread")
    level = np.minimum(integers_of(table, "depth"), _MOST_LEVELS)
    nccl = said.RANGE_KINDS.index("nccl")
    kind = np.array([nccl * word.startswith("nccl") for word in words] + [0], np.int8)[name]
    start, ids = integers_of(table, "start_ns"), integers_of(table, "range_id")
    end = start + integers_of(table, "duration_ns")
    for one in distinct(thread).tolist():
        for depth in distinct(level[thread == one]).tolist():
            rows = np.flatnonzero((thread == one) & (level == depth))
            label = said.ranges_label(depth, _MOST_LEVELS) + (f" · {said.thread_label(one)}" if depth == 0 else "")
            lane = Lane(f"{key}/thread:{one}/ranges:{depth}", label, key, LaneKind.RANGES, len(rows), level=depth)
            found = LaneRows.of(start[rows], end[rows], kind[rows], name[rows], ids[rows])
            bundle.add(lane, found, said.RANGE_KINDS, RANGE_NAMES)


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
        label = said.LAUNCHES + ("" if one == NONE else f" · {said.thread_label(one)}")
        lane = Lane(f"{key}/thread:{one}/calls", label, key, LaneKind.CALLS, len(rows))
        found = LaneRows.of(begin, end[rows], 0, name[known][rows], ids[rows])
        bundle.add(lane, found, ("launch_call",), CALL_NAMES)
    changes = Changes.of(*queue_depth(end, integers_of(kernels, "start_ns")[known]))
    lane = Lane(f"{key}/queue", said.QUEUE, key, LaneKind.COUNTER, len(changes), unit="operations")
    bundle.add_counter(lane, changes)


def add_memory(bundle: Bundle, source: TableSource, rank: int) -> None:
    """What the allocator holds and has reserved; of nsys what the driver gave since the recording began."""
    columns = ("device", "action", "time_ns", "bytes", "requested_bytes", "allocated_bytes", "reserved_bytes")
    table, key = source.table("memory_events", columns, rank), rank_key(rank)
    table = table.filter(pc.is_valid(table["time_ns"])).sort_by([("time_ns", "ascending")])
    devices = pc.unique(table["device"]).to_pylist()
    for device in devices:
        of = f" {device}" if len(devices) > 1 else ""
        mine = table.filter(pc.equal(table["device"], device)) if device is not None else table.slice(0, 0)
        held = pc.coalesce(mine["allocated_bytes"], mine["requested_bytes"])
        for name, label, values in (
            ("allocated", said.ALLOCATED, held),
            ("reserved", said.RESERVED, mine["reserved_bytes"]),
        ):
            rows = mine.append_column("value", values).filter(pc.is_valid(values))
            if rows.num_rows:
                changes = Changes.of(integers_of(rows, "time_ns"), integers_of(rows, "value"))
                _add_bytes(bundle, f"{key}/memory:{name}:{device}", label + of, key, changes)
        action = mine["action"].cast(pa.string())
        given = mine.filter(pc.and_(pc.is_in(action, pa.array(["segment_alloc", "segment_free"])), pc.is_null(held)))
        given = given.filter(pc.is_null(given["reserved_bytes"]))
        if given.num_rows:
            gone = pc.equal(given["action"].cast(pa.string()), "segment_free").to_numpy(zero_copy_only=False)
            step = integers_of(given, "bytes") * np.where(gone, -1, 1)
            changes = Changes.of_steps(integers_of(given, "time_ns"), step)
            _add_bytes(bundle, f"{key}/memory:driver:{device}", said.FROM_DRIVER + of, key, changes)


def add_allocated(bundle: Bundle, table: pa.Table, rank: int) -> None:
    """What the allocator holds, from a trace that records it (``read.kineto.memory.MEMORY``), by time."""
    devices = sorted(pc.unique(table["device"]).to_pylist())
    for device in devices:
        own = table.filter(pc.equal(table["device"], device))
        changes = Changes.of(integers_of(own, "time_ns"), integers_of(own, "allocated_bytes"))
        label = said.ALLOCATED + (f" {device}" if len(devices) > 1 else "")
        _add_bytes(bundle, f"{rank_key(rank)}/memory:allocated:{device}", label, rank_key(rank), changes)


def _add_bytes(bundle: Bundle, key: str, label: str, parent: str, changes: Changes) -> None:
    lane = Lane(key, label, parent, LaneKind.COUNTER, len(changes), unit="bytes")
    bundle.add_counter(lane, changes)


def step_marks(source: TableSource, rank: int) -> list[Mark]:
    """The training steps of a rank; without any the iteration, on its own clock."""
    columns = ("window_name", "step", "window_start_ns", "window_end_ns")
    table, key = source.table("overlap", columns, rank), rank_key(rank)
    windows: dict[str, set[tuple[int, int, int | None]]] = {}
    for row in table.to_pylist():
        window = row["window_start_ns"], row["window_end_ns"], row["step"]
        windows.setdefault(row["window_name"], set()).add(window)
    if steps := windows.get("step"):
        return [
            Mark(MarkKind.ITERATION, start, end, step_name(step), key, number=step, evidence=STEP_MARK)
            for start, end, step in sorted(steps)
        ]
    if not (whole := windows.get("kernels")):
        return []
    start, end = min(start for start, _, _ in whole), max(end for _, end, _ in whole)
    return [Mark(MarkKind.ITERATION, start, end, "iteration", key, evidence="from the first kernel to the last")]


def _vocabulary(table: pa.Table, column: str, words: Sequence[str]) -> np.ndarray:
    """A text column as places in a vocabulary; what is not there counts as unclassified."""
    code, names = codes(table, column)
    other = words.index(Category.UNCLASSIFIED.value)
    places = [words.index(name) if name in words else other for name in names]
    return np.array([*places, other], np.int8)[code]
