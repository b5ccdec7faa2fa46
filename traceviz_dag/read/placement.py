"""Which iteration and rank each found trace file is of, from its path, its header and its ProfilerSteps."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import TraceHeader
from traceviz_dag.read.formats import FALLBACK, all_suffixes
from traceviz_dag.read.kineto.peek import peek, peek_identity
from traceviz_dag.read.layouts import TraceFile
from traceviz_dag.read.limits import MOST_RANKS

_LAST_ITERATION = 10**18 - 1
_ONLY_ITERATION = 0
"""Iteration of a file whose path names none and that holds no ProfilerStep."""
_WHOLE_FILE = "the whole file"


@dataclass(frozen=True, slots=True)
class PlacedTrace:
    """One rank's part of one iteration.

    Attributes:
        run: the run's id.
        iteration: a folder's or file name's number, else the ProfilerStep's, else 0.
        rank: the global rank.
        path: the trace file.
        name: path relative to the run's folder.
        step: the ProfilerStep that is the iteration, where the file holds several; None takes the whole file.
        part: process and GPU that are the rank, in a file that holds several ranks; empty takes the whole file.
        header: of the file, where it states of which job it is; None where it does not, or could not be read.
        first_ns: wall clock near its first event, ns since 1970; None where nothing shows.
        format: name of its trace format.
        counted_by: what counts iterations from 0 where nothing bears their numbers, in words; empty where one does.
    """

    run: str
    iteration: int
    rank: int
    path: Path
    name: str
    step: int | None
    part: str = ""
    header: TraceHeader | None = None
    first_ns: int | None = None
    format: str = FALLBACK
    counted_by: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a file shows of its own place, where each file is one rank.

    Attributes:
        header: its header.
        first_ns: wall clock near its first event, ns since 1970; None where the trace does not show.
        steps: numbers of its training steps, ascending; they are asked for where the path names no iteration.
    """

    header: TraceHeader
    first_ns: int | None = None
    steps: tuple[int, ...] = ()


def identity_of_kineto(file: TraceFile) -> Identity:
    """What a Kineto trace shows of its place.

    Raises:
        BadInputError: the file is missing, empty or no trace.
    """
    if file.iteration is not None:
        return Identity(*peek_identity(file.path))
    peeked = peek(file.path)
    return Identity(peeked.header, peeked.first_ns, peeked.steps)


@dataclass(frozen=True, slots=True)
class Placement:
    """Placed traces and what prevented placing the others.

    Attributes:
        traces: by run, iteration and rank; none of them twice.
        problems: one for each file, or set of files, that is left out.
        warnings: one line for each file whose path and header contradict each other.
        disputed: run, iteration and rank of each place that several files claim.
    """

    traces: tuple[PlacedTrace, ...]
    problems: tuple[BadInputError, ...]
    warnings: tuple[str, ...]
    disputed: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Placed:
    traces: tuple[PlacedTrace, ...] = ()
    problem: BadInputError | None = None
    warning: str | None = None


def resolve(
    files: Sequence[TraceFile],
    *,
    rank: int | None = None,
    ranks: Mapping[Path, int] | None = None,
    look: Callable[[TraceFile], Identity] = identity_of_kineto,
    rank_field: str = "distributedInfo",
    apart: Callable[[Sequence[PlacedTrace]], tuple[Sequence[PlacedTrace], Sequence[str]]] | None = None,
) -> Placement:
    """Place one-rank-per-file traces, looking into them where their paths do not show.

    The header wins over the path. A file that cannot be read is placed by its path alone, so that the reading of it can
    report what is wrong. Where two files claim one rank of an iteration, neither is taken.

    Args:
        files: as discovered.
        rank: the rank of files that show none themselves.
        ranks: path → its rank, of files for which ``rank`` is not meant.
        look: what a file shows of itself; it raises BadInputError where the file cannot be read.
        rank_field: what a file's own statement of its rank is called.
        apart: gives traces of unrelated jobs runs of their own, with a line for each.
    """
    stated = [(ranks or {}).get(file.path, rank) for file in files]
    place = partial(_place, look=look, rank_field=rank_field)
    if len(files) == 1:
        placed = [place(files[0], stated[0])]
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            placed = list(pool.map(place, files, stated))
    traces: Sequence[PlacedTrace] = [trace for one in placed for trace in one.traces]
    traces, lines = (traces, ()) if apart is None else apart(traces)
    traces, joined = _beside_the_others(traces)
    return united(
        Placement(
            traces=tuple(traces),
            problems=tuple(one.problem for one in placed if one.problem is not None),
            warnings=(*(one.warning for one in placed if one.warning is not None), *lines, *joined),
        )
    )


