"""Files that are named one by one: each is analysed, and is never answered with the numbers of another file."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import xxhash

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.inputs import IterationInputs, folder_of_run, registered_if_any, registered_of_name
from traceviz_dag.lake.partitions import check_run
from traceviz_dag.read.formats import all_suffixes
from traceviz_dag.read.layouts import RunFolder, TraceFile
from traceviz_dag.read.placement import Placement

_DIGEST_DIGITS = 8

_Place = tuple[str, str, int]
"""A file, its part, and an iteration."""


def in_their_runs(
    home: Path | None, run: RunFolder, files: Sequence[TraceFile], assigned: Mapping[Path, str]
) -> list[TraceFile]:
    """The files of a folder, each with the run that it was registered for where that is not the folder's.

    Args:
        assigned: path → the run that it is tried with.
    """
    known = dict(assigned)
    for inputs in registered_of_name(home, run.run, longer=True) if home is not None else ():
        if inputs.folder == str(run.folder):
            known |= {Path(entry.path): inputs.run for entry in inputs.ranks}
    return [replace(file, run=known.get(file.path, file.run)) for file in files]


def with_free_names(home: Path | None, run: RunFolder, placement: Placement) -> Placement:
    """The placement with other names for those of its runs that the home knows as another folder's."""
    names = {trace.run for trace in placement.traces} - {run.run}
    longer = {}
    for name in names:
        folder = folder_of_run(home, name) if home is not None else None
        if folder is not None and folder != run.folder:
            longer[name] = f"{name}-{_digest(run.folder)}"
    if not longer:
        return placement
    traces = tuple(replace(trace, run=longer.get(trace.run, trace.run)) for trace in placement.traces)
    disputed = tuple((longer.get(name, name), iteration, rank) for name, iteration, rank in placement.disputed)
    return replace(placement, traces=traces, disputed=disputed)


def with_the_named(
    home: Path,
    alone: Sequence[IterationInputs],
    together: Sequence[IterationInputs],
    named: Collection[str],
    beside: Callable[[Mapping[Path, int], Mapping[Path, str]], list[IterationInputs]],
) -> list[IterationInputs]:
    """The iterations of named files, with the other files that the home knows of these iterations.

    New files that contradict those that the home knows, by their ranks or by what they state of their job, are a
    separate run, or of the first separate run of their
    folder that they do not contradict: the known run keeps what it has.

    Args:
        alone: the iterations of the named files.
        together: the iterations of these and of the files that the home knows beside them.
        named: paths.
        beside: given path → rank of known files, and path → run of named ones, the iterations of all of these.
    """
    apart: dict[str, str] = {}
    for one in alone:
        why = _contradiction(home, one, together)
        if why:
            apart.setdefault(one.run, why)
    held = {place for one in together for place in _places(one)}
    separate = [one for one in alone if one.run in apart]
    others = set(named) - {entry.path for one in separate for entry in one.ranks}
    disputed = {one.key for one in alone if one.run not in apart and not _places(one) <= held}
    found = [one for one in together if one.key in disputed or any(entry.path in others for entry in one.ranks)]
    keys = {one.key for one in found}
    found += [one for one in alone if one.key in disputed and one.key not in keys]
    names = {one.run: _free_name(home, one) for one in reversed(separate)}
    for run in apart:
        joined = _of_a_separate_run(home, [one for one in separate if one.run == run], beside)
        found += joined
        separate = [one for one in separate if not joined or one.run != run]
    for one in separate:
        warning = f"{one.ranks[0].path}: analysed as a separate run, {names[one.run]}: {apart[one.run]}"
        found.append(replace(one, run=names[one.run], warnings=(*one.warnings, warning)))
    return found


def _places(inputs: IterationInputs) -> set[_Place]:
    """Where the files of an iteration are that are taken."""
    return {(entry.path, entry.part, inputs.iteration) for entry in inputs.ranks if not entry.refusal}


def _contradiction(home: Path, alone: IterationInputs, together: Sequence[IterationInputs]) -> str:
    """Why new files are not of one run with those that the home knows of their iteration; empty where they may be."""
    known = registered_if_any(home, alone.key)
    if known is None or {entry.path for entry in known.ranks} & {entry.path for entry in alone.ranks}:
        return ""
    for one in together:
        if one.folder != alone.folder or one.iteration != alone.iteration:
            continue
        for entry in one.ranks:
            if entry.refusal and _places(alone) | _places(known) >= {(entry.path, entry.part, one.iteration)}:
                return entry.refusal
    held = {place for one in together for place in _places(one)}
    for entry in alone.ranks:
        of_rank = known.rank(entry.rank)
        if not entry.refusal and of_rank is not None and (entry.path, entry.part, alone.iteration) not in held:
            return f"rank {entry.rank} of {known.key} is {of_rank.name}"
    return ""


def _of_a_separate_run(
    home: Path,
    alone: Sequence[IterationInputs],
    beside: Callable[[Mapping[Path, int], Mapping[Path, str]], list[IterationInputs]],
) -> list[IterationInputs]:
    """The iterations of new files with those of the first separate run of their folder that they do not contradict;
    empty where they contradict each."""
    numbers, paths = {one.iteration for one in alone}, {entry.path for one in alone for entry in one.ranks}
    known: defaultdict[str, dict[Path, int]] = defaultdict(dict)
    for inputs in registered_of_name(home, alone[0].run, longer=True):
        if inputs.folder == alone[0].folder and inputs.iteration in numbers:
            known[inputs.run] |= {Path(entry.path): entry.rank for entry in inputs.ranks if Path(entry.path).exists()}
    for run, files in known.items():
        tried = beside(files, dict.fromkeys(map(Path, paths), run))
        found = [one for one in tried if any(entry.path in paths for entry in one.ranks)]
        whole = set[_Place]().union(*(_places(one) for one in alone)) <= set().union(*map(_places, found))
        if whole and not any(one.run != run or any(entry.refusal for entry in one.ranks) for one in found):
            return found
    return []


def _free_name(home: Path, inputs: IterationInputs) -> str:
    """A name for the run of some files of a folder, after the first of them, that no other run has."""
    path = Path(inputs.ranks[0].path)
    suffix = next((one for one in all_suffixes() if path.name.lower().endswith(one)), "")
    for label in (path.name[: len(path.name) - len(suffix)], path.name):
        name = f"{inputs.run}-{label}"
        with suppress(UsageError):
            check_run(name)
            if folder_of_run(home, name) is None:
                return name
    return f"{inputs.run}-{_digest(path)}"


def _digest(path: Path) -> str:
    return xxhash.xxh3_64_hexdigest(os.fsencode(path))[:_DIGEST_DIGITS]
