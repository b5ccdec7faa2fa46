"""Figures of several ranks on one axis, a row per rank: what pipeline and replica figures have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from matplotlib.figure import Figure

from traceviz_dag.analyze.findings.verdict import Lead
from traceviz_dag.show.figures.rank_rows import Row, RowGroup, draw_rows, rows_height, rows_legend
from traceviz_dag.show.figures.rank_summary import RankSummary, partial_mark, warnings
from traceviz_dag.show.figures.step_blocks import PALE_NOTE
from traceviz_dag.show.page.activity import Activity, read_activity, trace_status
from traceviz_dag.show.page.alignment import Clocks, Spans, align, read_clocks
from traceviz_dag.show.page.facts import lead_in, place
from traceviz_dag.show.page.members import Group, Member
from traceviz_dag.show.page.page import Caption, LegendGroup, TimeScale, open_page
from traceviz_dag.show.page.typography import typography
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import TimeAlignment, TraceStatus

_NOTE = f"height in the strip: share of the time that is covered; {PALE_NOTE}"


@dataclass(frozen=True, slots=True)
class Words:
    """What a figure of several ranks says.

    Attributes:
        name: what is shown, as ``Pipeline 3``.
        finding: the rest of the title.
        facts: further sentences.
    """

    name: str
    finding: Callable[[Sequence[RankSummary]], str]
    facts: Callable[[Sequence[RankSummary]], Sequence[str]]


def draw_row_groups(
    source: TableSource,
    groups: Sequence[tuple[str, Group]],
    words: Words,
    alignment: TimeAlignment,
    further: Spans = MappingProxyType({}),
) -> Figure:
    """Draw one row per rank, under headings.

    Args:
        groups: (heading, ranks); an empty heading writes none.
        further: spans of other ranks that the axis must hold, so that several figures have one axis.
    """
    drawn = [RowGroup(heading, [read_row(source, member) for member in group.members]) for heading, group in groups]
    every = [row for group in drawn for row in group.rows]
    active = [row.activity for row in every if row.activity is not None]
    spans = {activity.rank: span for activity in active if (span := activity.span()) is not None}
    clocks = read_clocks(source, {*spans, *further}, alignment)
    aligned = align(spans, clocks, further)
    scale = TimeScale.of(aligned.span_ns)
    ranks = [row.summary for row in every]
    lead = lead_in(source)
    caption = make_caption(source, words, ranks, clocks, list(rows_legend(drawn)), _NOTE, lead)
    with typography():
        page = open_page(caption, rows_height(drawn))
        axes = page.lanes(scale, clocks.axis)
        draw_rows(page, axes, drawn, aligned, scale, lead.faults)
    return page.figure


def make_caption(
    source: TableSource,
    words: Words,
    ranks: Sequence[RankSummary],
    clocks: Clocks,
    legend: Sequence[LegendGroup],
    note: str,
    lead: Lead,
    further: Sequence[str] = (),
) -> Caption:
    """The caption of a figure of several ranks, with what is missing in its title; a fault of one of them leads."""
    shown = {rank.member.rank for rank in ranks}
    faults = [fault for rank, fault in lead.faults.items() if rank in shown]
    findings = [*faults[:1], words.finding(ranks)]
    return Caption(
        title=f"{words.name}: {findings[0]}{partial_mark(ranks)}",
        facts=[place(source), *findings[1:], *words.facts(ranks), *further, clocks.sentence],
        warnings=[*([clocks.warning] if clocks.warning else []), *warnings(ranks)],
        legend=legend,
        footer=f"tables kernels, microbatches, topology, findings{'' if clocks.solved is None else ', rank_clocks'}",
        note=note,
    )


def read_row(source: TableSource, member: Member) -> Row:
    """Read one rank; without kernels the row says why."""
    activity, fault = read_usable(source, member)
    return Row(member, activity, fault)


def read_usable(source: TableSource, member: Member) -> tuple[Activity | None, str]:
    """One rank's activity, or None and the reason why there is none."""
    status = trace_status(source, member.rank)
    if status == TraceStatus.FAILED.value:
        return None, "the trace could not be read"
    activity = read_activity(source, member.rank)
    if not activity.kernels:
        return None, "no trace" if status == "unknown" else "no kernels in the trace"
    return activity, ""
