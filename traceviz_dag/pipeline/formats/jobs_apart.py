"""Traces of unrelated jobs in one folder: each job is a run of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from traceviz_dag.classify.topology.job_identity import TraceIdentity, ranks_of_other_jobs
from traceviz_dag.printable import printable
from traceviz_dag.read.placement import PlacedTrace, own_run


def jobs_apart(traces: Sequence[PlacedTrace], flat: Mapping[Path, str]) -> tuple[list[PlacedTrace], list[str]]:
    """The traces with the runs that they are of, and a line for each run that is split off.

    Each run is looked at alone: files that a home knows as those of several runs are apart already. Headers that
    contradict each other make jobs, and so do recordings of one rank that claim the same steps. A file that shares a
    step with most files of its folder is a stray one, which stays there to be refused.

    Args:
        flat: files whose path names no iteration, with the run of their folder. Others lie in an iteration's folder,
            which is of one job.
    """
    of_run: dict[str, list[PlacedTrace]] = {}
    for trace in traces:
        of_run.setdefault(trace.run, []).append(trace)
    split = [_split(mine, flat) for mine in of_run.values()]
    return [trace for apart, _ in split for trace in apart], [line for _, lines in split for line in lines]


def _split(traces: Sequence[PlacedTrace], flat: Mapping[Path, str]) -> tuple[list[PlacedTrace], list[str]]:
    """The same of the traces of one run."""
    files: dict[Path, list[PlacedTrace]] = {}
    for trace in traces:
        if flat.get(trace.path) == trace.run and trace.header is not None:
            files.setdefault(trace.path, []).append(trace)
    one_rank = len({trace.rank for mine in files.values() for trace in mine}) == 1
    jobs: list[list[list[PlacedTrace]]] = []
    reasons: dict[str, str] = {}
    for mine in files.values():
        why = ""
        for job in jobs:
            told = _why_apart(mine, job[0], one_rank=one_rank)
            if told is None:
                job.append(mine)
                break
            why = why or told
        else:
            jobs.append([mine])
            reasons[str(mine[0].path)] = why
    if len(jobs) < 2:
        return list(traces), []
    jobs.sort(key=len, reverse=True)
    renamed: dict[Path, str] = {}
    lines = []
    most = len(jobs[0]) * 2 > len(files)
    taken = {trace.iteration for mine in jobs[0] for trace in mine}
    for job in jobs[1:] if most else jobs:
        first = job[0][0]
        if most and any(trace.iteration in taken for mine in job for trace in mine):
            continue
        run = own_run(first.run, first.path)
        renamed |= {mine[0].path: run for mine in job}
        why = reasons[str(first.path)]
        lines.append(printable(f"{first.path}: taken as a run of its own, {run}{': ' if why else ''}{why}"))
    return [replace(trace, run=renamed.get(trace.path, trace.run)) for trace in traces], lines


def _why_apart(mine: Sequence[PlacedTrace], other: Sequence[PlacedTrace], *, one_rank: bool) -> str | None:
    """Why two files cannot be of one job; None where nothing says so."""
    one, first = mine[0], other[0]
    if one.header is None or first.header is None:
        return None
    here, there = TraceIdentity(one.header, one.first_ns), TraceIdentity(first.header, first.first_ns)
    same = one.rank == first.rank
    if same:  # Their groups are of one rank, and tell nothing.
        here = replace(here, header=replace(one.header, process_groups=()))
        there = replace(there, header=replace(first.header, process_groups=()))
    number = one.rank + 1 if same else one.rank
    found = ranks_of_other_jobs({number: here, first.rank: there})
    if found:
        return found[number].replace(f"rank {first.rank}", first.path.name)
    steps = [{trace.iteration for trace in each} for each in (mine, other)]
    if same and one_rank and steps[0] == steps[1]:
        return f"it has the rank and the steps of {first.path.name}"
    return None
