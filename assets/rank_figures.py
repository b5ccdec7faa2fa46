"""The pictures of single ranks. They have a trigger of their own: a run that makes the tables leaves them out."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import dagster as dg

from assets.conventions import CODE_VERSION, CODE_VERSION_TAG, DATA_VERSION_TAG, OWNERS
from assets.figure_metadata import KINDS, FigureConfig, data_version, figure_metadata
from assets.partitions import rank_trace_key, rank_trace_partitions, ranks_by_iteration
from assets.resources import TracevizHome
from assets.step_faults import told_in_a_line
from traceviz_dag.lake.partition_keys import parse_iteration_key, parse_rank_key, rank_key
from traceviz_dag.workers import default_workers

if TYPE_CHECKING:
    from traceviz_dag.figure_pipeline import DrawnFigure


@dg.asset(
    name="rank_figures",
    deps=["kernels", "microbatches", "overlap"],
    partitions_def=rank_trace_partitions,
    backfill_policy=dg.BackfillPolicy.single_run(),
    group_name="figures",
    owners=OWNERS,
    kinds=KINDS,
    code_version=CODE_VERSION,
    description="Timeline and overlap bars of each rank, as PNG, SVG and PDF under HOME/figures.",
    output_required=False,
)
@told_in_a_line
def rank_figures(
    context: dg.AssetExecutionContext, config: FigureConfig, traceviz: TracevizHome
) -> Iterator[dg.Output[None]]:
    """Draw the ranks of the run's partitions that have tables; each is recorded as it is drawn.

    No output is yielded, as in ``rank_tables``: a pair of iteration and rank without a trace stays unmaterialised.
    """
    # Imported here: matplotlib takes a second, and every run of every other asset would pay for it.
    from traceviz_dag.figure_pipeline import LakeSource, draw_figures, rank_tasks, readable_ranks

    for key, ranks in ranks_by_iteration(context.partition_keys).items():
        run, iteration = parse_iteration_key(key)
        source = LakeSource(traceviz.lake(), run, iteration)
        wanted = {parse_rank_key(rank) for rank in ranks} & set(readable_ranks(source))
        tasks = [
            replace(task, formats=tuple(config.formats), previewed=True) for task in rank_tasks(source, sorted(wanted))
        ]
        by_rank: dict[int, list[DrawnFigure]] = {}
        for drawn in draw_figures(tasks, traceviz.workers or default_workers()):
            rank = drawn.task.number or 0
            of_rank = by_rank.setdefault(rank, [])
            of_rank.append(drawn)
            if len(of_rank) == sum(task.number == rank for task in tasks):
                _record(context, key, rank, of_rank)
    yield from ()


def _record(context: dg.AssetExecutionContext, key: str, rank: int, drawn: list["DrawnFigure"]) -> None:
    context.log_event(
        dg.AssetMaterialization(
            asset_key="rank_figures",
            partition=str(rank_trace_key(key, rank_key(rank))),
            metadata=figure_metadata(drawn),
            tags={DATA_VERSION_TAG: data_version(drawn), CODE_VERSION_TAG: CODE_VERSION},
        )
    )
