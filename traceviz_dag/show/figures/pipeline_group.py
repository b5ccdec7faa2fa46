"""Pipeline group: the stages of one pipeline on one axis, micro-batch numbers in the blocks, idle stages in grey."""

from __future__ import annotations

from types import MappingProxyType

from matplotlib.figure import Figure

from traceviz_dag.errors import UsageError
from traceviz_dag.show.figures.group_figure import Words, draw_row_groups
from traceviz_dag.show.figures.rank_summary import idle_finding, step_facts
from traceviz_dag.show.page.alignment import Spans
from traceviz_dag.show.page.facts import ranks_named
from traceviz_dag.show.page.members import pipelines, read_members
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import TimeAlignment


def draw_pipeline_group(
    source: TableSource,
    pipeline: int,
    alignment: TimeAlignment = TimeAlignment.GLOBAL,
    further: Spans = MappingProxyType({}),
) -> Figure:
    """Draw one pipeline, a row per stage.

    Args:
        pipeline: its ordinal in the table topology.
        further: spans of other ranks that the axis must hold, so that several figures have one axis.

    Raises:
        UsageError: the topology knows no such pipeline.
    """
    known = {group.number: group for group in pipelines(read_members(source))}
    if pipeline not in known:
        names = ", ".join(str(number) for number in known) or "none"
        raise UsageError(f"no pipeline {pipeline} in {source.run}, iteration {source.iteration}; known are {names}")
    group = known[pipeline]
    who = f"{len(group.ranks)} {'stage' if len(group.ranks) == 1 else 'stages'} on {ranks_named(group.ranks)}"
    words = Words(f"Pipeline {pipeline}", idle_finding, lambda ranks: [who, *step_facts(ranks)])
    return draw_row_groups(source, [("", group)], words, alignment, further)
