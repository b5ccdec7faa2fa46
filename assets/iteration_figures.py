"""The pictures of an iteration: its pipelines, its model replicas and, where there are several, all ranks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import dagster as dg

from assets.conventions import CODE_VERSION, OWNERS
from assets.figure_metadata import KINDS, FigureConfig, data_version, figure_metadata
from assets.partitions import iteration_partitions, ranks_of_iteration
from assets.resources import TracevizHome
from traceviz_dag.lake.partition_keys import parse_iteration_key
from traceviz_dag.workers import default_workers

if TYPE_CHECKING:
    from traceviz_dag.figure_pipeline import FigureKind

_DEPENDENCIES = [
    *(dg.AssetDep(name, partition_mapping=ranks_of_iteration) for name in ("kernels", "microbatches", "overlap")),
    *(dg.AssetDep(name) for name in ("topology", "runs")),
]


@dg.asset(
    name="pipeline_figures",
    deps=_DEPENDENCIES,
    partitions_def=iteration_partitions,
    group_name="figures",
    owners=OWNERS,
    kinds=KINDS,
    code_version=CODE_VERSION,
    description="Each pipeline: its ranks by stage, numbered micro-batches, bubbles, communication.",
)
def pipeline_figures(
    context: dg.AssetExecutionContext, config: FigureConfig, traceviz: TracevizHome
) -> dg.MaterializeResult:
    """Draw the iteration's pipelines; of very many, those of the ranks that stand out."""
    from traceviz_dag.figure_pipeline import FigureKind

    return _draw(context, config, traceviz, (FigureKind.PIPELINE_GROUP,))


@dg.asset(
    name="replica_figures",
    deps=_DEPENDENCIES,
    partitions_def=iteration_partitions,
    group_name="figures",
    owners=OWNERS,
    kinds=KINDS,
    code_version=CODE_VERSION,
    description="Each model replica with all its pipelines, and all ranks of the job.",
)
def replica_figures(
    context: dg.AssetExecutionContext, config: FigureConfig, traceviz: TracevizHome
) -> dg.MaterializeResult:
    """Draw the iteration's replicas and, where they are several or unknown, all ranks in one figure."""
    from traceviz_dag.figure_pipeline import FigureKind

    return _draw(context, config, traceviz, (FigureKind.MODEL_REPLICA, FigureKind.ALL_RANKS))


iteration_figures = (pipeline_figures, replica_figures)


def _draw(
    context: dg.AssetExecutionContext, config: FigureConfig, traceviz: TracevizHome, kinds: Sequence["FigureKind"]
) -> dg.MaterializeResult:
    # Imported here: matplotlib takes a second, and every run of every other asset would pay for it.
    from traceviz_dag.figure_pipeline import LakeSource, draw_figures, group_tasks

    run, iteration = parse_iteration_key(context.partition_key)
    source = LakeSource(traceviz.lake(), run, iteration)
    tasks = [replace(task, formats=tuple(config.formats), previewed=True) for task in group_tasks(source, kinds)]
    drawn = list(draw_figures(tasks, traceviz.workers or default_workers()))
    return dg.MaterializeResult(metadata=figure_metadata(drawn), data_version=dg.DataVersion(data_version(drawn)))
