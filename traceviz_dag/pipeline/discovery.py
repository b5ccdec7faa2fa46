"""From the paths that a user names to the list of inputs of each iteration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from traceviz_dag.analyze.wording import numbered
from traceviz_dag.classify.topology.job_identity import TraceIdentity, ranks_of_other_jobs
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.digests import stamp_of
from traceviz_dag.lake.inputs import IterationInputs, RankInput, SnapshotInput, all_registered, folder_of_run
from traceviz_dag.lake.known_ranks import known_beside
from traceviz_dag.pipeline.formats.registry import trace_formats
from traceviz_dag.pipeline.formats.trace_format import PlaceRequest
from traceviz_dag.pipeline.named_files import in_their_runs, with_free_names, with_the_named
from traceviz_dag.printable import printable
from traceviz_dag.read.layouts import RunFolder, discover
from traceviz_dag.read.memory.files import FoundSnapshot, of_iteration, snapshots_in
from traceviz_dag.read.placement import PlacedTrace, Placement, united


def inputs_below(
    paths: Sequence[Path],
    *,
    pattern: str | None = None,
    rank: int | None = None,
    home: Path | None = None,
    with_known: bool = False,
    prepare: Callable[[Sequence[Path]], None] | None = None,
) -> list[IterationInputs]:
    """The iterations below the paths, by run and number, with the files of their ranks.

    A run's id is its folder's name, with a digest of its path where the home knows another folder's run by that name.
    A named file that cannot be of the run that the home knows of its folder is a run of its own.
    A rank whose header contradicts those of the other ranks of its iteration has a ``refusal``. A file that cannot be
    placed (no rank, a rank that occurs twice) is one of the ``problems`` of its iteration, of each iteration of its
    folder where its path does not show which; the rest goes on. A folder is one run, but for exports of Nsight Systems
    that are of different jobs.

    Args:
        pattern: only files that match this glob.
        rank: rank of the one file that does not say its own.
        home: where profiles of Nsight Systems are kept once they were read, and where it is recorded of which runs they
            are; None keeps nothing.
        with_known: take the files, too, that the home knows of these iterations and that the paths leave out: their
            measures are in those of the iteration, so that a change of one of them counts.
        prepare: called before files are looked into, with those of each iteration of runs that the home does not know,
            as far as paths show.

    Raises:
        BadInputError: nothing was found, or nothing of it can be placed.
        UsageError: ``rank`` is given for several files.
    """
    runs = discover(paths, pattern=pattern, registered=partial(_registered_folder, home))
    files = [file for run in runs for file in run.files]
    if rank is not None and len(files) != 1:
        raise UsageError(f"--rank is for one file, and {len(files)} were found")
    if prepare is not None:
        new = [file for run in runs if _registered_folder(home, run.run) is None for file in run.files]
        for _, each in groupby(new, key=lambda file: (file.run, file.iteration)):
            prepare([file.path for file in each])
    named = any(path.is_file() for path in paths)
    iterations = _iterations(runs, rank, {}, home, named)
    if home is None or not with_known:
        return iterations
    found = {str(file.path) for file in files}
    beside = {Path(entry.path): entry.rank for one in iterations for entry in known_beside(home, one, found)}
    if not beside:
        return iterations

    def beside_these(known: Mapping[Path, int], assigned: Mapping[Path, str]) -> list[IterationInputs]:
        runs = discover([*paths, *known], pattern=pattern, registered=partial(_registered_folder, home))
        with suppress(BadInputError):  # All of them claim the same ranks.
            return _iterations(runs, rank, known, home, named, assigned)
        return []

    return with_the_named(home, iterations, beside_these(beside, {}), found, beside_these)


def _iterations(
    runs: Sequence[RunFolder],
    rank: int | None,
    ranks: Mapping[Path, int],
    home: Path | None,
    named: bool,
    assigned: Mapping[Path, str] = MappingProxyType({}),
) -> list[IterationInputs]:
    iterations: list[IterationInputs] = []
    snapshots = _Snapshots(named=named)
    unplaced: list[BadInputError] = []
    for run in runs:
        placement = _placement(run, rank, ranks, home, assigned)
        by_iteration: dict[tuple[str, int], list[PlacedTrace]] = defaultdict(list)
        for trace in placement.traces:
            by_iteration[trace.run, trace.iteration].append(trace)
        problems = (*run.problems, *placement.problems)
        if not by_iteration:
            unplaced += problems
        jobs = {name for name, _ in by_iteration}
        snapshots.look_beside(trace for traces in by_iteration.values() for trace in traces)
        for index, ((name, iteration), traces) in enumerate(sorted(by_iteration.items())):
            # Of several jobs in a folder, nothing says whose the text file is; it stays with the run of that name.
            described = run.topology_file is not None and (len(jobs) == 1 or name == run.run)
            refusals = _refusals(traces)
            taken, left_out = snapshots.of(run.folder, iteration, traces)
            iterations.append(
                IterationInputs(
                    run=name,
                    iteration=iteration,
                    folder=str(run.folder),
                    ranks=tuple(
                        replace(_rank_input(trace), refusal=refusals.get(trace.rank, ""))
                        for trace in sorted(traces, key=lambda trace: trace.rank)
                    ),
                    topology_file=str(run.topology_file) if described else None,
                    problems=_problems_of(iteration, {number for _, number in by_iteration}, run, problems),
                    warnings=(*(map(printable, placement.warnings) if index == 0 else ()), *left_out),
                    disputed=tuple(
                        sorted(one for *place, one in placement.disputed if tuple(place) == (name, iteration))
                    ),
                    snapshots=taken,
                )
            )
    if not iterations:
        raise unplaced[0]
    # Of a run that nothing could be placed of there is no iteration to name it.
    first, *others = iterations
    return [replace(first, problems=(*first.problems, *map(str, unplaced))), *others]


class _Snapshots:
    """Snapshots of GPU memory in the folders of traces; each folder is listed once.

    Args:
        named: files were named, so that the other ranks of their folders are left out on purpose.
    """

    def __init__(self, *, named: bool) -> None:
        self._named = named
        self._in: dict[Path, list[FoundSnapshot]] = {}
        self._iterations: defaultdict[Path, set[int]] = defaultdict(set)

    def look_beside(self, traces: Iterable[PlacedTrace]) -> None:
        """List the folders of some traces, and remember which iterations have traces there."""
        for trace in traces:
            folder = trace.path.parent
            self._iterations[folder].add(trace.iteration)
            if folder not in self._in:
                with suppress(OSError):  # What is wrong with it, its traces say.
                    self._in[folder] = snapshots_in(folder)

    def of(
        self, run_folder: Path, iteration: int, traces: Sequence[PlacedTrace]
    ) -> tuple[tuple[SnapshotInput, ...], tuple[str, ...]]:
        """The snapshots of an iteration, one per rank, and a line for each that is left out."""
        taken: dict[int, SnapshotInput] = {}
        left_out = []
        traced, lonely = {trace.rank for trace in traces}, dict[int, Path]()
        for folder in sorted({trace.path.parent for trace in traces}):
            for one in of_iteration(self._in.get(folder, []), iteration, self._iterations[folder]):
                if one.rank is None:
                    left_out.append(_left_out(one.path, "names no rank", "put its rank into its name, as rank_3"))
                    continue
                if one.rank not in traced:
                    lonely[one.rank] = one.path
                    continue
                try:
                    size, changed, renewed = stamp_of(one.path)
                except FileNotFoundError:
                    continue
                name = one.path.relative_to(run_folder).as_posix() if one.path.is_relative_to(run_folder) else ""
                entry = SnapshotInput(
                    *(one.rank, str(one.path), name or one.path.name, size, changed), renewed_ns=renewed
                )
                other = taken.get(one.rank)
                if other is not None:
                    entry, other = sorted((entry, other), key=lambda each: each.changed_ns, reverse=True)
                    fault = f"rank {one.rank} has a later snapshot, {Path(entry.path).name}, which is taken"
                    left_out.append(_left_out(Path(other.path), fault, "move it away"))
                taken[one.rank] = entry
        if lonely and not self._named:
            left_out.append(_without_traces(lonely, iteration))
        return tuple(taken[rank] for rank in sorted(taken)), tuple(left_out)


def _without_traces(lonely: Mapping[int, Path], iteration: int) -> str:
    """That snapshots are of ranks without a trace: one line, however many they are."""
    ranks = sorted(lonely)
    which = "a snapshot" if len(ranks) == 1 else "and others: snapshots"
    fault = f"{which} of {numbered('rank', ranks)}, of which no trace is taken in iteration {iteration}"
    return _left_out(lonely[ranks[0]], fault, "put the trace beside it; traceviz memory summary reads it alone")


def _left_out(path: Path, fault: str, remedy: str) -> str:
    return str(BadInputError(path, fault, remedy))


def _problems_of(
    iteration: int, known: Collection[int], run: RunFolder, problems: Sequence[BadInputError]
) -> tuple[str, ...]:
    """What of a folder's problems concerns an iteration: its own files', and those of which no path shows whose."""
    stated = {file.path: file.iteration for file in run.files}
    return tuple(
        str(problem)
        for problem in problems
        if stated.get(problem.path) in (None, iteration) or stated.get(problem.path) not in known
    )


def _registered_folder(home: Path | None, run: str) -> Path | None:
    return folder_of_run(home, run) if home is not None else None


def _refusals(traces: Sequence[PlacedTrace]) -> dict[int, str]:
    """Rank → why its file is of another job than most of the iteration's; exports are distinguished when placed."""
    stated = {trace.rank: TraceIdentity(trace.header, trace.first_ns) for trace in traces if trace.header is not None}
    found = ranks_of_other_jobs(stated)
    return {rank: f"rank {rank} of another job than the other ranks: {why}" for rank, why in found.items()}


