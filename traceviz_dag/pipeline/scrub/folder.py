"""Scrub the traces below a folder into another one, file by file, under names that say as little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.pipeline.scrub.kineto import scrub_kineto
from traceviz_dag.pipeline.scrub.memory import scrub_memory
from traceviz_dag.pipeline.scrub.names import Names
from traceviz_dag.pipeline.scrub.nsys import scrub_nsys
from traceviz_dag.read.kineto.files import KinetoFiles
from traceviz_dag.read.layouts import RunFolder, TraceFile, discover
from traceviz_dag.read.memory.files import is_snapshot_name
from traceviz_dag.read.nsys.files import NsysFiles
from traceviz_dag.read.regular_file import open_regular
from traceviz_dag.read.topology_file import parse_topology, parse_topology_json, read_topology_file
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.whole_files import write_atomically

_WRITERS = {KinetoFiles.name: scrub_kineto, NsysFiles.name: scrub_nsys}
"""Format → what writes a file of it again."""


@dataclass(slots=True)
class Scrubbed:
    """What became of the files below a folder.

    Attributes:
        written: new files. left_out: what was not written, and why, a line each.
        words: how many words were replaced.
    """

    written: list[Path] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    words: int = 0


def scrub(source: Path, target: Path, told: Callable[[Path], None] = lambda path: None) -> Scrubbed:
    """Write the traces, topology files and snapshots of GPU memory below a folder, or one of them, again.

    Args:
        target: a folder, which must not be there or be empty.
        told: is called with each file that was written.

    Raises:
        UsageError: the target is not empty, or lies within the source or around it.
        BadInputError: there are neither traces nor snapshots.
    """
    source, target = real_path(source), real_path(target)
    if source in (target, *target.parents) or target in source.parents:
        raise UsageError(f"{target} lies within what is to be scrubbed, or around it; name another folder")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is not empty; name a folder that is not there yet")
    names, result = Names(), Scrubbed()
    snapshots = _snapshots(source)
    try:
        runs = discover([source])
    except BadInputError:
        if not snapshots:
            raise
        runs = []
    base = source if source.is_dir() else source.parent
    for run in runs:
        result.left_out += [str(problem) for problem in run.problems]
    writers = [each for run in runs for each in _files(run, names)]
    writers += [(path, partial(_memory, path, names)) for path in snapshots]
    for path, write in writers:
        place = target.joinpath(*(names.given(part) for part in path.relative_to(base).parts))
        try:
            write(place)
        except BadInputError as error:
            result.left_out.append(str(error))
            continue
        result.written.append(place)
        told(place)
    result.words = names.hidden
    return result


def _snapshots(source: Path) -> list[Path]:
    """The snapshots of GPU memory below a folder, or the one that is named."""
    below = [source] if source.is_file() else sorted(source.rglob("*"))
    return [path for path in below if is_snapshot_name(path.name) and path.is_file()]


def _files(run: RunFolder, names: Names) -> Iterator[tuple[Path, Callable[[Path], None]]]:
    """The files of a run, each with what writes it again to a place."""
    if run.topology_file is not None:
        yield run.topology_file, partial(_topology, run.topology_file, names)
    for file in run.files:
        yield file.path, partial(_trace, file, names)


def _trace(file: TraceFile, names: Names, place: Path) -> None:
    if file.format not in _WRITERS:
        raise BadInputError(file.path, f"files of {file.format} cannot be scrubbed", "give PyTorch traces or exports")
    _WRITERS[file.format](file.path, place, names)


def _memory(path: Path, names: Names, place: Path) -> None:
    scrub_memory(path, place, names)


def _topology(path: Path, names: Names, place: Path) -> None:
    """The same sizes and groups; of its texts words of the field alone."""
    stated = read_topology_file(path)
    with open_regular(path) as file:
        text = names.library(file.read().decode(errors="replace"))
    again = parse_topology_json(text, path) if place.suffix == ".json" else parse_topology(text, path)
    if (again.sizes, again.groups) != (stated.sizes, stated.groups):
        raise BadInputError(path, "its groups are not those of the scrubbed text", "remove what is no topology from it")
    write_atomically(place, text.encode())
