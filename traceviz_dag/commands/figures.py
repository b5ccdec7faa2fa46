"""``traceviz figures``: the pictures of an iteration, from the lake or straight from traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceviz_dag.commands.common.failures import end_failed, end_half_renewed, tell_failures, vanished_lines
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, terminal
from traceviz_dag.commands.common.partial import end_partial
from traceviz_dag.errors import BadInputError, NoEvidenceError, UsageError
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.show.page.alignment import TimeAlignment
from traceviz_dag.system.paths import real_path

if TYPE_CHECKING:
    from traceviz_dag.orchestration.orchestrate import IterationResult
    from traceviz_dag.pipeline.completeness import Completeness
    from traceviz_dag.pipeline.figures import DrawnFigure, FigureKind, FigureTask, LakeSource

AlignmentOption = Annotated[
    TimeAlignment,
    typer.Option(
        "--time-alignment",
        help="global: one time axis, clocks as recorded; individual: each rank starts at its first kernel; "
        "solved: one time axis, on clocks solved from matched communications.",
    ),
]
ProcessesOption = Annotated[
    int,
    typer.Option("--processes", "-p", "--workers", min=0, help="Number of processes; 0 = one per core."),
]

_SEVERAL = "separated by commas"


def figures(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Run folders, iteration folders or trace files; default: what the home holds."),
    ] = None,
    run: Annotated[str | None, typer.Option(help="Draw only this run.")] = None,
    iteration: Annotated[int | None, typer.Option(help="Draw only this iteration.")] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="Figures to draw: rank_timeline, overlap_bars, pipeline_group, model_replica, all_ranks, wait_map, "
            f"bubble_waterfall, period_distribution, clock_residuals; {_SEVERAL}, default: all."
        ),
    ] = "",
    ranks: Annotated[
        str, typer.Option(help=f"Ranks to draw: all, or numbers {_SEVERAL}; default: those that stand out.")
    ] = "",
    every: Annotated[
        bool, typer.Option("--every", help="Draw every pipeline and replica, however many there are.")
    ] = False,
    formats: Annotated[str, typer.Option(help=f"Files to write: png, svg, pdf; {_SEVERAL}.")] = "png,svg,pdf",
    time_alignment: AlignmentOption = TimeAlignment.GLOBAL,
    processes: ProcessesOption = 0,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Draw rank timelines, overlap bars, pipelines, replicas, waits, bubbles, periods and clocks into HOME/figures.

    New or changed traces are analysed first. A small job is drawn whole. Of a large one, only some ranks are drawn,
    with their pipelines: those with the longest computation, the most exposed communication and the most idle time.
    """
    wanted, endings = _kinds(kind), _formats(formats)
    with iterations_of(real_path(home), paths or [], run, iteration) as chosen:
        drawn = []
        for source in chosen:
            tasks = [
                replace(task, formats=endings, alignment=time_alignment, previewed=True)
                for task in _tasks(source, wanted, ranks, every)
            ]
            drawn += _draw(source, tasks, processes, quiet=json)
        if json:
            print_json(
                [
                    {
                        "run": figure.task.run,
                        "iteration": figure.task.iteration,
                        "kind": figure.task.kind.value,
                        "number": figure.task.number,
                        "title": figure.title,
                        "files": {name: str(path) for name, path in figure.paths.items()},
                    }
                    for figure in drawn
                ]
            )
        end_partial(completeness_of(chosen, paths or []))
        if not drawn:
            raise NoEvidenceError("no figure could be drawn: the tables of these iterations hold no rows for them")


def _draw(source: LakeSource, tasks: Sequence[FigureTask], processes: int, *, quiet: bool) -> list[DrawnFigure]:
    """Draw the figures of one iteration, and say where they are unless quiet."""
    from traceviz_dag.orchestration.orchestrate import figure_inputs, record_figures
    from traceviz_dag.pipeline.figures import draw_figures
    from traceviz_dag.pipeline.workers import default_workers

    console = terminal(stderr=True)
    console.print(f"{source.run}, iteration {source.iteration}: {len(tasks)} figures to draw", highlight=False)
    drawn = []
    inputs = figure_inputs(source.lake.home)
    left = {(task.kind, task.number) for task in tasks}
    for figure in draw_figures(tasks, processes or default_workers()):
        drawn.append(figure)
        left.discard((figure.task.kind, figure.task.number))
        if not quiet:
            first = next(iter(figure.paths.values()))
            others = "".join(f" {path.suffix}" for path in list(figure.paths.values())[1:])
            typer.echo(f"{figure.title}\n  {first}{others}")
    for empty, number in sorted(left, key=str):
        which = empty.value if number is None else f"{empty.value} {number}"
        typer.echo(f"traceviz: {source.run}, iteration {source.iteration}: no {which}: no rows to draw", err=True)
    if drawn:
        record_figures(source.lake.home, tasks, drawn, inputs)
    return drawn


