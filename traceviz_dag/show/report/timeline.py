"""What the report's timeline shows, from the tables of an iteration: ranks, bins, micro-batches, kernels, gaps, path.

Every time is an integer of nanoseconds from the rank's first kernel. Where a rank lies on the axis depends on the
clocks that the reader chooses; the page gets the places of all ranks for each choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from traceviz_dag.arrays import Int64
from traceviz_dag.show.lanes import parts
from traceviz_dag.show.lanes.grouping import groupings
from traceviz_dag.show.lanes.iteration import STEP_MARK, step_marks
from traceviz_dag.show.lanes.waits import integers_of
from traceviz_dag.show.lanes.words import GAP_KINDS, WORDS, rank_label
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.activity import read_steps
from traceviz_dag.show.page.alignment import align, read_clocks
from traceviz_dag.show.page.members import Member, read_members
from traceviz_dag.show.report.columns import PageColumns
from traceviz_dag.show.report.limits import MOST_KERNELS
from traceviz_dag.show.report.tracks import Tracks
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import TimeAlignment

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
    found.kernels = sum(count or 0 for count in source.table("traces", ("kernels",))["kernels"].to_pylist())
    spans: dict[int, tuple[int, int]] = {}
    lengths = []
    for member in members:
        starts, ends = _times(source, member.rank, kernels=found.kernels <= MOST_READ)
        if len(starts):
            spans[member.rank] = (int(starts.min()), int(ends.max()))
        if most_kernels < found.kernels <= MOST_READ:
            lengths.append(ends - starts)
    plan = _plan(len(members), found.kernels, lengths, most_kernels)
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
    tracks.add_signatures()
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


def _plan(ranks: int, total: int, lengths: Sequence[Int64], most: int) -> _Plan:
    """How much to carry of so many ranks and kernels.

    Args:
        lengths: of the kernels of each rank, where there are more than a page may carry.
    """
    number = 1 << max(_ALL_BINS // max(ranks, 1), 1).bit_length() - 1
    number = min(max(number, _FEWEST_BINS), _MOST_BINS)
    if total > MOST_READ:
        return _Plan(read=False, shortest_ns=0, with_launches=False, bins=number)
    shortest = 0
    if lengths:
        every = np.concatenate(lengths)
        # Of kernels just as long as the last one that fits, none is kept: a page never carries more than it may.
        shortest = int(np.partition(every, len(every) - most - 1)[len(every) - most - 1]) + 1
    return _Plan(read=True, shortest_ns=shortest, with_launches=min(total, most) <= MOST_WITH_LAUNCHES, bins=number)


def _times(source: TableSource, rank: int, *, kernels: bool) -> tuple[Int64, Int64]:
    """Starts and ends of kernels, or else of micro-batches."""
    if not kernels:
        return read_steps(source, rank).time
    table = source.table("kernels", ("start_ns", "duration_ns"), rank)
    starts = integers_of(table, "start_ns")
    return starts, starts + integers_of(table, "duration_ns")


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
