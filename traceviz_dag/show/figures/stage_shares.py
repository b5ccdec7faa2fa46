"""More ranks than a page has rows for: a row per stage, split at each time by what its ranks do; outliers apart."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.findings.verdict import Lead
from traceviz_dag.analyze.intervals import NOTHING, Intervals, intersect, measure_within, merge, subtract
from traceviz_dag.analyze.waits.blamed import LateRank
from traceviz_dag.analyze.wording import share
from traceviz_dag.arrays import Float64, Int64
from traceviz_dag.show.figures.group_figure import Words, make_caption, read_usable
from traceviz_dag.show.figures.rank_summary import RankSummary, computing_longer, summarise
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.activity import Activity
from traceviz_dag.show.page.alignment import align, read_clocks
from traceviz_dag.show.page.blocks import Band, draw_stack
from traceviz_dag.show.page.facts import lead_in, ranks_named
from traceviz_dag.show.page.members import Group, Member, by_stage
from traceviz_dag.show.page.page import LegendEntry, LegendGroup, Page, TimeScale, open_page
from traceviz_dag.show.page.typography import SMALL, typography
from traceviz_dag.show.source import TableSource
from traceviz_dag.show.source import rows as rows_of_table
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Category, TimeAlignment

COLUMNS = 480
"""Equal pieces of the axis; in each, a state's height is its share of the time of the stage's ranks."""

STAGE_IDLE = "stage_idle"
"""The state in which a stage runs no micro-batch."""

_FWD_EXPOSED, _BWD_EXPOSED = "fwd_exposed", "bwd_exposed"
EXPOSED_STATES = {_FWD_EXPOSED: Category.FWD_COMPUTATION.value, _BWD_EXPOSED: Category.BWD_COMPUTATION.value}
"""States of a micro-batch whose communication is exposed → the category of its computation."""

BLOCK_STATES = (
    Category.FWD_COMPUTATION.value,
    _FWD_EXPOSED,
    Category.BWD_COMPUTATION.value,
    _BWD_EXPOSED,
    Category.BWD_COMPUTATION_RECOMPUTE.value,
    Category.OPTIMIZER_COMPUTATION.value,
    Category.OTHER_COMPUTATION.value,
    Category.UNCLASSIFIED.value,
    STAGE_IDLE,
)
"""What a rank computes, from the foot of the upper band upwards."""

STRIP_STATES = (
    Category.PP_COMMUNICATION.value,
    Category.DP_COMMUNICATION.value,
    Category.FWD_COMMUNICATION.value,
    Category.BWD_COMMUNICATION.value,
    Category.BWD_COMMUNICATION_RECOMPUTE.value,
    Category.OTHER_COMMUNICATION.value,
    Category.UNCLASSIFIED.value,
)
"""What a rank communicates, from the foot of the lower band upwards; of two at once the former counts."""

MOST_OUTLIERS = 8
"""Ranks that have a row of their own, those that are furthest from the others of their stage."""

_ROW, _GAP = 0.74, 0.14
_BLOCKS, _STRIP = (0.0, 0.68), (0.74, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class StageShares:
    """One row: ranks of a stage.

    Attributes:
        blocks: (block states, columns) share of the ranks' time in each column of the axis.
        strip: (strip states, columns) the same of their communication.
        ranks: summaries of all its ranks.
        apart: it is an outlier of its stage.
    """

    stage: int | None
    blocks: Float64
    strip: Float64
    ranks: Sequence[RankSummary]
    apart: bool = False


def draw_stage_shares(source: TableSource, group: Group, words: Words, alignment: TimeAlignment) -> Figure:
    """Draw a row per stage, and one each of the ranks at fault, then those that delay others or compute longest."""
    spans = _spans(source, set(group.ranks))
    clocks = read_clocks(source, spans, alignment)
    aligned = align(spans, clocks)
    edges = np.linspace(0, aligned.span_ns, COLUMNS + 1).round().astype(np.int64)
    single = [_read_rank(source, member, aligned.zero_ns, edges) for member in group.members]
    ranks = [row.ranks[0] for row in single]
    ahead = computing_longer(ranks)
    lead = lead_in(source)
    outliers = _outliers(source, ahead, set(group.ranks), lead)
    stages = [row for part in by_stage(group.members) for row in _rows(part, single, outliers)]
    scale = TimeScale.of(aligned.span_ns)
    shared = [stage for stage in stages if not stage.apart]
    said = f"aggregated: {sum(len(stage.ranks) for stage in shared)} ranks in {len(shared)} rows, one per stage"
    said += f"; {ranks_named(outliers)} apart" if outliers else ""
    note = "height of a colour: share of the row's ranks"
    caption = make_caption(source, words, ranks, clocks, list(_legend(stages)), note, lead, [said])
    with typography():
        page = open_page(caption, len(stages) * (_ROW + _GAP) - _GAP)
        axes = page.lanes(scale, clocks.axis)
        for place, stage in enumerate(stages):
            band = Band(place * (_ROW + _GAP), place * (_ROW + _GAP) + _ROW)
            _draw_stage(axes, stage, band, edges / scale.per_unit)
            _label_stage(page, stage, band, ahead, lead)
    return page.figure


def _outliers(source: TableSource, ahead: Mapping[int, float], shown: Collection[int], lead: Lead) -> list[int]:
    """The ranks with a row of their own; none where every rank would have one."""
    blamed = [row for row in rows_of_table(source, "late_ranks", LateRank) if row["blamed"]]
    blamed.sort(key=lambda row: -row["own_ns"])
    slow = sorted(ahead, key=lambda rank: (-ahead[rank], rank))
    notable = dict.fromkeys([*lead.ranks, *(row["rank"] for row in blamed), *slow])
    chosen = [rank for rank in notable if rank in shown][:MOST_OUTLIERS]
    return chosen if len(chosen) < len(shown) else []


def _rows(part: Group, single: Sequence[StageShares], outliers: Collection[int]) -> Iterator[StageShares]:
    """A stage's rows: its ranks together, then those that are outliers."""
    mine = {row.ranks[0].member.rank: row for row in single if row.ranks[0].member.rank in set(part.ranks)}
    together = [row for rank, row in mine.items() if rank not in outliers]
    if together:
        usable = max(sum(row.ranks[0].usable for row in together), 1)
        blocks, strip = (
            np.sum([getattr(row, name) for row in together], axis=0) / usable for name in ("blocks", "strip")
        )
        yield StageShares(part.number, blocks, strip, [row.ranks[0] for row in together])
    yield from (replace(row, apart=True) for rank, row in mine.items() if rank in outliers)


