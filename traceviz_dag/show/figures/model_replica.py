"""Model replica: all ranks that hold one copy of the model, pipeline by pipeline or stage by stage, on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from matplotlib.figure import Figure

from traceviz_dag.errors import UsageError
from traceviz_dag.show.figures.group_figure import Words, draw_row_groups
from traceviz_dag.show.figures.rank_rows import MOST_ROWS
from traceviz_dag.show.figures.rank_summary import (
    RankSummary,
    idle_finding,
    longer_finding,
    step_facts,
    waiting_finding,
)
from traceviz_dag.show.figures.stage_shares import draw_stage_shares
from traceviz_dag.show.page.members import Group, by_stage, pipelines, read_members, replicas
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import TimeAlignment


class RowOrder(StrEnum):
    """What is together in the figure."""

    PIPELINE = "pipeline"
    STAGE = "stage"


def draw_model_replica(
    source: TableSource,
    replica: int | None = None,
    alignment: TimeAlignment = TimeAlignment.GLOBAL,
    order: RowOrder = RowOrder.PIPELINE,
) -> Figure:
    """Draw one replica; from ``MOST_ROWS`` ranks on, a row per stage that shows which share of its ranks does what.

    Args:
        replica: its ordinal in the table topology; None draws all ranks of the job.

    Raises:
        UsageError: the topology knows no such replica, or the iteration has no rank.
    """
    members = read_members(source)
    known = {group.number: group for group in replicas(members)}
    if not members or (replica is not None and replica not in known):
        names = ", ".join(str(number) for number in known if number is not None) or "none"
        raise UsageError(f"no replica {replica} in {source.run}, iteration {source.iteration}; known are {names}")
    group = Group(None, members) if replica is None else known[replica]
    words = Words("All ranks" if replica is None else f"Model replica {replica}", _finding, _facts)
    if len(group.members) >= MOST_ROWS:
        return draw_stage_shares(source, group, words, alignment)
    if order is RowOrder.STAGE:
        parts = [(_heading("stage", part.number), part) for part in by_stage(group.members)]
    else:
        rest = [member for member in group.members if member.pipeline is None]
        parts = [(_heading("pipeline", part.number), part) for part in pipelines(group.members)]
        parts += [(_heading("pipeline", None), Group(None, rest))] if rest else []
    return draw_row_groups(source, parts if len(parts) > 1 else [("", parts[0][1])], words, alignment)


def _heading(word: str, number: int | None) -> str:
    return f"no known {word}" if number is None else f"{word} {number}"


def _finding(ranks: Sequence[RankSummary]) -> str:
    """The rank that computes longest where that is notable, else how long stages idle, else who waits longest."""
    longer = longer_finding(ranks)
    if longer is not None:
        return longer
    return idle_finding(ranks) if any(rank.pipeline_ns for rank in ranks) else waiting_finding(ranks)


def _facts(ranks: Sequence[RankSummary]) -> list[str]:
    known = {rank.member.pipeline for rank in ranks if rank.member.pipeline is not None}
    facts = [f"{len(ranks)} ranks" + (f", {len(known)} pipelines" if known else ", no pipeline known")]
    facts += step_facts(ranks)
    if any(rank.pipeline_ns for rank in ranks) and longer_finding(ranks) is not None:
        facts.append(idle_finding(ranks))
    return facts
