"""An iteration's figures from the lake to files under HOME/figures: which there are, and drawing them side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import assert_never

import pyarrow.compute as pc
from matplotlib.figure import Figure

from traceviz_dag.analyze.waits.blamed import LateRank
from traceviz_dag.errors import UsageError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import escape
from traceviz_dag.lake.read_ahead import ReadAhead
from traceviz_dag.pipeline.lake_source import LakeSource
from traceviz_dag.show.page.facts import lead_in, measures_of_ranks
from traceviz_dag.show.page.members import Group, Member, pipelines, read_members, replicas
from traceviz_dag.show.page.rendering import FORMATS, write_figure, write_preview
from traceviz_dag.show.registry import FigureKind, Scope, figure_kinds
from traceviz_dag.show.source import TableSource, rows
from traceviz_dag.system.processes import spread_in_order
from traceviz_dag.system.whole_files import remove_all_stale_temporaries
from traceviz_dag.tables.rows import TraceStatusRow
from traceviz_dag.vocabulary import FIGURES_FOLDER, TimeAlignment, TraceStatus

MOST_DRAWN = 16
"""So many ranks, pipelines or replicas are all drawn unless some are asked for; of more, those that are outliers."""

_MOST_BLAMED = 3

_MOST_PEAKS = 4

_LEAST_FOR_POOL = 4
_BACKENDS = tuple(f"matplotlib.backends.backend_{name}" for name in ("agg", "svg", "pdf"))
IMPORTED_ONCE: Sequence[str] = ("traceviz_dag.system.without_pandas", __name__, *_BACKENDS)
"""What processes that draw find imported."""

OF_A_RANK = (Scope.RANK, Scope.MEMORY_OF_RANK)
"""Scopes of which a figure is of a rank alone, and lies in a folder of its own."""


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
        if self.kind.scope in (Scope.RANK, Scope.ACROSS_RANKS, Scope.MEMORY):
            return self.kind.name
        if self.kind.scope is Scope.MEMORY_OF_RANK:
            return f"{self.kind.name}_rank_{self.number}"
        number = "" if self.number is None else f"_{self.number}"
        return f"{self.kind.name}{number}_{self.alignment.value}"

    @property
    def folder(self) -> Path:
        """Folder of its files."""
        folder = figures_folder(self.home, self.run, self.iteration)
        return folder / f"rank_{self.number:04d}" if self.kind.scope in OF_A_RANK else folder


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


def figure_tasks(
    source: LakeSource,
    kinds: Sequence[FigureKind] | None = None,
    ranks: Sequence[int] | None = None,
    *,
    every: bool = False,
) -> list[FigureTask]:
    """The figures to draw of an iteration, in the order of the kinds; of a large job those of outliers.

    Args:
        kinds: None takes all.
        ranks: those of which figures of single ranks are wanted; None takes all of a small job, else the ranks that
            stand out.
        every: draw each pipeline and replica, however many there are; otherwise those of the ranks that are outliers.

    Raises:
        UsageError: the iteration has no tables of such a rank.
    """
    numbers = _Numbers(source, ranks, every)
    wanted = figure_kinds().values() if kinds is None else kinds
    tasks = [
        FigureTask(source.lake.home, source.run, source.iteration, kind, number)
        for kind in wanted
        for number in numbers.of(kind.scope)
    ]
    # A rank's figures belong together; the others stay in the order of their kinds.
    of_ranks = [task for task in tasks if task.kind.scope in OF_A_RANK]
    others = [task for task in tasks if task.kind.scope not in OF_A_RANK]
    return sorted(of_ranks, key=lambda task: task.number or 0) + others


class _Numbers:
    """Which ranks, pipelines and replicas of an iteration are drawn; each is found out once, and only where asked."""

    def __init__(self, source: LakeSource, ranks: Sequence[int] | None, every: bool) -> None:
        self._source, self._ranks, self._every = source, ranks, every

    def of(self, scope: Scope) -> Sequence[int | None]:  # noqa: PLR0911 one per scope
        """The numbers of a scope; None is the one figure of an iteration."""
        match scope:
            case Scope.RANK:
                return self._chosen_ranks
            case Scope.PIPELINE:
                return self._notable(self._pipelines)
            case Scope.REPLICA:
                return self._notable(self._replicas)
            case Scope.ALL_RANKS:
                return [None] if self._members and len(self._replicas) != 1 else []
            case Scope.ACROSS_RANKS:
                return [None]
            case Scope.MEMORY_OF_RANK:
                return self._ranks_with_snapshot
            case Scope.MEMORY:
                return [None] if with_snapshot(self._source) else []
            case _:
                assert_never(scope)

    @cached_property
    def _ranks_with_snapshot(self) -> list[int]:
        known = with_snapshot(self._source)
        if self._ranks is not None:
            return sorted(set(self._ranks) & set(known))
        return known if self._every or len(known) <= MOST_DRAWN else largest_peaks(self._source)

    @cached_property
    def _chosen_ranks(self) -> list[int]:
        unknown = sorted(set(self._ranks or ()) - set(self._readable))
        if unknown:
            run, iteration = self._source.run, self._source.iteration
            raise UsageError(f"no tables of ranks {unknown} in {run}, iteration {iteration}")
        return self._standing_out if self._ranks is None else sorted(set(self._ranks))

    @cached_property
    def _readable(self) -> list[int]:
        return readable_ranks(self._source)

    @cached_property
    def _members(self) -> Sequence[Member]:
        return read_members(self._source)

    @cached_property
    def _pipelines(self) -> list[Group]:
        return pipelines(self._members)

    @cached_property
    def _replicas(self) -> list[Group]:
        return [group for group in replicas(self._members) if group.number is not None]

    @cached_property
    def _standing_out(self) -> list[int]:
        return notable_ranks(self._source, self._readable)

    def _notable(self, groups: list[Group]) -> list[int | None]:
        several = len(groups) > MOST_DRAWN and not self._every
        return [group.number for group in groups if not several or set(self._standing_out) & set(group.ranks)]


def readable_ranks(source: TableSource) -> list[int]:
    """Ranks whose trace could be read, by number."""
    found = rows(source, "traces", TraceStatusRow)
    return sorted(row["rank"] for row in found if row["status"] != TraceStatus.FAILED.value)


def notable_ranks(source: TableSource, ranks: Sequence[int], most: int = MOST_DRAWN) -> list[int]:
    """All of few ranks; of many, those that the first findings name, those that delay others most, and those with the
    longest computation, the most exposed communication and most idle."""
    if len(ranks) <= most:
        return list(ranks)
    found = {rank: of_rank for rank, of_rank in measures_of_ranks(source).items() if rank in set(ranks)}
    measures: list[Callable[[int], int]] = [
        lambda rank: found[rank].compute_ns,
        lambda rank: found[rank].exposed_ns,
        lambda rank: found[rank].idle_ns,
    ]
    blamed = [row for row in rows(source, "late_ranks", LateRank) if row["blamed"]]
    worst = [row["rank"] for row in sorted(blamed, key=lambda row: -row["own_ns"])[:_MOST_BLAMED]]
    chosen = [*lead_in(source).ranks[:_MOST_BLAMED], *worst]
    return sorted({*(set(chosen) & set(ranks)), *(max(found, key=measure) for measure in measures if found)})


def with_snapshot(source: TableSource) -> list[int]:
    """Ranks with a snapshot of GPU memory; what traces alone show of it is not drawn."""
    tables = (source.table(name, ("rank",)) for name in ("memory_segments", "memory_peaks"))
    return sorted({rank for table in tables for rank in pc.unique(table["rank"]).to_pylist()})


def largest_peaks(source: TableSource) -> list[int]:
    """The ranks that need most GPU memory at their peaks, a few."""
    table = source.table("memory_peaks", ("rank", "device", "moment", "requested_bytes"))
    peaks: dict[tuple[int, int], int] = {}
    for row in table.to_pylist():
        if row["moment"] == "peak":
            key = (row["rank"], row["device"])
            peaks[key] = peaks.get(key, 0) + row["requested_bytes"]
    highest = sorted(peaks, key=lambda key: (-peaks[key], key))
    return sorted(dict.fromkeys(rank for rank, _ in highest[:_MOST_PEAKS]))


def draw_figures(tasks: Sequence[FigureTask], workers: int = 1) -> Iterator[DrawnFigure]:
    """Draw figures, over several processes where there are many; in the order of the tasks.

    A task whose rank has no kernels, or whose tables show nothing, yields nothing.

    Raises:
        UsageError: figures of other packages failed; at the end, once all others are drawn.
    """
    for folder in {figures_folder(task.home, task.run, task.iteration) for task in tasks}:
        remove_all_stale_temporaries(folder)
    alone = workers <= 1 or len(tasks) < _LEAST_FOR_POOL
    faults: dict[str, int] = {}
    for drawn in (
        map(_drawn_or_fault, tasks) if alone else spread_in_order(_drawn_or_fault, tasks, workers, IMPORTED_ONCE)
    ):
        if isinstance(drawn, DrawnFigure):
            yield drawn
        elif drawn is not None:
            faults[drawn] = faults.get(drawn, 0) + 1
    if faults:
        raise UsageError(
            "; ".join(f"{fault} ({times} times)" if times > 1 else fault for fault, times in faults.items())
        )


def _drawn_or_fault(task: FigureTask) -> DrawnFigure | str | None:
    """The figure; of one of another package that fails, why it does: it costs no other figure."""
    try:
        return draw_figure(task)
    except UsageError as error:
        if task.kind.is_own:
            raise
        return str(error)


def draw_figure(task: FigureTask) -> DrawnFigure | None:
    """Draw one figure and write its files; None where there is nothing to draw."""
    lake = Lake(task.home)
    # Of fewer ranks, most of what is read ahead would be of others.
    ahead = ReadAhead(lake, task.run, task.iteration) if task.kind.scope is Scope.ALL_RANKS else None
    source = LakeSource(lake, task.run, task.iteration, ahead)
    try:
        figure = draw(source, task)
    except (Exception, SystemExit) as error:
        if not task.kind.is_own:
            raise _fault_of(task, f"failed ({type(error).__name__}: {error})") from error
        error.add_note(f"while {task.name} of {task.run}, iteration {task.iteration} was drawn")
        raise
    if figure is not None and not isinstance(figure, Figure):
        raise _fault_of(task, f"gave a {type(figure).__name__}, no matplotlib Figure")
    if figure is None:
        return None
    paths = write_figure(figure, task.folder, task.name, task.formats)
    small = write_preview(figure, task.folder, task.name) if task.previewed else None
    return DrawnFigure(task, str(figure.get_label()), paths, small)


def _fault_of(task: FigureTask, told: str) -> UsageError:
    return UsageError(f"figure {task.kind.name}: {task.kind.drawer} {told}; fix it")


def draw(source: TableSource, task: FigureTask) -> Figure | None:
    """A figure as matplotlib has it; None where there is nothing to draw."""
    drawer = task.kind.load()
    match task.kind.scope:
        case Scope.RANK | Scope.MEMORY_OF_RANK:
            return drawer(source, task.number)
        case Scope.PIPELINE | Scope.REPLICA | Scope.ALL_RANKS:
            return drawer(source, task.number, task.alignment)
        case Scope.ACROSS_RANKS | Scope.MEMORY:
            return drawer(source)
        case _:
            assert_never(task.kind.scope)