def _placement(
    run: RunFolder, rank: int | None, ranks: Mapping[Path, int], home: Path | None, assigned: Mapping[Path, str]
) -> Placement:
    """Let each format place its files; of ranks that files of two formats claim, none is taken."""
    placements: list[Placement] = []
    taken_by = ""
    for one in trace_formats().values():
        files = [file for file in run.files if file.format == one.name]
        if files:
            known = partial(_registered_files, run.folder, home, one.name)
            if not one.several_ranks:
                files = in_their_runs(home, run, files, assigned)
            placement = one.place(PlaceRequest(files, home, rank, ranks, known, taken_by))
            traces = tuple(replace(trace, format=one.name) for trace in placement.traces)
            placements.append(replace(placement, traces=traces))
            if any(trace.run == run.run for trace in traces):
                taken_by = taken_by or one.title
    return with_free_names(home, run, united(*placements))


def _registered_files(folder: Path, home: Path | None, format_name: str) -> dict[Path, str]:
    """The run that each file of one format in a folder was registered for."""
    known: dict[Path, str] = {}
    # A damaged list is reported by what needs it; here it only means that names are found anew.
    with suppress(BadInputError):
        for inputs in all_registered(home) if home is not None else ():
            if inputs.folder == str(folder):
                known |= {Path(entry.path): inputs.run for entry in inputs.ranks if entry.format == format_name}
    return known


def _rank_input(trace: PlacedTrace) -> RankInput:
    size, changed, renewed = stamp_of(trace.path)
    return RankInput(
        *(trace.rank, str(trace.path), trace.name, trace.step, size, changed),
        part=trace.part,
        format=trace.format,
        counted_by=trace.counted_by,
        renewed_ns=renewed,
    )
