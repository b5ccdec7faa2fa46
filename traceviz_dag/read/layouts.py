"""Finds trace files in all layouts that Megatron-LM, TraceViz and torch's handlers write, and what they are of."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import xxhash

from traceviz_dag.errors import BadInputError
from traceviz_dag.printable import without_surrogates
from traceviz_dag.read.kineto.peek import TracePeek, is_trace, peek, peek_header
from traceviz_dag.read.nsys.open import EXPORT_SUFFIXES, REPORT_SUFFIXES, is_nsys
from traceviz_dag.read.regular_file import kind_of
from traceviz_dag.read.topology_file import is_topology_name
from traceviz_dag.system.paths import real_path

__all__ = ["RunFolder", "TraceFile", "TracePeek", "discover", "peek", "peek_header"]

_SKIPPED_FOLDERS = frozenset({"truth", "chakra", "__pycache__"})
_TRACE_SUFFIXES = (".trace.json", ".trace.json.gz")
_JSON_SUFFIXES = (".json", ".json.gz")
_MEGATRON_FOLDER = "torch_profile"
_ITERATION_FOLDER = re.compile(r"iter(?:ation)?[_-]?(\d+)", re.IGNORECASE)
_ITERATION_IN_NAME = re.compile(r"(?<![A-Za-z])iter(?:ation)?[_-]?(\d+)(?!\d)", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"(?<![A-Za-z])rank[_-]?(\d+)(?!\d)", re.IGNORECASE)
_TIME_STAMP = re.compile(r"\d{8}_?\d{6}")
_DIGEST_DIGITS = 8


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace file and what its path tells.

    Attributes:
        path: the file.
        run: the run's id.
        name: path relative to the run's folder.
        iteration: of the folder, else of the file's name; None where neither tells.
        rank: of the file's name; None where it does not tell.
    """

    path: Path
    run: str
    name: str
    iteration: int | None
    rank: int | None


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run: the folder that holds iteration folders, a torch_profile folder or the trace files themselves.

    Attributes:
        run: its id: the folder's name, with a digest of its path where another folder's run has the name.
        folder: absolute.
        files: its traces, by name.
        topology_file: its newest ``unique_parallel_groups_*`` file; None without one.
        problems: what was found there and left out: no regular file, or a name that is not UTF-8.
    """

    run: str
    folder: Path
    files: tuple[TraceFile, ...]
    topology_file: Path | None
    problems: tuple[BadInputError, ...] = ()


def discover(
    paths: Sequence[Path],
    *,
    pattern: str | None = None,
    registered: Callable[[str], Path | None] = lambda _run: None,
) -> list[RunFolder]:
    """Find the runs below folders and the runs of single files.

    Hidden files and folders, ``truth`` and ``chakra`` folders and JSON that is no trace are left out; FIFOs, sockets,
    devices, links that lead nowhere and names that are not UTF-8 are left out and named.

    Args:
        paths: trace files, iteration folders, run folders or folders above them.
        pattern: a shell pattern; only files whose name or path below the searched folder matches are taken, and all of
            those.
        registered: the folder of the run that is known by a name already; a folder keeps the name that it has.

    Returns:
        Runs by id; each file once, however often ``paths`` covers it.

    Raises:
        BadInputError: a path does not exist, or nothing is found below it.
    """
    by_folder: defaultdict[Path, set[Path]] = defaultdict(set)
    left_out: defaultdict[Path, list[BadInputError]] = defaultdict(list)
    for path in paths:
        problems: list[BadInputError] = []
        found = list(_trace_files(real_path(path), pattern, problems))
        for problem in problems:
            left_out[_run_folder(problem.path)].append(problem)
        if not found and problems:
            raise problems[0]
        if not found:
            fault = "no trace files" if pattern is None else f"no file matches {pattern!r}"
            raise BadInputError(
                path, fault, "name a folder that holds traces (*.json, *.json.gz, *.sqlite, *.nsys-rep)"
            )
        for file in found:
            by_folder[_run_folder(file)].add(file)
    names = Counter(_name_of(folder) for folder in by_folder)
    runs = []
    for folder, files in by_folder.items():
        run = _run_id(folder, registered, shared=names[_name_of(folder)] > 1)
        problems = left_out.pop(folder, [])
        runs.append(RunFolder(run, folder, _files_of(run, folder, files), _topology_file(folder), tuple(problems)))
    runs.sort(key=lambda found: found.run)
    elsewhere = tuple(problem for others in left_out.values() for problem in others)
    return [replace(runs[0], problems=(*runs[0].problems, *elsewhere)), *runs[1:]] if runs else []


def _run_id(folder: Path, registered: Callable[[str], Path | None], *, shared: bool) -> str:
    """The folder's name, with a digest of its path where another folder has that name, now or in what is registered."""
    name = _name_of(folder)
    longer = f"{name}-{xxhash.xxh3_64_hexdigest(os.fsencode(folder))[:_DIGEST_DIGITS]}"
    if registered(longer) == folder:
        return longer
    known = registered(name)
    alone = known == folder if known is not None else not shared
    return name if alone else longer


