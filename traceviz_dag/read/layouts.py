"""Finds trace files in all layouts that Megatron-LM, TraceViz and torch's handlers write, and what they are of."""

from __future__ import annotations

import errno
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import xxhash

from traceviz_dag.errors import BadInputError
from traceviz_dag.printable import named, without_surrogates
from traceviz_dag.read.formats import FALLBACK, all_suffixes, format_of, refusal
from traceviz_dag.read.path_names import ITERATION_FOLDER, iteration_of, rank_of
from traceviz_dag.read.regular_file import kind_of, seems_file
from traceviz_dag.read.topology_file import find_topology_file
from traceviz_dag.system.paths import real_path

_SKIPPED_FOLDERS = frozenset({"truth", "chakra", "__pycache__"})
_MEGATRON_FOLDER = "torch_profile"
_DIGEST_DIGITS = 8


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace file and what its path shows.

    Attributes:
        path: the file.
        run: the run's id.
        name: path relative to the run's folder.
        iteration: of the folder, else of the file's name; None where neither shows.
        rank: of the file's name; None where it does not show.
        format: name of its trace format; of a file that none recognises, of the one that says what is wrong with it.
    """

    path: Path
    run: str
    name: str
    iteration: int | None
    rank: int | None
    format: str = FALLBACK


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
    by_folder: defaultdict[Path, dict[Path, str]] = defaultdict(dict)
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
            patterns = ", ".join(f"*{suffix}" for suffix in all_suffixes())
            remedy = f"name a folder that holds traces ({patterns})"
            pickles = sorted(path.glob("*.pickle"))
            if pickles:
                shown = shlex.quote(without_surrogates(str(pickles[0])))
                remedy = f"{remedy}, or try traceviz memory summary {shown}, for snapshots of GPU memory"
            raise BadInputError(path, fault, remedy)
        for file, format_name in found:
            by_folder[_run_folder(file)][file] = format_name
    names = Counter(_name_of(folder) for folder in by_folder)
    runs = []
    for folder, files in by_folder.items():
        run = _run_id(folder, registered, shared=names[_name_of(folder)] > 1)
        problems = left_out.pop(folder, [])
        runs.append(RunFolder(run, folder, _files_of(run, folder, files), find_topology_file(folder), tuple(problems)))
    runs.sort(key=lambda found: found.run)
    elsewhere = tuple(problem for others in left_out.values() for problem in others)
    return [replace(runs[0], problems=(*runs[0].problems, *elsewhere)), *runs[1:]] if runs else []


def _run_id(folder: Path, registered: Callable[[str], Path | None], *, shared: bool) -> str:
    """The folder's name, with a digest of its path where another folder has that name, now or in what is registered."""
    name = _name_of(folder)
    place = named(folder)  # Of objects, wherever the home that stands in for them is now.
    longer = f"{name}-{xxhash.xxh3_64_hexdigest(os.fsencode(place))[:_DIGEST_DIGITS]}"
    if _place_of(registered(longer)) == place:
        return longer
    known = _place_of(registered(name))
    alone = known == place if known is not None else not shared
    return name if alone else longer


def _place_of(folder: Path | None) -> str | None:
    return named(folder) if folder is not None else None


def _trace_files(path: Path, pattern: str | None, problems: list[BadInputError]) -> Iterator[tuple[Path, str]]:
    """The trace files below a path, each with its format; what is left out and should be named joins ``problems``."""
    one = format_of(path)
    if path.is_file() or one is not None:
        refused = refusal(path) if one is None else None
        if refused is not None:
            problems.append(refused)
        else:
            yield from _usable(path, one.name if one is not None else FALLBACK, problems)
        return
    if not path.is_dir():
        fault = "a FIFO, a socket or a device, not a file" if path.exists() else "no such file or folder"
        raise BadInputError(path, fault, "check the path")
    for folder, folders, files in os.walk(path, onerror=lambda error: problems.append(_unread(error))):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        # A folder may be one trace.
        traces = {name: found.name for name in folders if (found := format_of(Path(folder, name))) is not None}
        for name, format_name in traces.items():
            yield from _usable(Path(folder, name), format_name, problems)
        folders[:] = [name for name in folders if name not in traces]
        for name in sorted(files):
            file = Path(folder, name)
            wanted = None if name.startswith(".") else _wanted_format(file, path, pattern)
            if wanted is not None:
                yield from _usable(file, wanted, problems)


def _usable(file: Path, format_name: str, problems: list[BadInputError]) -> Iterator[tuple[Path, str]]:
    """The file and its format, where it is one and tables can hold its name; else nothing, and a problem more."""
    fault = remedy = ""
    try:
        kind = None if file.is_dir() else kind_of(file)
        if kind is not None:
            fault, remedy = f"{kind}, not a file", "remove it, or put a file there"
    except OSError as error:
        if error.errno == errno.EACCES:
            fault, remedy = "may not be looked at", "check the permissions of its folder"
        else:
            fault, remedy = f"a link that cannot be followed ({error.strerror})", "remove it, or fix it"
    if without_surrogates(str(file)) != str(file):
        fault, remedy = "its path is not UTF-8", "rename the file or its folder"
    if fault:
        problems.append(BadInputError(file, fault, remedy))
    else:
        yield file, format_name


def _unread(error: OSError) -> BadInputError:
    return BadInputError(str(error.filename), f"cannot be listed ({error.strerror})", "check its permissions")


def _wanted_format(file: Path, root: Path, pattern: str | None) -> str | None:
    """The format of a file that is taken; None for one that is passed over."""
    if pattern is not None and not (fnmatch(file.name, pattern) or fnmatch(file.relative_to(root).as_posix(), pattern)):
        return None
    has_suffix = file.name.lower().endswith(all_suffixes())
    if has_suffix and not seems_file(file):
        return FALLBACK  # to be named
    one = format_of(file) if has_suffix else None
    if pattern is not None:
        return one.name if one is not None else FALLBACK
    return one.name if one is not None and not one.stands_aside(file) else None


def _run_folder(file: Path) -> Path:
    """The folder of the run that a file belongs to."""
    folder = file.parent
    belongs_above = ITERATION_FOLDER.fullmatch(folder.name) or folder.name == _MEGATRON_FOLDER
    return folder.parent if belongs_above else folder


def _name_of(folder: Path) -> str:
    return folder.name or "root"


def _files_of(run: str, folder: Path, files: Mapping[Path, str]) -> tuple[TraceFile, ...]:
    return tuple(
        TraceFile(file, run, file.relative_to(folder).as_posix(), iteration_of(file), rank_of(file), files[file])
        for file in sorted(files)
    )
