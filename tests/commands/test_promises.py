"""What docs/promises.md promises, as lines of docs/promised.txt: the program has all that the last release had.

``make promises`` writes the list anew, which a release does, and shows what came and went.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from inspect import get_annotations, isclass, isfunction, signature
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import traceviz_dag as tv
from tests.analyze.across_ranks import SMALL
from tests.damage import call
from tests.nsys_file import small_export
from tests.show.home import fill_home
from tests.snapshot_file import write_snapshot
from traceviz_dag import errors, vocabulary
from traceviz_dag.api import job
from traceviz_dag.commands.main import app
from traceviz_dag.lake.across_ranks_views import VIEWS
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Faults
from traceviz_dag.tables import TABLES

REPOSITORY = Path(__file__).parents[2]
KEPT = REPOSITORY / "docs/promised.txt"
_DEPRECATED = re.compile(r"(.*)  # deprecated in (\d+)\.(\d+): .+")

HOW = """{gone}
is in docs/promised.txt, and gone from the program or changed. Programs of others use it: put it back. If it must go,
keep it working beside what replaces it, end its line in docs/promised.txt with "  # deprecated in {version}: use NEW",
and name it in CHANGELOG.md. A later minor version may then remove it, from 1.0 on a later major one."""

ANSWERS = {
    **dict.fromkeys(
        (
            *("findings", "critical-path", "advise", "efficiencies", "waits", "pipelines", "overlap", "kernels"),
            *("utilization", "clocks", "topology", "iterations", "statement", "lake status", "lake verify"),
            *("lake clean", "periods", "capture explain", "baseline list"),
        ),
        "",
    ),
    "what-if": "",
    "analyze": "{traces}",
    "doctor": "{traces}",
    "report": "-o report.html",
    "capture plan": "",
    "diff": "job@10 job@11",
    "gate": "--pairs {pairs}",
    "figures": "--iteration 10 --kind rank_timeline --ranks 0 --formats svg --processes 1",
    "perfetto export": "-o out.pftrace.gz --iteration 10",
    "classify": "{trace} --output kernels.parquet",
    "accuracy": "{traces}",
    **{
        f"nsys {name}": "{export}"
        for name in (
            *("info", "suggest", "summary", "overlap", "map", "gaps", "nccl", "copies", "launches", "tree"),
            *("ranges", "iterations", "calls", "stalls", "threads"),
        )
    },
    "nsys search": "{export} gemm",
    "nsys diff": "{export} {export}",
    "nsys flops": "{export} forward --flops 9",
    "nsys pace": "{export} forward",
    **{f"memory {name}": "{snapshot}" for name in ("summary", "peak", "timeline", "fragmentation", "leak", "oom")},
    "memory diff": "{snapshot} {snapshot}",
    "memory export": "{snapshot} -o memory.html",
}
"""Command with ``--json`` → the further words of a call of which the keys are promised."""

NOT_CALLED = {
    "demo": "prints what analyze does",
    "batch": "prints what analyze does",
    "aggregate": "prints what analyze does",
    "sql": "prints the columns of its query",
    "capture ncu": "runs a command",
    "perfetto query": "needs a trace processor",
    "perfetto compare": "needs a trace processor",
    "nsys instructions": "needs what CUTracer counted",
    "nsys download": "needs internet",
    "memory schedule": "needs snapshots of an iteration",
}
"""Command with ``--json`` that no test here calls, and why."""


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name in command.commands:
            yield from _commands(command.commands[name], (*path, name))
    else:
        yield " ".join(path), command


def _python() -> Iterator[str]:
    for name in tv.__all__:
        thing = job.analyze if name == "analyze" else getattr(tv, name)
        if not isclass(thing):
            yield from _signature(name, thing)
        elif issubclass(thing, Exception):
            yield f"python class {name}({thing.__mro__[1].__name__})"
        else:
            every = [one.name for one in fields(thing)] if is_dataclass(thing) else list(get_annotations(thing))
            attributes = [each for each in every if not each.startswith("_")]
            yield from (f"python {name}.{each}" for each in attributes)
            for member, value in vars(thing).items():
                if not member.startswith("_") and member not in attributes:
                    full = f"{name}.{member}"
                    yield from _signature(full, value) if isfunction(value) else [f"python {full}"]


def _signature(name: str, function: Any) -> Iterator[str]:
    """What it gives, and each parameter: new ones may come."""
    known = signature(function)
    yield f"python {name} -> {known.return_annotation}"
    yield from (f"python {name}({parameter})" for parameter in known.parameters.values() if parameter.name != "self")


def _columns() -> Iterator[str]:
    for table in TABLES.values():
        for column in table.columns:
            # How texts are kept in a file is nothing that a query sees.
            yield f"column {table.name}.{column.name} {'string' if 'dictionary' in str(column.type) else column.type}"
    yield from (f"column {view.name}.{name}" for view in VIEWS for name, _ in view.columns)


def _options() -> Iterator[str]:
    for name, command in _commands(get_command(app)):
        yield f"command {name}"
        for place, option in enumerate(command.params):
            if option.param_type_name == "argument":
                yield f"argument {name} {place}"
            elif not option.hidden:
                takes = "" if option.is_flag else f" {option.type.name}"
                yield from (f"option {name} {word}{takes}" for word in (*option.opts, *option.secondary_opts))


def _words() -> Iterator[str]:
    for enumeration in vars(vocabulary).values():
        if isclass(enumeration) and issubclass(enumeration, StrEnum) and enumeration is not StrEnum:
            yield from (f"value {enumeration.__name__} {one.value}" for one in enumeration)
    for error in vars(errors).values():
        if isclass(error) and issubclass(error, errors.TracevizError):
            yield f"exit code {error.exit_code} {error.__name__}"


def _keys(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The keys of JSON and the kinds of their values; keys that are names of a trace are one."""
    if isinstance(value, dict):
        for key, each in value.items():
            name = key if re.fullmatch("[a-z][a-z0-9_]*", key) else "*"
            yield from _keys(each, path if path.endswith(f"{name}[].{name}[]") else f"{path}.{name}")
    elif isinstance(value, list):
        for each in value:
            yield from _keys(each, f"{path}[]")
    else:
        kinds = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
        yield path, kinds[type(value)]


