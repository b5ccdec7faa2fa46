"""What the report's timeline shows, from the tables of an iteration: ranks, bins, micro-batches, kernels, gaps, path.

Every time is an integer of nanoseconds from the rank's first kernel. Where a rank lies on the axis depends on the
clocks that the reader chooses; the page gets the places of all ranks for each choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from traceviz_dag.show.lanes import parts
from traceviz_dag.show.lanes.grouping import groupings
from traceviz_dag.show.lanes.iteration import STEP_MARK, step_marks
from traceviz_dag.show.lanes.waits import integers_of
from traceviz_dag.show.lanes.words import GAP_KINDS, WORDS, rank_label
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.activity import read_steps
from traceviz_dag.show.page.alignment import TimeAlignment, align, read_clocks
from traceviz_dag.show.page.members import Member, read_members
from traceviz_dag.show.report.columns import PageColumns
from traceviz_dag.show.report.limits import MOST_KERNELS
from traceviz_dag.show.report.tracks import Tracks
from traceviz_dag.show.source import TableSource

MOST_READ = 20_000_000
"""Of an iteration with more kernels none is read: its timeline shows micro-batches alone."""

MOST_GAPS = 200_000
"""Gaps without computation that a page carries at the most, each rank as many; the shortest are left out."""

MOST_WITH_LAUNCHES = 400_000
"""Of more kernels the page does not say when they were launched."""

_ALL_BINS, _FEWEST_BINS, _MOST_BINS = 1 << 17, 256, 2048


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
        read: whether kernels are read at all.
        bins: into how many the longest rank's time is parted.
    """

    read: bool
    shortest_ns: int
    with_launches: bool
    bins: int


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
    tracks = Tracks(
        source, width, plan.shortest_ns, with_launches=plan.with_launches, most_gaps=MOST_GAPS // max(len(members), 1)
    )
    ranks = []
    for member in members:
        first, last = spans[member.rank]
        counts_of = tracks.add_rank(member.rank, first, last, with_kernels=plan.read)
        ranks.append(_rank(source, member, first, last) | counts_of)
    found.kept = sum(row["kernels"] for row in ranks)
    tracks.columns.hand_over(found.columns)
    found.document = {
        "member": "rank",
        "ranks": ranks,
        "axes": _axes(source, spans),
        "bin_ns": width,
        "parts": parts.PARTS,
        "categories": list(palette.LABEL),
        "kinds": list(tracks.columns.kinds),
        "gap_kinds": GAP_KINDS,
        "words": WORDS,
        "names": list(tracks.columns.names),
        **tracks.signatures.document(),
        "launches": plan.with_launches,
        "groupings": groupings(source, members),
    }
    found.notes = _notes(found, plan, tracks.gaps_left_out)
    return found


def _rank(source: TableSource, member: Member, first: int, last: int) -> dict[str, Any]:
    """What the document says of a rank, beside how many entries of the columns are its own."""
    return {
        "rank": member.rank,
        "label": rank_label(member.rank, member.stage),
        "stage": member.stage,
        "first_ns": str(first),
        "length": last - first,
        "windows": _windows(source, member.rank, first),
    }


def _notes(found: Timeline, plan: _Plan, gaps_left_out: int) -> list[str]:
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
    if gaps_left_out:
        notes.append(f"{gaps_left_out:,} gaps, the shortest of each rank, are left out")
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
            [integers_of(source.table("kernels", ("duration_ns",), rank), "duration_ns") for rank in ranks]
        )
        # Of kernels just as long as the last one that fits, none is kept: a page never carries more than it may.
        shortest = int(np.partition(lengths, len(lengths) - most - 1)[len(lengths) - most - 1]) + 1
    return _Plan(read=True, shortest_ns=shortest, with_launches=min(total, most) <= MOST_WITH_LAUNCHES, bins=number)


def _span(source: TableSource, rank: int, plan: _Plan) -> tuple[int, int] | None:
    """Start of the first and end of the last kernel; without kernels, of micro-batches; None without both."""
    if plan.read:
        table = source.table("kernels", ("start_ns", "duration_ns"), rank)
        starts, ends = integers_of(table, "start_ns"), integers_of(table, "duration_ns")
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


def _windows(source: TableSource, rank: int, first: int) -> list[dict[str, Any]]:
    """The training steps of a rank, from its first kernel."""
    marks = [mark for mark in step_marks(source, rank) if mark.evidence == STEP_MARK]
    return [{"step": one.number, "start": one.start_ns - first, "end": one.end_ns - first} for one in marks]
