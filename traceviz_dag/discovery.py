"""From the paths that a user names to the list of inputs of each iteration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.digests import look_of
from traceviz_dag.lake.inputs import IterationInputs, RankInput
from traceviz_dag.nsys_ranks import place_exports
from traceviz_dag.read.layouts import TraceFile, discover
from traceviz_dag.read.nsys_open import is_nsys
from traceviz_dag.read.placement import PlacedTrace, Placement, resolve


def inputs_below(
    paths: Sequence[Path], *, pattern: str | None = None, rank: int | None = None, home: Path | None = None
) -> list[IterationInputs]:
    """The iterations below the paths, by run and number, with the files of their ranks.

    A file that cannot be placed (no rank, a rank that stands twice) is one of the ``problems`` of its run's first
    iteration; the rest goes on.

    Args:
        pattern: only files that match this glob.
        rank: rank of the one file that does not say its own.
        home: where profiles of Nsight Systems are kept once they were read; None keeps nothing.

    Raises:
        BadInputError: nothing was found, or nothing of it can be placed.
        UsageError: ``rank`` is given for several files.
    """
    runs = discover(paths, pattern=pattern)
    files = [file for run in runs for file in run.files]
    if rank is not None and len(files) != 1:
        raise UsageError(f"--rank is for one file, and {len(files)} were found")
    iterations: list[IterationInputs] = []
    unplaced: list[BadInputError] = []
    for run in runs:
        placement = _placement(run.files, rank, home)
        by_iteration: dict[int, list[PlacedTrace]] = defaultdict(list)
        for trace in placement.traces:
            by_iteration[trace.iteration].append(trace)
        if not by_iteration:
            unplaced += placement.problems
        for index, (iteration, traces) in enumerate(sorted(by_iteration.items())):
            iterations.append(
                IterationInputs(
                    run=run.run,
                    iteration=iteration,
                    folder=str(run.folder),
                    ranks=tuple(_rank_input(trace) for trace in sorted(traces, key=lambda trace: trace.rank)),
                    topology_file=str(run.topology_file) if run.topology_file else None,
                    problems=tuple(map(str, placement.problems)) if index == 0 else (),
                    warnings=placement.warnings if index == 0 else (),
                )
            )
    if not iterations:
        raise unplaced[0]
    return iterations


def _placement(files: Sequence[TraceFile], rank: int | None, home: Path | None) -> Placement:
    """Place Kineto traces by what they say themselves, exports of Nsight Systems by what they hold."""
    exports = [file for file in files if is_nsys(file.path)]
    placement = resolve([file for file in files if file not in exports], rank=rank)
    if not exports:
        return placement
    others = place_exports(exports, home, rank=rank)
    return Placement(
        (*placement.traces, *others.traces),
        (*placement.problems, *others.problems),
        (*placement.warnings, *others.warnings),
    )


def _rank_input(trace: PlacedTrace) -> RankInput:
    size, changed = look_of(trace.path)
    return RankInput(trace.rank, str(trace.path), trace.name, trace.step, size, changed, part=trace.part)
