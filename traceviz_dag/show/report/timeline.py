"""What the report's timeline shows, from the tables of an iteration: ranks, bins, micro-batches, kernels, gaps, path.

Every time is an integer of nanoseconds from the rank's first kernel. Where a rank lies on the axis depends on the
clocks that the reader chooses; the page gets the places of all ranks for each choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.intervals import Intervals, union
from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.activity import Steps, read_steps
from traceviz_dag.show.page.alignment import TimeAlignment, align, read_clocks
from traceviz_dag.show.page.members import Member, read_members
from traceviz_dag.show.report import bins
from traceviz_dag.show.report.columns import PageColumns
from traceviz_dag.show.report.signatures import COLUMNS, Signatures
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import Category, Kind

MOST_KERNELS = 1_000_000
"""Kernels that a page carries at the most; the shortest are left out first, and the page says so."""

MOST_READ = 20_000_000
"""Of an iteration with more kernels none is read: its timeline shows micro-batches alone."""

MOST_GAPS = 30_000
MOST_WITH_LAUNCHES = 400_000
"""Of more kernels the page does not say when they were launched."""

_ALL_BINS, _FEWEST_BINS, _MOST_BINS = 1 << 17, 256, 2048
_OWN_COLUMNS = ("kernel_id", "start_ns", "duration_ns", "microbatch", "launch_start_ns", "launch_duration_ns")
_WAITS = (
    "rank", "kernel_id", "communication", "clocks", "wait_aligned_ns", "wait_by_duration_ns", "last_rank_aligned",
    "last_rank_by_duration",
)  # fmt: skip
_GAPS = ("start_ns", "duration_ns", "blocked_ns", "starved_ns", "unexplained_ns")
_PATH = ("segment", "step", "rank", "kernel_id", "cause", "category", "start_ns", "duration_ns")
_WINDOWS = ("window_name", "step", "dimension", "window_start_ns", "window_end_ns")


@dataclass(slots=True)
class Timeline:
    """A timeline as it is gathered.

    Attributes:
        document: what the page's script reads as JSON.
        columns: what it reads as columns.
        notes: what the timeline leaves out, and why.
        kernels, kept: how many there are, and how many the page carries.
    """

    columns: PageColumns = field(default_factory=PageColumns)
    document: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    kernels: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """How much of an iteration a page carries.

    Attributes:
        shortest_ns: kernels below are left out.
        most_equal: of kernels just as long, so many are kept.
    """

    read: bool
    shortest_ns: int
    with_launches: bool
    bins: int


@dataclass(slots=True)
class _RankTrack:
    """One rank's part of the columns."""

    member: Member
    first_ns: int
    last_ns: int
    steps: Steps
    kernels: pa.Table | None
    kept: Bool
    bins: Int64


def read_timeline(source: TableSource, most_kernels: int = MOST_KERNELS) -> Timeline:
    """Everything that the timeline of an iteration shows.

    Args:
        most_kernels: that the page carries.
    """
    found = Timeline()
    members = list(read_members(source))
    counts = _kernel_counts(source)
    found.kernels = sum(counts.values())
    plan = _plan(source, [member.rank for member in members], counts, most_kernels)
    spans = {member.rank: span for member in members if (span := _span(source, member.rank, plan)) is not None}
    members = [member for member in members if member.rank in spans]
    width = _bin_width(spans, plan.bins)
    waits = _Waits(source)
    signatures = Signatures()
    gathered: dict[str, list[Int64]] = {}
    ranks = [
        _add_rank(source, member, spans[member.rank], plan, width, waits, signatures, gathered) for member in members
    ]
    found.kept = sum(row["kernels"] for row in ranks)
    for name, parts in gathered.items():
        found.columns.add(name, np.concatenate(parts), differences=name in _DIFFERENCES)
    places = {member.rank: place for place, member in enumerate(members)}
    found.document = {
        "ranks": ranks,
        "axes": _axes(source, spans),
        "bin_ns": width,
        "parts": [{"name": name, "label": label, "colour": colour} for name, label, colour in _part_words()],
        "categories": [
            {"name": name, "label": _category_label(name), "colour": palette.CATEGORY[name]} for name in palette.LABEL
        ],
        "signatures": signatures.document(),
        "path": _path(source, places, spans, found.columns),
        "launches": plan.with_launches,
    }
    found.notes = _notes(found, plan)
    return found