def _trace_files(path: Path, pattern: str | None, problems: list[BadInputError]) -> Iterator[Path]:
    """The trace files below a path; what is left out and should be named is added to ``problems``."""
    if path.is_file() or is_nsys(path):
        yield from _usable(path, problems)
        return
    if not path.is_dir():
        fault = "a FIFO, a socket or a device, not a file" if path.exists() else "no such file or folder"
        raise BadInputError(path, fault, "check the path")
    for folder, folders, files in os.walk(path, onerror=lambda error: problems.append(_unread(error))):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        # A folder of Parquet files is one export.
        exports = [name for name in folders if is_nsys(Path(folder, name))]
        for name in exports:
            yield from _usable(Path(folder, name), problems)
        folders[:] = [name for name in folders if name not in exports]
        for name in sorted(files):
            file = Path(folder, name)
            if not name.startswith(".") and _is_wanted(file, path, pattern):
                yield from _usable(file, problems)


def _usable(file: Path, problems: list[BadInputError]) -> Iterator[Path]:
    """The file, where it is one and tables can hold its name; else nothing, and a problem more."""
    fault = remedy = ""
    try:
        kind = None if file.is_dir() else kind_of(file)
        if kind is not None:
            fault, remedy = f"{kind}, not a file", "remove it, or put a file there"
    except OSError as error:
        fault, remedy = f"a link that cannot be followed ({error.strerror})", "remove it, or mend it"
    if without_surrogates(str(file)) != str(file):
        fault, remedy = "its path is not UTF-8", "rename the file or its folder"
    if fault:
        problems.append(BadInputError(file, fault, remedy))
    else:
        yield file


def _unread(error: OSError) -> BadInputError:
    return BadInputError(str(error.filename), f"cannot be listed ({error.strerror})", "check its permissions")


def _is_wanted(file: Path, root: Path, pattern: str | None) -> bool:
    if pattern is not None:
        return fnmatch(file.name, pattern) or fnmatch(file.relative_to(root).as_posix(), pattern)
    name = file.name.lower()
    if name.endswith((*_JSON_SUFFIXES, *EXPORT_SUFFIXES)) and not file.is_file():
        return True  # to be named
    if name.endswith(_TRACE_SUFFIXES):
        return True
    if name.endswith(REPORT_SUFFIXES):
        # Its export stands for it.
        return not file.with_suffix(".sqlite").is_file()
    if is_nsys(file):
        return True
    return name.endswith(_JSON_SUFFIXES) and (_RANK_IN_NAME.search(name) is not None or is_trace(file))


def _run_folder(file: Path) -> Path:
    """The folder of the run that a file belongs to."""
    folder = file.parent
    belongs_above = _ITERATION_FOLDER.fullmatch(folder.name) or folder.name == _MEGATRON_FOLDER
    return folder.parent if belongs_above else folder


def _name_of(folder: Path) -> str:
    return folder.name or "root"


def _files_of(run: str, folder: Path, files: set[Path]) -> tuple[TraceFile, ...]:
    return tuple(
        TraceFile(file, run, file.relative_to(folder).as_posix(), _iteration_of(file), _rank_of(file))
        for file in sorted(files)
    )


def _iteration_of(file: Path) -> int | None:
    match = _ITERATION_FOLDER.fullmatch(file.parent.name) or _ITERATION_IN_NAME.search(file.name)
    return None if match is None else int(match[1])


def _rank_of(file: Path) -> int | None:
    match = _RANK_IN_NAME.search(file.name)
    return None if match is None else int(match[1])


def _topology_file(folder: Path) -> Path | None:
    """The newest by the time stamp in the name; files without one come before all others, by their time of change.

    Of a JSON and a text file with one stamp the JSON file is taken: it tells more.
    """

    def age(file: Path) -> tuple[str, bool, int]:
        stamp = _TIME_STAMP.search(file.name)
        return (stamp[0].replace("_", "") if stamp else "", file.suffix == ".json", file.stat().st_mtime_ns)

    try:
        files = [file for file in folder.iterdir() if is_topology_name(file.name) and file.is_file()]
    except OSError:
        return None
    return max(files, key=age, default=None)