@contextmanager
def iterations_of(
    home: Path, paths: Sequence[Path], run: str | None, iteration: int | None
) -> Iterator[list[LakeSource]]:
    """The iterations that a command is to show; traces below the paths are analysed first.

    Raises:
        BadInputError: the home, or what is left of it, holds no analysed traces.
        IncompleteError: at the end, where a step of that analysis failed, or the last one was cut off.
    """
    from traceviz_dag.pipeline.figures import LakeSource

    results = _analysed(home, paths) if paths else []
    keys = {(result.run, result.iteration) for result in results}
    lake = Lake(home) if not (home / "lake").is_dir() else open_lake(home)
    found = [
        LakeSource(lake, partition.run, partition.iteration)
        for partition in lake.partitions("topology", run, iteration)
        if not paths or (partition.run, partition.iteration) in keys
    ]
    if not found:
        raise BadInputError(
            home, "holds no such iteration", "name traces to analyse, or another run, iteration or home"
        )
    yield found
    end_failed(results)
    end_half_renewed(home, [(source.run, source.iteration) for source in found])


def completeness_of(sources: Sequence[LakeSource], paths: Sequence[Path]) -> list[Completeness]:
    """What of the shown iterations was not read; where the user named each rank's file, the others are not missed."""
    from traceviz_dag.lake.inputs import registered_if_any
    from traceviz_dag.lake.partition_keys import iteration_key
    from traceviz_dag.pipeline.completeness import ranks_chosen_by_name, stored_completeness

    found = []
    for source in sources:
        inputs = registered_if_any(source.lake.home, iteration_key(source.run, source.iteration))
        one = stored_completeness(source.lake, source.run, source.iteration, inputs)
        meant = inputs is not None and ranks_chosen_by_name(inputs, paths)
        found.append(replace(one, missing=()) if meant else one)
    return found


def _analysed(home: Path, paths: Sequence[Path]) -> list[IterationResult]:
    """What became of the traces below the paths; what is there and unchanged is not analysed again."""
    from traceviz_dag.orchestration.orchestrate import AnalysisSettings, analyse
    from traceviz_dag.pipeline.discovery import inputs_below

    inputs = inputs_below(paths, home=home, with_known=True)
    results = analyse(AnalysisSettings(home, allow_partial=True), inputs)
    for warning in dict.fromkeys(warning for entry in inputs for warning in entry.warnings):
        typer.echo(f"traceviz: {warning}", err=True)
    for line in vanished_lines(results):
        typer.echo(f"traceviz: {line}", err=True)
    tell_failures(results)
    return results


def _tasks(source: LakeSource, kinds: Sequence[FigureKind], ranks: str, every: bool) -> list[FigureTask]:
    from traceviz_dag.pipeline.figures import (
        GROUP_KINDS,
        RANK_KINDS,
        across_ranks_tasks,
        group_tasks,
        rank_tasks,
        readable_ranks,
    )

    numbers: list[int] | None = None
    if ranks == "all":
        numbers = readable_ranks(source)
    elif ranks:
        numbers = [_number(word) for word in _words(ranks)]
    of_ranks = [kind for kind in kinds if kind in RANK_KINDS]
    tasks = rank_tasks(source, numbers, of_ranks) if of_ranks else []
    tasks += group_tasks(source, [kind for kind in kinds if kind in GROUP_KINDS], every)
    return tasks + across_ranks_tasks(source, kinds)


def _kinds(words: str) -> list[FigureKind]:
    from traceviz_dag.pipeline.figures import FigureKind

    known = [kind.value for kind in FigureKind]
    unknown = [word for word in _words(words) if word not in known]
    if unknown:
        raise UsageError(f"no figure {', '.join(unknown)}; there are {', '.join(known)}")
    return [FigureKind(word) for word in _words(words) or known]


def _formats(words: str) -> tuple[str, ...]:
    from traceviz_dag.show.page.rendering import FORMATS

    unknown = [word for word in _words(words) if word not in FORMATS]
    if unknown or not _words(words):
        raise UsageError(f"no figure format {', '.join(unknown) or 'is given'}; there are {', '.join(FORMATS)}")
    return _words(words)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def _number(word: str) -> int:
    if not word.isdecimal():
        raise UsageError(f"{word!r} in --ranks is no rank; give numbers, or all")
    return int(word)