def _beside_the_others(traces: Sequence[PlacedTrace]) -> tuple[list[PlacedTrace], list[str]]:
    """Files that nothing numbers are of the iteration of their run, where it has one and lacks their ranks: a profiler
    that stops within its only step writes no ProfilerStep. And a line for each."""
    ranks_of: defaultdict[str, defaultdict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for trace in traces:
        if not trace.counted_by:
            ranks_of[trace.run][trace.iteration].add(trace.rank)
    placed, lines = [], []
    for trace in traces:
        iterations = ranks_of[trace.run]
        number = next(iter(iterations)) if len(iterations) == 1 else None
        if trace.counted_by and number is not None and trace.rank not in iterations[number]:
            lines.append(f"{trace.path}: no ProfilerStep; taken as iteration {number}, as the other ranks' files are")
            placed.append(replace(trace, iteration=number, counted_by=""))
        else:
            placed.append(trace)
    return placed, lines


def united(*placements: Placement) -> Placement:
    """Several placements as one, by run, iteration and rank; of files that claim one rank, none is taken."""
    unique, doubled, disputed = _without_doubles([trace for one in placements for trace in one.traces])
    return Placement(
        traces=tuple(sorted(unique, key=lambda trace: (trace.run, trace.iteration, trace.rank))),
        problems=(*(problem for one in placements for problem in one.problems), *doubled),
        warnings=tuple(line for one in placements for line in one.warnings),
        disputed=(*(place for one in placements for place in one.disputed), *disputed),
    )


def _place(file: TraceFile, stated_rank: int | None, look: Callable[[TraceFile], Identity], rank_field: str) -> _Placed:
    warning = None
    try:
        _refuse_impossible(file)
        told = look(file)
        header, steps = told.header, told.steps
    except BadInputError as error:
        if not _is_placed_by_path(file):
            return _Placed(problem=error)
        return _Placed((_trace(file, file.iteration or 0, file.rank or 0),))
    if header.rank is not None and file.rank is not None and header.rank != file.rank:
        warning = f"{file.path}: the name says rank {file.rank}, the header {header.rank}; the header is taken"
    rank = next((one for one in (header.rank, file.rank, stated_rank) if one is not None), None)
    if rank is None and file.iteration is not None:
        return _Placed(problem=_without_rank(file, rank_field))
    if rank is None:
        rank, file = 0, replace(file, run=own_run(file.run, file.path))
        warning = f"{file.path}: no rank in the name or in {rank_field}; taken as rank 0 of a separate run, {file.run}"
    if file.iteration is not None:
        numbers: Sequence[tuple[int, int | None]] = [(file.iteration, None)]
    elif len(steps) < 2:
        numbers = [(next(iter(steps), _ONLY_ITERATION), None)]
    else:
        numbers = [(step, step) for step in steps]
    counted_by = "" if steps or file.iteration is not None else _WHOLE_FILE
    traces = (
        replace(_trace(file, number, rank, step), header=header, first_ns=told.first_ns, counted_by=counted_by)
        for number, step in numbers
    )
    return _Placed(tuple(traces), warning=warning)


def own_run(folder: str, path: Path) -> str:
    """The id of the run that a file of a folder's run is by itself."""
    name = path.name
    suffix = next((one for one in sorted(all_suffixes(), key=len, reverse=True) if name.lower().endswith(one)), "")
    return f"{folder}-{name[: len(name) - len(suffix)].removesuffix('.pt.trace') or name}"


def _without_rank(file: TraceFile, rank_field: str) -> BadInputError:
    name = file.path.name.lower()
    suffix = next((one for one in all_suffixes() if name.endswith(one)), ".json")
    remedy = f"rename it to rank_0000{suffix} (its rank), or give it alone to traceviz analyze with --rank"
    return BadInputError(file.path, f"no rank in the name or in {rank_field}", remedy)


def _is_placed_by_path(file: TraceFile) -> bool:
    """Whether the path alone says which rank of which iteration a file is, though it cannot be read."""
    told = file.iteration is not None and file.rank is not None
    return told and (file.iteration or 0) <= _LAST_ITERATION and (file.rank or 0) < MOST_RANKS


def _refuse_impossible(file: TraceFile) -> None:
    """Refuse a number in the path that no table holds and no job has."""
    if file.iteration is not None and file.iteration > _LAST_ITERATION:
        raise BadInputError(file.path, f"iteration {file.iteration} in its path, which no job reaches", "rename it")
    if file.rank is not None and file.rank >= MOST_RANKS:
        raise BadInputError(file.path, f"rank {file.rank} in its name, which no job has", "rename it")


def _trace(file: TraceFile, iteration: int, rank: int, step: int | None = None) -> PlacedTrace:
    return PlacedTrace(file.run, iteration, rank, file.path, file.name, step, format=file.format)


def _without_doubles(
    traces: Sequence[PlacedTrace],
) -> tuple[list[PlacedTrace], list[BadInputError], tuple[tuple[str, int, int], ...]]:
    """Traces that alone claim their place, a problem for each set of files that claim the same, and those places."""
    claims: defaultdict[tuple[str, int, int], list[PlacedTrace]] = defaultdict(list)
    for trace in traces:
        claims[trace.run, trace.iteration, trace.rank].append(trace)
    doubled: defaultdict[tuple[Path, ...], list[PlacedTrace]] = defaultdict(list)
    for claimants in claims.values():
        if len(claimants) > 1:
            doubled[tuple(trace.path for trace in claimants)].append(claimants[0])
    problems = []
    for paths, places in doubled.items():
        iterations = ", ".join(str(place.iteration) for place in places)
        others = ", ".join(path.name if path.parent == paths[0].parent else str(path) for path in paths[1:])
        fault = f"rank {places[0].rank} of iteration {iterations} is also claimed by {others}, so none of them is taken"
        problems.append(BadInputError(paths[0], fault, "move all but one out of the run's folder"))
    unique = [claimants[0] for claimants in claims.values() if len(claimants) == 1]
    return unique, problems, tuple(place for place, claimants in claims.items() if len(claimants) > 1)