_DIFFERENCES = {"kernel.start", "kernel.id", "step.start", "gap.start", "wait.kernel"}


def _notes(found: Timeline, plan: _Plan) -> list[str]:
    if not found.kernels:
        return ["no kernels were read: the timeline is empty"]
    if not plan.read:
        return [f"{found.kernels:,} kernels are too many for one page: the timeline shows micro-batches alone"]
    notes = []
    if found.kept < found.kernels:
        notes.append(
            f"{found.kernels - found.kept:,} of {found.kernels:,} kernels, the shortest (below "
            f"{plan.shortest_ns / 1e3:,.3f} µs), are left out of the close view; the far view and its bins count all"
        )
    if not plan.with_launches:
        notes.append("launches of kernels are left out")
    return notes


def _kernel_counts(source: TableSource) -> dict[int, int]:
    table = source.table("traces", ("rank", "kernels"))
    return {row["rank"]: row["kernels"] or 0 for row in table.to_pylist()}


def _plan(source: TableSource, ranks: Sequence[int], counts: Mapping[int, int], most: int) -> _Plan:
    total = sum(counts.values())
    number = 1 << max(_ALL_BINS // max(len(ranks), 1), 1).bit_length() - 1
    number = min(max(number, _FEWEST_BINS), _MOST_BINS)
    if total > MOST_READ:
        return _Plan(read=False, shortest_ns=0, with_launches=False, bins=number)
    shortest = 0
    if total > most:
        lengths = np.concatenate(
            [_integers(source.table("kernels", ("duration_ns",), rank), "duration_ns") for rank in ranks]
        )
        # Of kernels just as long as the last one that fits, none is kept: a page never carries more than it may.
        shortest = int(np.partition(lengths, len(lengths) - most - 1)[len(lengths) - most - 1]) + 1
    return _Plan(read=True, shortest_ns=shortest, with_launches=min(total, most) <= MOST_WITH_LAUNCHES, bins=number)


def _span(source: TableSource, rank: int, plan: _Plan) -> tuple[int, int] | None:
    """Start of the first and end of the last kernel; without kernels, of micro-batches; None without both."""
    if plan.read:
        table = source.table("kernels", ("start_ns", "duration_ns"), rank)
        starts, ends = _integers(table, "start_ns"), _integers(table, "duration_ns")
        ends = starts + ends
    else:
        steps = read_steps(source, rank)
        starts, ends = steps.time
    return (int(starts.min()), int(ends.max())) if len(starts) else None


def _bin_width(spans: Mapping[int, tuple[int, int]], number: int) -> int:
    longest = max((last - first for first, last in spans.values()), default=1)
    return max(-(-longest // number), 1)


def _axes(source: TableSource, spans: Mapping[int, tuple[int, int]]) -> list[dict[str, Any]]:
    """Per choice of clocks: where each rank's first kernel lies, the length of the axis, and the sentence about it."""
    axes: list[dict[str, Any]] = []
    for alignment in (TimeAlignment.SOLVED, TimeAlignment.GLOBAL, TimeAlignment.INDIVIDUAL):
        clocks = read_clocks(source, spans, alignment)
        if clocks.alignment is not alignment:
            axes.append({"name": alignment.value, "refusal": clocks.warning})
            continue
        laid = align(spans, clocks)
        axes.append(
            {
                "name": alignment.value,
                "label": clocks.axis,
                "sentence": clocks.sentence,
                "at": [first - laid.zero_ns[rank] for rank, (first, _) in spans.items()],
                "length": laid.span_ns,
            }
        )
    return axes


@dataclass(slots=True)
class _Waits:
    """Waits of communication kernels, by rank."""

    source: TableSource
    table: pa.Table = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.source.table("collectives", _WAITS)

    def of(self, rank: int) -> dict[str, Int64]:
        """kernel_id, wait (-1 unknown), communication (-1 unmatched) and last rank (-1) of a rank's, by kernel."""
        mine = self.table.filter(pc.equal(self.table["rank"], rank)).sort_by("kernel_id")
        solved = pc.equal(mine["clocks"].cast(pa.string()), "solved").fill_null(False)
        untold = pc.is_null(mine["clocks"].cast(pa.string()))

        def chosen(aligned: str, by_duration: str) -> Int64:
            # What neither clocks nor durations tell stays unknown.
            value = pc.if_else(solved, mine[aligned].cast(pa.int64()), mine[by_duration].cast(pa.int64()))
            value = pc.if_else(untold, pa.scalar(None, pa.int64()), value)
            return np.asarray(value.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)

        return {
            "kernel_id": _integers(mine, "kernel_id"),
            "wait": np.maximum(chosen("wait_aligned_ns", "wait_by_duration_ns"), -1),
            "communication": _integers(mine, "communication"),
            "last_rank": chosen("last_rank_aligned", "last_rank_by_duration"),
        }


def _add_rank(
    source: TableSource,
    member: Member,
    span: tuple[int, int],
    plan: _Plan,
    width: int,
    waits: _Waits,
    signatures: Signatures,
    gathered: dict[str, list[Int64]],
) -> dict[str, Any]:
    """Add a rank to the columns; returns what the document says of it."""
    first, last = span

    def add(name: str, values: Int64) -> int:
        gathered.setdefault(name, []).append(values)
        return len(values)

    row: dict[str, Any] = {
        "rank": member.rank,
        "stage": member.stage,
        "pipeline": member.pipeline,
        "replica": member.replica,
        "first_ns": str(first),
        "length": last - first,
        "windows": _windows(source, member.rank, first),
    }
    steps = read_steps(source, member.rank)
    row["steps"] = add("step.start", steps.time.starts - first)
    add("step.length", steps.time.ends - steps.time.starts)
    add("step.backward", steps.backward.astype(np.int64))
    add("step.chunk", steps.chunk + 1)
    add("step.microbatch", steps.microbatch + 1)
    row["kernels"], row["bins"], row["waits"] = 0, 0, 0
    if plan.read:
        columns = (*_OWN_COLUMNS, *COLUMNS) if plan.with_launches else (*_OWN_COLUMNS[:4], *COLUMNS)
        table = source.table("kernels", columns, member.rank).sort_by(
            [("start_ns", "ascending"), ("kernel_id", "ascending")]
        )
        starts, lengths = _integers(table, "start_ns"), _integers(table, "duration_ns")
        waiting = waits.of(member.rank)
        parts = _parted(table, starts, lengths, waiting)
        number = -(-(last - first) // width) or 1
        row["bins"] = add("bins", bins.binned(parts, first, width, number).reshape(-1)) // len(bins.PARTS)
        kept = np.flatnonzero(lengths >= plan.shortest_ns)
        table = table.take(kept)
        row["kernels"] = add("kernel.start", starts[kept] - first)
        add("kernel.length", lengths[kept])
        ids = _integers(table, "kernel_id")
        add("kernel.id", ids)
        add("kernel.signature", signatures.of(table))
        add("kernel.microbatch", _integers(table, "microbatch") + 1)
        if plan.with_launches:
            launch = _integers(table, "launch_start_ns", absent=np.iinfo(np.int64).min)
            known = launch != np.iinfo(np.int64).min
            # 0 is "not known"; a launch at the very start of its kernel is 1.
            back = starts[kept] - launch
            add("kernel.launch", np.where(known, np.where(back >= 0, back + 1, back), 0))
            add("kernel.launch_length", np.where(known, _integers(table, "launch_duration_ns", absent=0), 0))
        place = (
            np.searchsorted(ids, waiting["kernel_id"])
            if (ids[1:] > ids[:-1]).all()
            else _places(ids, waiting["kernel_id"])
        )
        there = (
            (place < len(ids)) & (ids[np.minimum(place, len(ids) - 1)] == waiting["kernel_id"])
            if len(ids)
            else np.zeros(len(place), bool)
        )
        row["waits"] = add("wait.kernel", place[there])
        add("wait.length", waiting["wait"][there] + 1)
        add("wait.communication", waiting["communication"][there] + 1)
        add("wait.last_rank", waiting["last_rank"][there] + 1)
    row["gaps"] = _add_gaps(source, member.rank, first, add)
    return row


def _places(ids: Int64, wanted: Int64) -> Int64:
    """Where ids lie that are in no order; beyond the end where they are not there."""
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], wanted), max(len(ids) - 1, 0))
    return order[place] if len(ids) else np.zeros(len(wanted), np.int64)


def _parted(table: pa.Table, starts: Int64, lengths: Int64, waiting: Mapping[str, Int64]) -> dict[str, Intervals]:
    ends = starts + lengths
    category, names = codes(table, "category")
    kind, kinds = codes(table, "kind")

    def of_kind(wanted: Kind) -> Bool:
        return kind == (kinds.index(wanted.value) if wanted.value in kinds else -2)

    computes = of_kind(Kind.COMPUTATION)
    computation: dict[str, Intervals] = {}
    for code in np.unique(category[computes]).tolist():
        mask = computes & (category == code)
        name = names[code] if code >= 0 else Category.UNCLASSIFIED.value
        known = name if name in bins.COMPUTATION else Category.UNCLASSIFIED.value
        computation[known] = union(starts[mask], ends[mask])
    communicates, moves = of_kind(Kind.COMMUNICATION), of_kind(Kind.MEMORY)
    ids = _integers(table, "kernel_id")
    known = waiting["wait"] >= 0
    order = np.argsort(ids, kind="stable")
    place = (
        order[np.minimum(np.searchsorted(ids[order], waiting["kernel_id"][known]), max(len(ids) - 1, 0))]
        if len(ids)
        else np.empty(0, np.int64)
    )
    wait = np.minimum(waiting["wait"][known], lengths[place]) if len(ids) else np.empty(0, np.int64)
    return bins.parts_of(
        computation,
        union(starts[communicates], ends[communicates]),
        union(starts[moves], ends[moves]),
        union(starts[place], starts[place] + wait),
        union(starts[place], ends[place]),
    )


def _windows(source: TableSource, rank: int, first: int) -> list[dict[str, Any]]:
    """The training steps of a rank, from its first kernel."""
    table = source.table("overlap", _WINDOWS, rank)
    found = {
        (row["step"], row["window_start_ns"], row["window_end_ns"])
        for row in table.to_pylist()
        if row["window_name"] == "step"
    }
    ordered = sorted(found, key=lambda each: each[1])
    return [{"step": step, "start": start - first, "end": end - first} for step, start, end in ordered]


def _add_gaps(source: TableSource, rank: int, first: int, add: Any) -> int:
    table = source.table("gpu_gaps", _GAPS, rank).sort_by("start_ns")
    lengths = _integers(table, "duration_ns")
    if len(lengths) > MOST_GAPS:
        table = table.filter(pa.array(lengths >= np.partition(lengths, -MOST_GAPS)[-MOST_GAPS]))
    count = add("gap.start", _integers(table, "start_ns") - first)
    add("gap.length", _integers(table, "duration_ns"))
    add("gap.blocked", _integers(table, "blocked_ns"))
    add("gap.starved", _integers(table, "starved_ns"))
    return count


def _path(
    source: TableSource, places: Mapping[int, int], spans: Mapping[int, tuple[int, int]], columns: PageColumns
) -> dict[str, Any]:
    """The critical path: columns of rank (its place), start, length and cause; the words of causes."""
    table = source.table("path_segments", _PATH).sort_by([("step", "ascending"), ("segment", "ascending")])
    rank = _integers(table, "rank")
    there = np.isin(rank, list(places))
    table, rank = table.filter(pa.array(there)), rank[there]
    first = np.array([spans[number][0] for number in rank.tolist()], np.int64)
    cause, words = codes(table, "cause")
    columns.add("path.rank", np.array([places[number] for number in rank.tolist()], np.int64))
    columns.add("path.start", _integers(table, "start_ns") - first, differences=True)
    columns.add("path.length", _integers(table, "duration_ns"))
    columns.add("path.cause", cause.astype(np.int64) + 1)
    return {"causes": [None, *words], "count": len(rank)}


def _part_words() -> list[tuple[str, str, str]]:
    words = {
        bins.EXPOSED_WAIT: ("exposed wait", palette.ATTENTION),
        bins.EXPOSED_TRANSFER: ("exposed transfer", "#E58BB0"),
        bins.EXPOSED_UNTOLD: ("exposed, wait or transfer unknown", "#B58AA0"),
        bins.MEMORY_ALONE: ("memory operations alone", palette.MEMORY_ONLY),
        bins.HIDDEN: ("hidden communication", palette.HIDDEN),
    }
    own = [(name, palette.LABEL[name], palette.CATEGORY[name]) for name in bins.COMPUTATION]
    return [*own, *((name, *words[name]) for name in bins.PARTS if name in words)]


def _category_label(name: str) -> str:
    label = palette.LABEL[name]
    return f"communication: {label}" if name.endswith("communication") or "communication_" in name else label


def _integers(table: pa.Table, column: str, absent: int = -1) -> Int64:
    return np.asarray(table[column].cast(pa.int64()).fill_null(absent).to_numpy(), np.int64)
