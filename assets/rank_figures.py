"""The pictures of single ranks: drawn once the iteration is whole, since the outliers are known only then."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg
from xxhash import xxh3_128_hexdigest

from assets.automation import FIGURES_GROUP, RANKS_NEEDED
from assets.conventions import DATA_VERSION_TAG, ONLY_STALE_TAG, OWNERS
from assets.figure_assets import kinds_drawn_by
from assets.figure_metadata import KINDS, FigureConfig, event
from assets.lineage.provenance import input_tags, latest_tags
from assets.partitions import (
    rank_trace_key,
    rank_trace_partitions,
    ranks_by_iteration,
    ranks_of_iteration,
    table_of_rank,
)
from assets.reading import figures_description
from assets.resources import TracevizHome
from assets.step_faults import told_in_a_line
from traceviz_dag.lake.partition_keys import iteration_key, parse_iteration_key, parse_rank_key, rank_key
from traceviz_dag.pipeline.engines import default_workers
from traceviz_dag.pipeline.home_settings import FigureSettings
from traceviz_dag.pipeline.made import CODE_VERSION
from traceviz_dag.pipeline.steps import is_by_rank, with_leads
from traceviz_dag.show.registry import tables_of
from traceviz_dag.tables import all_tables

if TYPE_CHECKING:
    from traceviz_dag.pipeline.figures import DrawnFigure
    from traceviz_dag.pipeline.lake_source import LakeSource


NAME = "rank_figures"
_KINDS = kinds_drawn_by(NAME)
_TABLES = tables_of(_KINDS)
_MADE_OF = "traceviz/made_of"


@dg.asset(
    name=NAME,
    deps=[
        *map(table_of_rank, with_leads(_TABLES)),
        # What is asked for automatically waits for all ranks.
        dg.AssetDep("iterations", partition_mapping=ranks_of_iteration),
    ],
    automation_condition=RANKS_NEEDED,
    partitions_def=rank_trace_partitions,
    backfill_policy=dg.BackfillPolicy.single_run(),
    group_name=FIGURES_GROUP,
    owners=OWNERS,
    kinds=KINDS,
    code_version=CODE_VERSION,
    description=figures_description(_KINDS),
    output_required=False,
)
@told_in_a_line
def rank_figures(
    context: dg.AssetExecutionContext, config: FigureConfig, traceviz: TracevizHome
) -> Iterator[dg.Output[None]]:
    """Draw the ranks of the run's partitions that have tables; each is recorded as it is drawn.

    What automation asks for is limited to the ranks that ``[figures]`` in traceviz.toml chooses, and to those whose
    tables are not the ones that their figures were drawn from. What a person asks for is drawn.

    No output is yielded, as in ``rank_tables``: a pair of iteration and rank without a trace stays unmaterialised.
    """
    # Imported here: matplotlib takes a second, and every run of every other asset would pay for it.
    from traceviz_dag.pipeline.figures import draw_figures, figure_tasks, readable_ranks
    from traceviz_dag.pipeline.lake_source import LakeSource

    settings = traceviz.settings().figures
    formats = config.chosen(settings)
    by_itself = context.run.tags.get(ONLY_STALE_TAG) == "true"
    for key, ranks in ranks_by_iteration(context.partition_keys).items():
        run, iteration = parse_iteration_key(key)
        source = LakeSource(traceviz.lake(), run, iteration)
        wanted = {parse_rank_key(rank) for rank in ranks} & set(readable_ranks(source))
        if by_itself:
            wanted &= _chosen_ranks(source, settings)
        made_of = _made_of(context.instance, source, wanted, formats)
        inputs = input_tags(context.instance, rank_figures, NAME)
        if by_itself:
            drawn_of = latest_tags(context.instance, NAME, [_partition(key, rank) for rank in wanted])
            wanted = {rank for rank in wanted if drawn_of.get(_partition(key, rank), {}).get(_MADE_OF) != made_of[rank]}
        tasks = figure_tasks(source, _KINDS, sorted(wanted))
        tasks = [replace(task, formats=formats, previewed=True) for task in tasks]
        by_rank: dict[int, list[DrawnFigure]] = {}
        for drawn in draw_figures(tasks, traceviz.workers or default_workers()):
            rank = drawn.task.number or 0
            of_rank = by_rank.setdefault(rank, [])
            of_rank.append(drawn)
            if len(of_rank) == sum(task.number == rank for task in tasks):
                tags = {**inputs, _MADE_OF: made_of[rank]}
                context.log_event(event(NAME, _partition(key, rank), traceviz.folder, of_rank, tags))
    yield from ()


def _partition(key: str, rank: int) -> str:
    return str(rank_trace_key(key, rank_key(rank)))


def _chosen_ranks(source: "LakeSource", settings: FigureSettings) -> set[int]:
    """The ranks that are drawn by themselves."""
    from traceviz_dag.pipeline.figures import notable_ranks, readable_ranks

    if settings.ranks == "none":
        return set()
    ranks = readable_ranks(source)
    return set(ranks if settings.ranks == "all" else notable_ranks(source, ranks, settings.most_ranks))


def _made_of(
    instance: dg.DagsterInstance, source: "LakeSource", ranks: Iterable[int], formats: Sequence[str]
) -> dict[int, str]:
    """Rank → a digest of what its figures are drawn from, and of the formats.

    Of a table of the iteration, the rows of the rank count where it has such: what changes of others redraws nothing.
    """
    key = iteration_key(source.run, source.iteration)
    partitions = {rank: _partition(key, rank) for rank in ranks}
    versions = [latest_tags(instance, table, list(partitions.values())) for table in _TABLES if is_by_rank(table)]
    shared = [_rows(source, table) for table in _TABLES if not is_by_rank(table)]
    return {
        rank: xxh3_128_hexdigest(
            " ".join(
                [
                    *(of.get(name, {}).get(DATA_VERSION_TAG, "") for of in versions),
                    *(str([row for row in rows if row.get("rank", rank) == rank]) for rows in shared),
                    *formats,
                ]
            ).encode()
        )
        for rank, name in partitions.items()
    }


def _rows(source: "LakeSource", table: str) -> list[dict[str, Any]]:
    return source.table(table, [column.name for column in all_tables()[table].columns]).to_pylist()
