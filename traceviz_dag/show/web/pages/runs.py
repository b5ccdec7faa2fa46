"""The first page, which lists runs with their newest iterations and figures; and the page of a run."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from traceviz_dag.analyze.wording import duration
from traceviz_dag.lake.partitions import Partition, escape
from traceviz_dag.show.web.addresses import iteration_path, report_path, run_path, timeline_path
from traceviz_dag.show.web.contents import (
    figures_of,
    has_kernels,
    limit_of,
    measures_of,
    report_of,
    runs_by_age,
    traces_of,
)
from traceviz_dag.show.web.layout import link, markup, page, table
from traceviz_dag.show.web.pages.figures import gallery

_MOST_RUNS = 20
_MOST_ITERATIONS = 5
_MOST_FIGURES = 6
_MOST_OF_A_RUN = 200
"""Iterations of a run with their measures; each costs some reading."""
_HEAD = (
    "iteration",
    "step",
    "what limits it",
    "exposed communication",
    "ranks",
    "figures",
    "timeline",
    "report",
    "Perfetto",
)


def routes(home: Path, timelines: bool = False) -> Sequence[BaseRoute]:
    """``/`` and ``/runs/RUN``.

    Args:
        timelines: whether there are live timelines to link to.
    """

    def first(_: Request) -> Response:
        by_run = runs_by_age(home)
        if not by_run:
            return page(
                "Nothing here yet", f"<p>{markup(str(home))} holds no iteration: run traceviz analyze first.</p>"
            )
        parts = [f'<p class="quiet">{markup(str(home))}</p>']
        for run in list(by_run)[:_MOST_RUNS]:
            parts += _run_parts(home, run, by_run[run], timelines)
        if older := list(by_run)[_MOST_RUNS:]:
            names = ", ".join(link(run_path(run), run) for run in older)
            parts.append(f"<h2>{len(older)} runs that changed longer ago</h2><p>{names}</p>")
        return page("Runs", *parts)

    def of_run(request: Request) -> Response:
        run, iterations = _known_run(home, request.path_params["run"])
        parts = [_iterations_table(home, iterations[:_MOST_OF_A_RUN], timelines)]
        if older := iterations[_MOST_OF_A_RUN:]:
            numbers = ", ".join(link(iteration_path(run, each.iteration), str(each.iteration)) for each in older)
            parts.append(f"<h2>{len(older)} earlier iterations</h2><p>{numbers}</p>")
        return page(run, *parts, above=link("/", "all runs"))

    return [Route("/", first), Route("/runs/{run}", of_run)]


def _known_run(home: Path, folder: str) -> tuple[str, list[Partition]]:
    """A run by the name of its folders, and its iterations, the highest number first."""
    for run, iterations in runs_by_age(home).items():
        if escape(run) == folder:
            return run, iterations
    raise HTTPException(HTTPStatus.NOT_FOUND, "This home holds no such run; / lists those that it holds.")


def _run_parts(home: Path, run: str, iterations: Sequence[Partition], timelines: bool) -> list[str]:
    shown = iterations[:_MOST_ITERATIONS]
    parts = [f"<h2>{link(run_path(run), run)}</h2>", _iterations_table(home, shown, timelines)]
    if len(iterations) > len(shown):
        parts.append(f"<p>{link(run_path(run), f'all {len(iterations)} iterations')}</p>")
    drawn = ((each, figures) for each in shown if (figures := figures_of(home, each)))
    newest = next(drawn, None)
    if newest is not None:
        iteration, figures = newest
        more = f"{len(figures)} figures of iteration {iteration.iteration}"
        parts.append(gallery(figures[:_MOST_FIGURES], "small"))
        if len(figures) > _MOST_FIGURES:
            parts.append(f"<p>{link(iteration_path(run, iteration.iteration), f'all {more}')}</p>")
    return parts


def _iterations_table(home: Path, iterations: Sequence[Partition], timelines: bool) -> str:
    return f'<div class="wide">{table(_HEAD, [_row(home, each, timelines) for each in iterations])}</div>'


def _row(home: Path, iteration: Partition, timelines: bool) -> list[str]:
    measures = measures_of(home, iteration)
    number = link(iteration_path(iteration.run, iteration.iteration), str(iteration.iteration))
    step = "" if measures.step_ns is None else duration(measures.step_ns)
    exposed = "" if measures.exposed_ns is None else duration(measures.exposed_ns)
    mark = " (stale)" if measures.stale else " (partial)" if measures.partial else ""
    ranks = "" if measures.ranks is None else f"{measures.ranks}{mark}"
    report, shown = report_of(home, iteration), has_kernels(home, iteration)
    return [
        number,
        f'<span class="warn">{markup(measures.fault)}</span>' if measures.fault else step,
        markup(limit_of(home, iteration)),
        exposed,
        ranks,
        str(len(figures_of(home, iteration)) or ""),
        link(timeline_path(iteration.run, iteration.iteration), "timeline") if timelines and shown else "",
        link(report_path(iteration.run, iteration.iteration), "report") if report else "",
        str(len(traces_of(home, iteration)) or ""),
    ]
