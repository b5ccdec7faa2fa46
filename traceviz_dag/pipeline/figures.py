"""An iteration's figures from the lake to files under HOME/figures: which there are, and drawing them side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
from matplotlib.figure import Figure

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import escape
from traceviz_dag.show.figures.bubble_waterfall import draw_bubble_waterfall
from traceviz_dag.show.figures.clock_residuals import draw_clock_residuals
from traceviz_dag.show.figures.model_replica import draw_model_replica
from traceviz_dag.show.figures.overlap_bars import draw_overlap_bars
from traceviz_dag.show.figures.period_distribution import draw_period_distribution
from traceviz_dag.show.figures.pipeline_group import draw_pipeline_group
from traceviz_dag.show.figures.rank_timeline import draw_rank_timeline
from traceviz_dag.show.figures.wait_map import draw_wait_map
from traceviz_dag.show.page.alignment import TimeAlignment
from traceviz_dag.show.page.facts import rank_measures
from traceviz_dag.show.page.members import pipelines, read_members, replicas
from traceviz_dag.show.page.rendering import FORMATS, preview, write_figure
from traceviz_dag.show.source import TableSource, empty_table, rows
from traceviz_dag.system.processes import spread_in_order
from traceviz_dag.system.whole_files import remove_all_stale_temporaries, write_atomically
from traceviz_dag.tables.rows import TraceStatusRow
from traceviz_dag.vocabulary import FIGURES_FOLDER, TraceStatus

PREVIEWS = "previews"
"""Folder of small pictures beside the large ones."""

MOST_DRAWN = 16
"""So many ranks, pipelines or replicas are all drawn unless some are asked for; of more, those that stand out."""

_LEAST_FOR_POOL = 4


class FigureKind(StrEnum):
    """The figures there are; each is also the beginning of its files' names."""

    RANK_TIMELINE = "rank_timeline"
    OVERLAP_BARS = "overlap_bars"
    PIPELINE_GROUP = "pipeline_group"
    MODEL_REPLICA = "model_replica"
    ALL_RANKS = "all_ranks"
    WAIT_MAP = "wait_map"
    BUBBLE_WATERFALL = "bubble_waterfall"
    PERIOD_DISTRIBUTION = "period_distribution"
    CLOCK_RESIDUALS = "clock_residuals"


RANK_KINDS = (FigureKind.RANK_TIMELINE, FigureKind.OVERLAP_BARS)
GROUP_KINDS = (FigureKind.PIPELINE_GROUP, FigureKind.MODEL_REPLICA, FigureKind.ALL_RANKS)
ACROSS_RANKS_KINDS = {
    FigureKind.WAIT_MAP: draw_wait_map,
    FigureKind.BUBBLE_WATERFALL: draw_bubble_waterfall,
    FigureKind.PERIOD_DISTRIBUTION: draw_period_distribution,
    FigureKind.CLOCK_RESIDUALS: draw_clock_residuals,
}
"""One figure an iteration each, from the tables across ranks."""


@dataclass(frozen=True, slots=True)
class LakeSource:
    """The tables of one iteration in the lake, as figures take them."""

    lake: Lake
    run: str
    iteration: int

    def table(self, name: str, columns: Sequence[str], rank: int | None = None) -> pa.Table:
        """The chosen columns; no rows where the partition was not written."""
        if not self.lake.partitions(name, self.run, self.iteration, rank):
            return empty_table(name, columns)
        return self.lake.table(name, self.run, self.iteration, rank).arrow(columns)


@dataclass(frozen=True, slots=True)
class FigureTask:
    """One figure to draw.

    Attributes:
        number: rank, pipeline or replica, by kind; None for all ranks.
        previewed: whether a small PNG is wanted beside the files.
    """

    home: Path
    run: str
    iteration: int
    kind: FigureKind
    number: int | None
    alignment: TimeAlignment = TimeAlignment.GLOBAL
    formats: tuple[str, ...] = FORMATS
    previewed: bool = False

    @property
    def name(self) -> str:
        """Name of its files, without ending."""
        if self.kind in RANK_KINDS or self.kind in ACROSS_RANKS_KINDS:
            return self.kind.value
        number = "" if self.number is None else f"_{self.number}"
        return f"{self.kind.value}{number}_{self.alignment.value}"

    @property
    def folder(self) -> Path:
        """Folder of its files."""
        folder = figures_folder(self.home, self.run, self.iteration)
        return folder / f"rank_{self.number:04d}" if self.kind in RANK_KINDS else folder


@dataclass(frozen=True, slots=True)
class DrawnFigure:
    """One figure as it was written.

    Attributes:
        title: the finding.
        paths: format → file.
        preview: file of a small PNG; None where none was wanted.
    """

    task: FigureTask
    title: str
    paths: dict[str, Path]
    preview: Path | None


def figures_folder(home: Path, run: str, iteration: int) -> Path:
    """HOME/figures/RUN/ITERATION, the run's name escaped as in the lake."""
    return home / FIGURES_FOLDER / escape(run) / str(iteration)


