"""``traceviz figures``: the pictures of an iteration, from the lake or straight from traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from traceviz_dag.analyze.wording import counted
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, terminal
from traceviz_dag.commands.common.partial import end_partial
from traceviz_dag.commands.common.shown import (
    AlignmentOption,
    ProcessesOption,
    ShownPathsArgument,
    completeness_of,
    iterations_of,
)
from traceviz_dag.errors import NoEvidenceError, UsageError
from traceviz_dag.show.registry import FigureKind, figure_kinds
from traceviz_dag.system.paths import real_path
from traceviz_dag.vocabulary import TimeAlignment

if TYPE_CHECKING:
    from traceviz_dag.pipeline.figures import DrawnFigure, FigureTask
    from traceviz_dag.pipeline.lake_source import LakeSource

_SEVERAL = "separated by commas"


def figures(
    paths: ShownPathsArgument = None,
    run: Annotated[str | None, typer.Option(help="Draw only this run.")] = None,
    iteration: Annotated[int | None, typer.Option(help="Draw only this iteration.")] = None,
    kind: Annotated[
        str,
        typer.Option(help=f"Figures to draw: {', '.join(figure_kinds())}; {_SEVERAL}, default: all."),
    ] = "",
    ranks: Annotated[str, typer.Option(help=f"Ranks to draw: all, or numbers {_SEVERAL}; default: the outliers.")] = "",
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
    with their pipelines: those that the first findings name, those that delay others most, and those with the longest
    computation, the most exposed communication and the most idle time.
    """
    wanted, endings = _kinds(kind), _formats(formats)
    with iterations_of(real_path(home), paths or [], run, iteration) as chosen:
        drawn: list[DrawnFigure] = []
        faults: list[str] = []
        for source in chosen:
            tasks = [
                replace(task, formats=endings, alignment=time_alignment, previewed=True)
                for task in _tasks(source, wanted, ranks, every)
            ]
            drawn += _draw(source, tasks, processes, faults, quiet=json)
        if json:
            print_json(
                [
                    {
                        "run": figure.task.run,
                        "iteration": figure.task.iteration,
                        "kind": figure.task.kind.name,
                        "number": figure.task.number,
                        "title": figure.title,
                        "files": {name: str(path) for name, path in figure.paths.items()},
                    }
                    for figure in drawn
                ]
            )
        if faults:
            raise UsageError("; ".join(dict.fromkeys(faults)))
        end_partial(completeness_of(chosen, paths or []))
        if not drawn:
            raise NoEvidenceError(
                "no figure could be drawn: the tables of these iterations hold nothing known that they draw"
            )


def _draw(
    source: LakeSource, tasks: Sequence[FigureTask], processes: int, faults: list[str], *, quiet: bool
) -> list[DrawnFigure]:
    """Draw the figures of one iteration, and say where they are unless quiet.

    Args:
        faults: gets the line of figures of other packages that failed.
    """
    from traceviz_dag.pipeline.engines import default_workers
    from traceviz_dag.pipeline.figures import draw_figures

    console = terminal(stderr=True)
    count = counted(len(tasks), "figure", "figures")
    console.print(f"{source.run}, iteration {source.iteration}: {count} to draw", highlight=False)
    drawn = []
    left = {(task.kind.name, task.number) for task in tasks}
    try:
        for figure in draw_figures(tasks, processes or default_workers()):
            drawn.append(figure)
            left.discard((figure.task.kind.name, figure.task.number))
            if not quiet:
                first = next(iter(figure.paths.values()))
                others = "".join(f" {path.suffix}" for path in list(figure.paths.values())[1:])
                typer.echo(f"{figure.title}\n  {first}{others}")
    except UsageError as error:
        faults.append(str(error))
        left = set()
    for empty, number in sorted(left, key=str):
        which = empty if number is None else f"{empty} {number}"
        typer.echo(f"traceviz: {source.run}, iteration {source.iteration}: no {which}: nothing known to draw", err=True)
    return drawn


def _tasks(source: LakeSource, kinds: Sequence[FigureKind], ranks: str, every: bool) -> list[FigureTask]:
    from traceviz_dag.pipeline.figures import figure_tasks, readable_ranks

    numbers: list[int] | None = None
    if ranks == "all":
        numbers = readable_ranks(source)
    elif ranks:
        numbers = [_number(word) for word in _words(ranks)]
    return figure_tasks(source, kinds, numbers, every=every)


def _kinds(words: str) -> list[FigureKind]:
    known = figure_kinds()
    unknown = [word for word in _words(words) if word not in known]
    if unknown:
        raise UsageError(f"no figure {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = set(_words(words) or known)
    return [kind for name, kind in known.items() if name in chosen]


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