def _draw_stage(axes: Axes, stage: StageShares, band: Band, edges: Float64) -> None:
    name = "no-known-stage" if stage.stage is None else f"stage-{stage.stage}"
    name = f"rank-{stage.ranks[0].member.rank}" if stage.apart else name
    axes.axhline(band.bottom, color=palette.RULE, linewidth=0.5, zorder=1)
    for shares, states, part in ((stage.blocks, BLOCK_STATES, _BLOCKS), (stage.strip, STRIP_STATES, _STRIP)):
        colours = [_colour(state) for state in states]
        word = "blocks" if states is BLOCK_STATES else "communication"
        draw_stack(axes, shares, edges, band.part(*part), states, colours, f"{name}/{word}")


def _label_stage(page: Page, stage: StageShares, band: Band, ahead: Mapping[int, float], lead: Lead) -> None:
    usable = sum(rank.usable for rank in stage.ranks)
    of = f"{usable} of {len(stage.ranks)} ranks" if usable < len(stage.ranks) else f"{usable} ranks"
    known = [rank.idle_share for rank in stage.ranks if rank.pipeline_ns]
    idle = f"idle {share(round(sum(known) / len(known) * 1e6), 1_000_000)}" if known else ""
    middle = band.part(*_BLOCKS).middle
    name = "no known stage" if stage.stage is None else f"stage {stage.stage}"
    name, of = (f"rank {stage.ranks[0].member.rank}", name) if stage.apart else (name, of)
    at_fault = stage.apart and stage.ranks[0].member.rank in lead.faults
    page.row_label(middle - 0.08, name, idle, colour=palette.ATTENTION if at_fault else palette.INK)
    page.row_label(middle + 0.1, of, colour=palette.QUIET_INK, size=SMALL)
    late = [rank.member.rank for rank in stage.ranks if rank.member.rank in ahead]
    if late:
        worst = max(late, key=lambda rank: (ahead[rank], -rank))
        longer = f"+{share(round(ahead[worst] * 1e6), 1_000_000)}"
        words = f"computes {longer}" if stage.apart else f"rank {worst} {longer}"
        page.row_measures(middle + 0.1, words, stands_out=True)