def rank_tasks(
    source: LakeSource,
    ranks: Sequence[int] | None = None,
    kinds: Sequence[FigureKind] = RANK_KINDS,
    most: int = MOST_DRAWN,
) -> list[FigureTask]:
    """The figures of ranks; None takes all of a small job, else the ranks that stand out.

    Args:
        most: ranks of which a small job has no more.

    Raises:
        UsageError: the iteration has no tables of such a rank.
    """
    known = readable_ranks(source)
    unknown = sorted(set(ranks or ()) - set(known))
    if unknown:
        raise UsageError(f"no tables of ranks {unknown} in {source.run}, iteration {source.iteration}")
    chosen = notable_ranks(source, known, most) if ranks is None else sorted(set(ranks))
    wanted = [kind for kind in RANK_KINDS if kind in kinds]
    return [_task(source, kind, rank) for rank in chosen for kind in wanted]


def group_tasks(source: LakeSource, kinds: Sequence[FigureKind] = GROUP_KINDS, every: bool = False) -> list[FigureTask]:
    """The figures of pipelines and replicas, and of all ranks where they are not one replica.

    Args:
        every: draw each of them, however many there are; otherwise those of the ranks that stand out.
    """
    members = read_members(source)
    if not members:
        return []
    notable = set(notable_ranks(source, readable_ranks(source)))
    tasks = []
    groups = {
        FigureKind.PIPELINE_GROUP: pipelines(members),
        FigureKind.MODEL_REPLICA: [group for group in replicas(members) if group.number is not None],
    }
    for kind, found in groups.items():
        if kind in kinds:
            several = len(found) > MOST_DRAWN and not every
            chosen = [group for group in found if not several or notable & set(group.ranks)]
            tasks += [_task(source, kind, group.number) for group in chosen]
    if FigureKind.ALL_RANKS in kinds and len(groups[FigureKind.MODEL_REPLICA]) != 1:
        tasks.append(_task(source, FigureKind.ALL_RANKS, None))
    return tasks


def across_ranks_tasks(source: LakeSource, kinds: Sequence[FigureKind] = tuple(ACROSS_RANKS_KINDS)) -> list[FigureTask]:
    """The figures across ranks; one of which the tables tell nothing is not drawn."""
    return [_task(source, kind, None) for kind in ACROSS_RANKS_KINDS if kind in kinds]


def readable_ranks(source: TableSource) -> list[int]:
    """Ranks whose trace could be read, by number."""
    found = rows(source, "traces", TraceStatusRow)
    return sorted(row["rank"] for row in found if row["status"] != TraceStatus.FAILED.value)


def notable_ranks(source: TableSource, ranks: Sequence[int], most: int = MOST_DRAWN) -> list[int]:
    """All of few ranks; of many, those with the longest computation, the most exposed communication and most idle."""
    if len(ranks) <= most:
        return list(ranks)
    found = {rank: of_rank for rank in ranks if (of_rank := rank_measures(source, rank)) is not None}
    measures: list[Callable[[int], int]] = [
        lambda rank: found[rank].compute_ns,
        lambda rank: found[rank].exposed_ns,
        lambda rank: found[rank].idle_ns,
    ]
    return sorted({max(found, key=measure) for measure in measures}) if found else []


def draw_figures(tasks: Sequence[FigureTask], workers: int = 1) -> Iterator[DrawnFigure]:
    """Draw figures, over several processes where there are many; in the order of the tasks.

    A task whose rank has no kernels, or whose tables tell nothing, yields nothing.
    """
    for folder in {figures_folder(task.home, task.run, task.iteration) for task in tasks}:
        remove_all_stale_temporaries(folder)
    if workers <= 1 or len(tasks) < _LEAST_FOR_POOL:
        yield from (drawn for task in tasks if (drawn := draw_figure(task)) is not None)
        return
    yield from (drawn for drawn in spread_in_order(draw_figure, tasks, workers) if drawn is not None)


def draw_figure(task: FigureTask) -> DrawnFigure | None:
    """Draw one figure and write its files; None where there is nothing to draw."""
    source = LakeSource(Lake(task.home), task.run, task.iteration)
    try:
        figure = _drawn(source, task)
    except Exception as error:
        error.add_note(f"while {task.name} of {task.run}, iteration {task.iteration} was drawn")
        raise
    if figure is None:
        return None
    paths = write_figure(figure, task.folder, task.name, task.formats)
    small = task.folder / PREVIEWS / f"{task.name}.png" if task.previewed else None
    if small is not None:
        write_atomically(small, preview(figure))
    return DrawnFigure(task, str(figure.get_label()), paths, small)


def _drawn(source: TableSource, task: FigureTask) -> Figure | None:
    if task.kind in ACROSS_RANKS_KINDS:
        return ACROSS_RANKS_KINDS[task.kind](source)
    match task.kind, task.number:
        case FigureKind.RANK_TIMELINE, int(rank):
            return draw_rank_timeline(source, rank)
        case FigureKind.OVERLAP_BARS, int(rank):
            return draw_overlap_bars(source, rank)
        case FigureKind.PIPELINE_GROUP, int(pipeline):
            return draw_pipeline_group(source, pipeline, task.alignment)
        case _:
            return draw_model_replica(source, task.number, task.alignment)


def _task(source: LakeSource, kind: FigureKind, number: int | None) -> FigureTask:
    return FigureTask(source.lake.home, source.run, source.iteration, kind, number)
