"""The page of one iteration: its measures, its first findings, its report, its figures and its Perfetto traces."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from traceviz_dag.analyze.wording import duration
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.partitions import ANALYSE_AGAIN, Partition, escape
from traceviz_dag.show.web.addresses import report_path, run_path, timeline_path
from traceviz_dag.show.web.contents import (
    deleted_tables,
    figures_of,
    has_kernels,
    held_iterations,
    measures_of,
    report_of,
    statements_of,
    traces_of,
)
from traceviz_dag.show.web.layout import link, markup, page
from traceviz_dag.show.web.pages.figures import gallery
from traceviz_dag.show.web.pages.perfetto import trace_links


def routes(home: Path, timelines: bool = False) -> Sequence[BaseRoute]:
    """``/runs/RUN/ITERATION``.

    Args:
        timelines: whether there are live timelines to link to.
    """

    def of_iteration(request: Request) -> Response:
        folder, number = request.path_params["run"], request.path_params["iteration"]
        for each in held_iterations(home):
            if (escape(each.run), str(each.iteration)) == (folder, number):
                return _page(home, each, request, timelines)
        raise HTTPException(HTTPStatus.NOT_FOUND, "This home holds no such iteration; / lists those that it holds.")

    return [Route("/runs/{run}/{iteration}", of_iteration)]


def _page(home: Path, iteration: Partition, request: Request, timelines: bool) -> Response:
    named = f"--run {shlex.quote(iteration.run)} --iteration {iteration.iteration} --home {shlex.quote(str(home))}"
    parts = [f"<p>{_measures_line(home, iteration)}</p>"]
    if deleted := deleted_tables(home, iteration):
        fault = f"Somebody deleted files of {', '.join(deleted)}: what was made of them before is shown, and no more"
        parts.append(f'<p class="warn">{markup(f"{fault}; {ANALYSE_AGAIN}.")}</p>')
    parts += _first_findings(home, iteration, f"traceviz findings {named}")
    if timelines and has_kernels(home, iteration):
        live = link(timeline_path(iteration.run, iteration.iteration), "The timeline")
        parts.append(f"<h2>Timeline</h2><p>{live}, drawn as you move</p>")
    parts.append("<h2>Report</h2>")
    shown = f"<p>{link(report_path(iteration.run, iteration.iteration), 'The report')}, one page with the timeline</p>"
    parts.append(shown if report_of(home, iteration) else _none_yet(f"traceviz report {named}"))
    parts.append("<h2>Figures</h2>")
    figures = figures_of(home, iteration)
    parts.append(gallery(figures) if figures else _none_yet(f"traceviz figures {named}"))
    parts.append("<h2>In the Perfetto UI</h2>")
    traces = traces_of(home, iteration)
    parts.append(trace_links(traces, request) if traces else _none_yet(f"traceviz perfetto export {named}"))
    above = f"{link('/', 'all runs')} · {link(run_path(iteration.run), iteration.run)}"
    return page(f"{iteration.run}, iteration {iteration.iteration}", *parts, above=above)


def _first_findings(home: Path, iteration: Partition, command: str) -> list[str]:
    try:
        statements = statements_of(home, iteration)
    except BadInputError as error:
        return [f'<p class="warn">Findings: {markup(str(error))}</p>']
    if not statements:
        return []
    items = "".join(f"<li>{markup(each)}</li>" for each in statements)
    return [f"<ol>{items}</ol>", f'<p class="quiet">The first findings; all: <code>{markup(command)}</code></p>']


def _measures_line(home: Path, iteration: Partition) -> str:
    measures = measures_of(home, iteration)
    if measures.fault:
        return f'<span class="warn">{markup(measures.fault)}</span>'
    if measures.step_ns is None:
        return "The table iterations has no step of this iteration."
    said = [f"Step {duration(measures.step_ns)}, the longest of {measures.ranks} ranks"]
    if measures.exposed_ns is not None:
        said.append(f"exposed communication {duration(measures.exposed_ns)}, mean over the ranks")
    line = markup("; ".join(said)) + "."
    if measures.stale:
        line += ' <span class="warn">Stale: its ranks are others by now; analyse it again.</span>'
    if measures.partial:
        line += ' <span class="warn">Partial: ranks are missing, failed or were read in part.</span>'
    return line


def _none_yet(command: str) -> str:
    return f"<p>None yet: <code>{markup(command)}</code></p>"
