"""The pictures of an iteration: its pipelines, its model replicas, what all ranks together show, and GPU memory."""

from dataclasses import replace

import dagster as dg

from assets.automation import ITERATION_NEEDED, PICTURES_NEEDED
from assets.figure_assets import kinds_drawn_by
from assets.figure_metadata import KINDS, FigureConfig, data_version, figure_metadata
from assets.partitions import one_iteration
from assets.reading import figures_description
from assets.resources import TracevizHome
from assets.shown import shows_iteration
from traceviz_dag.pipeline.engines import default_workers
from traceviz_dag.show.registry import tables_of


def _figure_asset(name: str, condition: dg.AutomationCondition[dg.AssetKey]) -> dg.AssetsDefinition:
    """The asset that draws an iteration's figures of some kinds."""
    kinds = kinds_drawn_by(name)

    @shows_iteration(name, tables_of(kinds), figures_description(kinds), KINDS, condition)
    def draw(context: dg.AssetExecutionContext, config: FigureConfig, traceviz: TracevizHome) -> dg.MaterializeResult:
        """Draw what there is to draw; of very many pipelines or replicas, those of the ranks that are outliers."""
        # Imported here: matplotlib takes a second, and every run of every other asset would pay for it.
        from traceviz_dag.pipeline.figures import draw_figures, figure_tasks
        from traceviz_dag.pipeline.lake_source import LakeSource

        run, iteration = one_iteration(context)
        formats = config.chosen(traceviz.settings().figures)
        tasks = figure_tasks(LakeSource(traceviz.lake(), run, iteration), kinds)
        tasks = [replace(task, formats=formats, previewed=True) for task in tasks]
        drawn = list(draw_figures(tasks, traceviz.workers or default_workers()))
        metadata = figure_metadata(traceviz.folder, drawn)
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(data_version(drawn)))

    return draw


pipeline_figures = _figure_asset("pipeline_figures", ITERATION_NEEDED)
replica_figures = _figure_asset("replica_figures", ITERATION_NEEDED)
across_ranks_figures = _figure_asset("across_ranks_figures", PICTURES_NEEDED)
memory_figures = _figure_asset("memory_figures", PICTURES_NEEDED)
iteration_figures = (pipeline_figures, replica_figures, across_ranks_figures, memory_figures)