def block_states(activity: Activity) -> dict[str, Intervals]:
    """State → intervals in which a rank is in it, disjoint: recompute, steps, other computation, then idle."""
    steps, outside = activity.steps, activity.outside_steps
    forward, backward = (Intervals(*steps.take(side).time) for side in (~steps.backward, steps.backward))
    exposed = activity.exposed()
    wanted = {
        Category.BWD_COMPUTATION_RECOMPUTE.value: activity.recompute(),
        _BWD_EXPOSED: intersect(backward, exposed),
        _FWD_EXPOSED: intersect(forward, exposed),
        Category.BWD_COMPUTATION.value: merge(backward, outside.get(Category.BWD_COMPUTATION, NOTHING)),
        Category.FWD_COMPUTATION.value: merge(forward, outside.get(Category.FWD_COMPUTATION, NOTHING)),
        STAGE_IDLE: activity.stage_idle(),
    }
    rest = (Category.OPTIMIZER_COMPUTATION, Category.OTHER_COMPUTATION, Category.UNCLASSIFIED)
    return _disjoint({**{each.value: outside.get(each, NOTHING) for each in rest}, **wanted})


def strip_states(activity: Activity) -> dict[str, Intervals]:
    """Category → intervals in which a rank communicates so, disjoint."""
    communication = activity.communication_by_category()
    return _disjoint({state: communication.get(state, NOTHING) for state in STRIP_STATES})


def _disjoint(wanted: Mapping[str, Intervals]) -> dict[str, Intervals]:
    """The same sets, each without what those before it cover."""
    taken, states = NOTHING, {}
    for name, intervals in wanted.items():
        states[name] = subtract(intervals, taken)
        taken = merge(taken, intervals)
    return states


def _read_rank(source: TableSource, member: Member, zeros: Mapping[int, int], edges: Int64) -> StageShares:
    blocks, strip = np.zeros((len(BLOCK_STATES), COLUMNS)), np.zeros((len(STRIP_STATES), COLUMNS))
    activity, _ = read_usable(source, member)
    if activity is not None:
        at = edges + zeros.get(member.rank, 0)
        lengths = np.maximum(np.diff(edges), 1)
        for shares, order, states in (
            (blocks, BLOCK_STATES, block_states(activity)),
            (strip, STRIP_STATES, strip_states(activity)),
        ):
            for row, name in enumerate(order):
                shares[row] = measure_within(states[name], at[:-1], at[1:]) / lengths
    return StageShares(member.stage, blocks, strip, [summarise(member, activity)])


def _spans(source: TableSource, ranks: set[int]) -> dict[int, tuple[int, int]]:
    """Rank → start of its first and end of its last kernel, over its devices, from the table overlap."""
    columns = ("rank", "window_name", "dimension", "window_start_ns", "window_end_ns")
    table = source.table("overlap", columns)
    wanted = pc.and_(pc.equal(table["window_name"], "kernels"), pc.equal(table["dimension"], ALL_DIMENSIONS))
    spans: dict[int, tuple[int, int]] = {}
    for row in table.filter(wanted).to_pylist():
        if row["rank"] in ranks:
            start, end = spans.get(row["rank"], (row["window_start_ns"], row["window_end_ns"]))
            spans[row["rank"]] = (min(start, row["window_start_ns"]), max(end, row["window_end_ns"]))
    return spans


def _legend(stages: Sequence[StageShares]) -> Iterator[LegendGroup]:
    for name, states, shares in (
        ("blocks", BLOCK_STATES, [stage.blocks for stage in stages]),
        ("communication", STRIP_STATES, [stage.strip for stage in stages]),
    ):
        present = [state for row, state in enumerate(states) if any(each[row].any() for each in shares)]
        if present:
            yield LegendGroup(name, [LegendEntry(_label(state), _colour(state)) for state in present])


def _label(state: str) -> str:
    if state in EXPOSED_STATES:
        return f"{palette.LABEL[EXPOSED_STATES[state]]}, communication exposed"
    return palette.STAGE_IDLE_LABEL if state == STAGE_IDLE else palette.LABEL[state]


def _colour(state: str) -> str:
    if state in EXPOSED_STATES:
        return palette.LATER_CHUNK[EXPOSED_STATES[state]]
    return palette.STAGE_IDLE if state == STAGE_IDLE else palette.CATEGORY[state]
