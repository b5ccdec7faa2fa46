"""Traces of unrelated jobs in one folder: each job is a run of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

from traceviz_dag.classify.topology.job_identity import TraceIdentity, other_groups, ranks_of_other_jobs
from traceviz_dag.printable import printable
from traceviz_dag.read.path_names import rank_of, without_iteration
from traceviz_dag.read.placement import PlacedTrace, own_run

_Files = dict[Path, list[PlacedTrace]]
"""The traces of each file."""

_Job = list[list[PlacedTrace]]
"""The traces of each of its files."""

_Claims = dict[tuple[int, int], _Job]
"""Iteration and rank → the files that claim them."""


def jobs_apart(
    traces: Sequence[PlacedTrace], flat: Mapping[Path, str], is_copy: Callable[[Path, Path], bool]
) -> tuple[list[PlacedTrace], list[str]]:
    """The traces with the runs that they are of, and a line for each run that is split off and each copy left out.

    Each run is looked at alone: files that a home knows as those of several runs are apart already. Headers that
    contradict each other make jobs, and so do recordings of one rank that claim the same steps: of these the one stays
    whose name is like those of the other ranks. A file of another job that shares a step with most files of its folder,
    and claims no rank of them, is a stray one, which stays there to be refused.

    Args:
        flat: files whose path names no iteration, with the run of their folder. Others lie in an iteration's folder,
            which is of one job, unless files in it claim the same rank.
        is_copy: whether two files hold the same.
    """
    groups: dict[tuple[str, int | None], _Files] = {}
    for trace in traces:
        loose = flat.get(trace.path) == trace.run
        if trace.header is not None and (loose or trace.path not in flat):
            groups.setdefault((trace.run, None if loose else trace.iteration), {}).setdefault(trace.path, []).append(
                trace
            )
    renamed: dict[Path, str] = {}
    copies: set[Path] = set()
    lines: list[str] = []
    for (_, iteration), files in groups.items():
        if iteration is not None:
            found = _copies(files, is_copy)
            copies |= set(found)
            lines += [printable(f"{path}: left out, as it holds the same as {name}") for path, name in found.items()]
        rest = {path: mine for path, mine in files.items() if path not in copies}
        if iteration is None or any(len(claimants) > 1 for claimants in _claims(rest.values()).values()):
            lines += _split(rest, renamed, in_folder=iteration is not None)
    kept = [replace(each, run=renamed.get(each.path, each.run)) for each in traces if each.path not in copies]
    return kept, lines


def _copies(files: _Files, is_copy: Callable[[Path, Path], bool]) -> dict[Path, str]:
    """Files of one iteration that hold the same as another of the same rank, each with the name of that one."""
    found = {}
    usual = _usual_name(_claims(files.values()))
    for claimants in _claims(files.values()).values():
        ones = [mine[0] for mine in claimants if rank_of(mine[0].path) in (None, mine[0].rank)]
        ones.sort(key=lambda trace: _alike(trace) != usual)
        for trace in ones[1:]:
            if (trace.header, trace.first_ns) == (ones[0].header, ones[0].first_ns) and is_copy(
                ones[0].path, trace.path
            ):
                found[trace.path] = ones[0].path.name
    return found


def _split(files: _Files, renamed: dict[Path, str], *, in_folder: bool) -> list[str]:
    """Note the runs of jobs that are split off the run of some files; a line for each."""
    one_rank = not in_folder and len({trace.rank for mine in files.values() for trace in mine}) == 1
    jobs = [part for job in _jobs_by_header(files, one_rank=one_rank) for part in _told_by_time(job)]
    doubles: dict[Path, str] = {}
    for job in list(jobs):
        for mine, other in _doubles(job):
            job.remove(mine)
            jobs.append([mine])
            doubles[mine[0].path] = f"it has the rank and the steps of {other.name}"
    jobs = [job for job in jobs if job]
    if len(jobs) < 2:
        return []
    jobs.sort(key=len, reverse=True)
    lines = []
    names: set[str] = set()
    most = len(jobs[0]) * 2 > len(files)
    taken = _claims(jobs[0])
    iterations = {iteration for iteration, _ in taken}
    for job in jobs[1:] if most else jobs:
        first = job[0][0]
        is_stray = most and not taken.keys() & _claims(job).keys()
        if first.path not in doubles and is_stray and any(trace.iteration in iterations for trace in chain(*job)):
            continue
        run = own_run(first.run, without_iteration(first.path) if in_folder else first.path)
        if run in names:
            run = f"{first.run}-{first.path.name}"
        names.add(run)
        renamed |= {mine[0].path: run for mine in job}
        them = jobs[0] if job is not jobs[0] else jobs[1]
        beside = next((mine for mine in them if mine[0].rank == first.rank), them[0])
        why = doubles.get(first.path) or _why_apart(job[0], beside, one_rank=one_rank) or ""
        lines.append(printable(f"{first.path}: taken as a separate run, {run}{': ' if why else ''}{why}"))
    return lines


def _jobs_by_header(files: _Files, *, one_rank: bool) -> list[_Job]:
    """Jobs whose headers contradict each other, each in the order of its files.

    What claims the same rank is looked at first, as it shows the jobs; the rest joins the job whose process groups it
    shares.
    """
    claims = _claims(files.values())
    jobs: list[_Job] = []
    groups: list[set[tuple[str | None, tuple[int, ...]]]] = []
    by_rank: list[dict[int, list[PlacedTrace]]] = []
    alone = {path: all(len(claims[one.iteration, one.rank]) == 1 for one in mine) for path, mine in files.items()}
    for _, mine in sorted(files.items(), key=lambda item: alone[item[0]]):
        header = mine[0].header
        own = {(group.description, group.ranks) for group in header.process_groups} if header is not None else set()
        open_to = [
            number
            for number, job in enumerate(jobs)
            if all(
                _why_apart(mine, other, one_rank=one_rank) is None
                for other in (job[0], by_rank[number].get(mine[0].rank, job[0]))
            )
        ]
        chosen = max(open_to, key=lambda number: len(own & groups[number]), default=len(jobs))
        if chosen == len(jobs):
            jobs.append([])
            groups.append(set())
            by_rank.append({})
        jobs[chosen].append(mine)
        groups[chosen] |= own
        by_rank[chosen].setdefault(mine[0].rank, mine)
    place = {path: number for number, path in enumerate(files)}
    for job in jobs:
        job.sort(key=lambda mine: place[mine[0].path])
    return jobs


def _told_by_time(job: _Job) -> list[_Job]:
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


def _doubles(job: _Job) -> list[tuple[list[PlacedTrace], Path]]:
    """The files of a job that claim another's rank and step, each with one whose claim it is.

    Of the claimants the one stays whose name is like those of other ranks, but for its numbers; none if several are.
    """
    claims = _claims(job)
    if len({rank for _, rank in claims}) < 2:
        return []
    usual = _usual_name(claims)
    found: dict[Path, tuple[list[PlacedTrace], Path]] = {}
    for files in claims.values():
        fitting = [mine for mine in files if _alike(mine[0]) == usual]
        for mine in files if len(files) > 1 else []:
            if fitting != [mine]:
                other = next(each for each in (*fitting, *files) if each is not mine)
                found.setdefault(mine[0].path, (mine, other[0].path))
    return list(found.values())


def _usual_name(claims: _Claims) -> str | None:
    """The most frequent name of files that alone claim their rank, without numbers; None without such a file."""
    alone = [_alike(files[0][0]) for files in claims.values() if len(files) == 1]
    return Counter(alone).most_common(1)[0][0] if alone else None


def _claims(job: Iterable[list[PlacedTrace]]) -> _Claims:
    """Iteration and rank → the files that claim them."""
    claims: _Claims = {}
    for mine in job:
        for trace in mine:
            claims.setdefault((trace.iteration, trace.rank), []).append(mine)
    return claims


def _alike(trace: PlacedTrace) -> str:
    """A file's name without its numbers."""
    return re.sub(r"\d+", "#", trace.path.name)


def _why_apart(mine: Sequence[PlacedTrace], other: Sequence[PlacedTrace], *, one_rank: bool) -> str | None:
    """Why two files cannot be of one job; None where nothing says so."""
    one, first = mine[0], other[0]
    if one.header is None or first.header is None:
        return None
    here, there = TraceIdentity(one.header, one.first_ns), TraceIdentity(first.header, first.first_ns)
    same = one.rank == first.rank
    if same:  # As of one rank, their groups are compared below.
        here = replace(here, header=replace(one.header, process_groups=()))
        there = replace(there, header=replace(first.header, process_groups=()))
    number = one.rank + 1 if same else one.rank
    found = ranks_of_other_jobs({number: here, first.rank: there})
    if found:
        return found[number].replace(f"rank {first.rank}", first.path.name)
    apart = other_groups(one.header, first.header, one.rank) if same else None
    if apart:
        return f"{apart[0]}, {first.path.name} has {apart[1]}"
    steps = [{trace.iteration for trace in each} for each in (mine, other)]
    if same and one_rank and steps[0] == steps[1]:
        return f"it has the rank and the steps of {first.path.name}"
    return None