@pytest.fixture
def places(tmp_path, monkeypatch, ranks_in_this_process):
    """A home with two steps of a job, and files that commands take."""
    monkeypatch.setenv("TRACEVIZ_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    simulate(
        JobSettings(**SMALL, tp=2, pp=2, microbatches=4, iterations=2, faults=Faults(slow_gpu=1)),
        tmp_path / "job",
        workers=1,
    )
    fill_home(tmp_path / "home", [tmp_path / "job"])
    write_snapshot(tmp_path / "snapshot.pickle", leak_bytes=1 << 20)
    (tmp_path / "pairs.toml").write_text('[[pair]]\nname = "first"\nstages = [0, 1]\nthreshold = 0.0\n')
    return {
        "traces": tmp_path / "job",
        "trace": next((tmp_path / "job").rglob("rank_0000*")),
        "export": small_export().write(tmp_path / "small.sqlite"),
        "snapshot": tmp_path / "snapshot.pickle",
        "pairs": tmp_path / "pairs.toml",
    }


@pytest.fixture
def lines(places) -> list[str]:
    """All that is promised, as the program has it."""
    found = [*_python(), *_columns(), *_options(), *_words()]
    for name, words in ANSWERS.items():
        answer = call(*name.split(), *(word.format(**places) for word in words.split()), "--json")
        assert answer.code == 0, (name, answer.err)
        kinds: dict[str, set[str]] = {}
        for path, kind in _keys(answer.json, ""):
            kinds.setdefault(path, set()).add(kind)
        # Any value may be null, whatever else it is.
        found += [f"json {name} {path} {'|'.join(sorted(kinds[path] - {'null'})) or 'null'}" for path in kinds]
    return sorted(found)


def missing(kept: list[str], present: list[str], version: tuple[int, int]) -> list[str]:
    """What was promised and is not there, but for what an earlier version called deprecated."""
    has, gone = {*present, *(f"{line.rpartition(' ')[0]} null" for line in present)}, []
    for line in kept:
        marked = _DEPRECATED.fullmatch(line)
        since = (int(marked[2]), int(marked[3])) if marked else version
        may_go = since < version if version[0] == 0 else since[0] < version[0]
        if not may_go and (marked[1] if marked else line) not in has:
            gone.append(line)
    return gone


@pytest.mark.long
def test_the_program_has_what_the_last_release_promised(lines):
    kept = KEPT.read_text().splitlines()
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    major, minor = map(int, version.split(".")[:2])
    if os.environ.get("TRACEVIZ_WRITE_PROMISES"):
        marked = {found[1]: line for line in kept if (found := _DEPRECATED.fullmatch(line))}
        KEPT.write_text("".join(f"{marked.get(line, line)}\n" for line in lines))
        return
    gone = missing(kept, lines, (major, minor))
    assert not gone, HOW.format(gone="\n".join(gone), version=f"{major}.{minor}")


@pytest.mark.parametrize(
    ("version", "present", "gone"),
    [
        ((0, 2), ["column a.x int64", "json b .y number", "new"], []),
        ((0, 2), ["column a.x int32", "json b .y string"], ["column a.x int64"]),
        ((0, 1), ["column a.x int64", "json b .y number"], []),
        ((0, 2), [], ["column a.x int64", "json b .y null"]),
        ((0, 1), [], ["column a.x int64", "json b .y null", "option c --z  # deprecated in 0.1: use --w"]),
        ((1, 0), [], ["column a.x int64", "json b .y null"]),
    ],
)
def test_what_goes_or_changes_is_missing_until_a_version_after_that_which_called_it_deprecated(version, present, gone):
    kept = ["column a.x int64", "json b .y null", "option c --z  # deprecated in 0.1: use --w"]
    assert missing(kept, [*present, *(["option c --z"] if version == (0, 1) and present else [])], version) == gone


def test_every_command_with_json_is_called_or_named():
    told = {name for name, command in _commands(get_command(app)) if any(one.name == "json" for one in command.params)}
    assert told == ANSWERS.keys() | NOT_CALLED.keys()
