"""The pictures of an iteration: its pipelines, its model replicas, and what only all ranks together show."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

from assets.automation import FIGURES_GROUP, ITERATION_NEEDED, PICTURES_NEEDED
from assets.conventions import CODE_VERSION, OWNERS
from assets.figure_metadata import KINDS, FigureConfig, data_version, figure_metadata
from assets.partitions import iteration_partitions, ranks_of_iteration
from assets.resources import TracevizHome
from assets.step_faults import told_in_a_line
from traceviz_dag.lake.partition_keys import parse_iteration_key
from traceviz_dag.pipeline.workers import default_workers

if TYPE_CHECKING:
    from traceviz_dag.pipeline.figures import FigureTask, LakeSource

# What draws is imported inside: matplotlib takes a second, and every run of every other asset would pay for it.

_DEPENDENCIES = [
    *(dg.AssetDep(name, partition_mapping=ranks_of_iteration) for name in ("kernels", "microbatches", "overlap")),
    *(dg.AssetDep(name) for name in ("topology", "runs")),
]

_figure_asset = partial(
    dg.asset,
    partitions_def=iteration_partitions,
    group_name=FIGURES_GROUP,
    owners=OWNERS,
    kinds=KINDS,
    code_version=CODE_VERSION,
)
"""What the figures of an iteration share."""


@_figure_asset(
    name="pipeline_figures",
    deps=_DEPENDENCIES,
    automation_condition=ITERATION_NEEDED,
    description="Each pipeline: its ranks by stage, numbered micro-batches, idle stages, communication.",
)
@told_in_a_line
def pipeline_figures(
    context: dg.AssetExecutionContext, config: FigureConfig, traceviz: TracevizHome
) -> dg.MaterializeResult:
    """Draw the iteration's pipelines; of very many, those of the ranks that stand out."""
    from traceviz_dag.pipeline.figures import FigureKind, group_tasks

    return _draw(config, traceviz, group_tasks(_source(context, traceviz), (FigureKind.PIPELINE_GROUP,)))


@_figure_asset(
    name="replica_figures",
    deps=_DEPENDENCIES,
    automation_condition=ITERATION_NEEDED,
    description="Each model replica with all its pipelines, and all ranks of the job.",
)
@told_in_a_line
def replica_figures(
    context: dg.AssetExecutionContext, config: FigureConfig, traceviz: TracevizHome
) -> dg.MaterializeResult:
    """Draw the iteration's replicas and, where they are several or unknown, all ranks in one figure."""
    from traceviz_dag.pipeline.figures import FigureKind, group_tasks

    kinds = (FigureKind.MODEL_REPLICA, FigureKind.ALL_RANKS)
    return _draw(config, traceviz, group_tasks(_source(context, traceviz), kinds))


@_figure_asset(
    name="across_ranks_figures",
    deps=["collectives", "rank_clocks", "pipelines", "periods"],
    automation_condition=PICTURES_NEEDED,
    description="Who waits for whom, what the bubble is made of, how periods spread, how well the clocks agree.",
)
@told_in_a_line
def across_ranks_figures(
    context: dg.AssetExecutionContext, config: FigureConfig, traceviz: TracevizHome
) -> dg.MaterializeResult:
    """Draw the iteration's wait map, bubble waterfall, period distribution and clock residuals, as far as known."""
    from traceviz_dag.pipeline.figures import across_ranks_tasks

    return _draw(config, traceviz, across_ranks_tasks(_source(context, traceviz)))


iteration_figures = (pipeline_figures, replica_figures, across_ranks_figures)


def _source(context: dg.AssetExecutionContext, traceviz: TracevizHome) -> "LakeSource":
    from traceviz_dag.pipeline.figures import LakeSource

    run, iteration = parse_iteration_key(context.partition_key)
    return LakeSource(traceviz.lake(), run, iteration)


def _draw(config: FigureConfig, traceviz: TracevizHome, tasks: Sequence["FigureTask"]) -> dg.MaterializeResult:
    from traceviz_dag.pipeline.figures import draw_figures

    formats = config.chosen(traceviz.settings().figures)
    tasks = [replace(task, formats=formats, previewed=True) for task in tasks]
    drawn = list(draw_figures(tasks, traceviz.workers or default_workers()))
    metadata = figure_metadata(traceviz.folder, drawn)
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(data_version(drawn)))
