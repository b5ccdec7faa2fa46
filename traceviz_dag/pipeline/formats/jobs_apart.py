"""Traces of unrelated jobs in one folder: each job is a run of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from traceviz_dag.classify.topology.job_identity import TraceIdentity, ranks_of_other_jobs
from traceviz_dag.printable import printable
from traceviz_dag.read.placement import PlacedTrace, own_run


def jobs_apart(traces: Sequence[PlacedTrace], flat: Mapping[Path, str]) -> tuple[list[PlacedTrace], list[str]]:
    """The traces with the runs that they are of, and a line for each run that is split off.

    Each run is looked at alone: files that a home knows as those of several runs are apart already. Headers that
    contradict each other make jobs, and so do recordings of one rank that claim the same steps: of these the one stays
    whose name is like those of the other ranks. A file of another job that shares a step with most files of its folder
    is a stray one, which stays there to be refused.

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
    jobs = [part for job in jobs for part in _told_by_time(job)]
    doubles: set[Path] = set()
    for job in list(jobs):
        for mine, other in _doubles(job):
            job.remove(mine)
            jobs.append([mine])
            doubles.add(mine[0].path)
            reasons[str(mine[0].path)] = f"it has the rank and the steps of {other.name}"
    jobs = [job for job in jobs if job]
    if len(jobs) < 2:
        return list(traces), []
    jobs.sort(key=len, reverse=True)
    renamed: dict[Path, str] = {}
    lines = []
    most = len(jobs[0]) * 2 > len(files)
    taken = {trace.iteration for mine in jobs[0] for trace in mine}
    for job in jobs[1:] if most else jobs:
        first = job[0][0]
        if first.path not in doubles and most and any(trace.iteration in taken for mine in job for trace in mine):
            continue
        run = own_run(first.run, first.path)
        renamed |= {mine[0].path: run for mine in job}
        why = reasons.get(str(first.path), "")
        lines.append(printable(f"{first.path}: taken as a separate run, {run}{': ' if why else ''}{why}"))
    return [replace(trace, run=renamed.get(trace.path, trace.run)) for trace in traces], lines


def _told_by_time(job: list[list[PlacedTrace]]) -> list[list[list[PlacedTrace]]]:
    """One job, or several where all its ranks were recorded equally often, and one recording after the other."""
    claims = _claims(job)
    often = {len(files) for files in claims.values()}
    times = len(next(iter(claims.values()), []))
    if len(often) != 1 or times < 2 or any(mine[0].first_ns is None for mine in job):
        return [job]
    ordered = [sorted(files, key=lambda mine: mine[0].first_ns or 0) for files in claims.values()]
    layers = [list({id(files[turn]): files[turn] for files in ordered}.values()) for turn in range(times)]
    starts = [[mine[0].first_ns or 0 for mine in layer] for layer in layers]
    apart = all(max(before) < min(after) for before, after in pairwise(starts))
    return layers if apart and len({len(layer) for layer in layers}) == 1 and len(claims) > 1 else [job]


def _doubles(job: list[list[PlacedTrace]]) -> list[tuple[list[PlacedTrace], Path]]:
    """The files of a job that claim another's rank and step, each with one whose claim it is.

    Of the claimants the one stays whose name is like those of other ranks, but for its numbers; none if several are.
    """
    claims = _claims(job)
    if len({rank for _, rank in claims}) < 2:
        return []
    alone = [_alike(files[0]) for files in claims.values() if len(files) == 1]
    usual = Counter(alone).most_common(1)[0][0] if alone else None
    found: dict[Path, tuple[list[PlacedTrace], Path]] = {}
    for files in claims.values():
        fitting = [mine for mine in files if _alike(mine) == usual]
        for mine in files if len(files) > 1 else []:
            if fitting != [mine]:
                other = next(each for each in (*fitting, *files) if each is not mine)
                found.setdefault(mine[0].path, (mine, other[0].path))
    return list(found.values())


def _claims(job: list[list[PlacedTrace]]) -> dict[tuple[int, int], list[list[PlacedTrace]]]:
    """Iteration and rank → the files that claim them."""
    claims: dict[tuple[int, int], list[list[PlacedTrace]]] = {}
    for mine in job:
        for trace in mine:
            claims.setdefault((trace.iteration, trace.rank), []).append(mine)
    return claims


def _alike(mine: list[PlacedTrace]) -> str:
    """A file's name without its numbers."""
    return re.sub(r"\d+", "#", mine[0].path.name)


def _why_apart(mine: Sequence[PlacedTrace], other: Sequence[PlacedTrace], *, one_rank: bool) -> str | None:
    """Why two files cannot be of one job; None where nothing says so."""
    one, first = mine[0], other[0]
    if one.header is None or first.header is None:
        return None
    here, there = TraceIdentity(one.header, one.first_ns), TraceIdentity(first.header, first.first_ns)
    same = one.rank == first.rank
    if same:  # Their groups are of one rank, and show nothing.
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
