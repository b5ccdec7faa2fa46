"""Which run, iterations and ranks the exports of a folder are: jobs by evidence, ranks by node and GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from traceviz_dag.analyze.nsys.activity import numbers
from traceviz_dag.analyze.nsys.jobs import CaptureEvidence, job_name, jobs, ran_together, why_apart
from traceviz_dag.analyze.wording import numbered
from traceviz_dag.classify.nsys.trace import NsysPart
from traceviz_dag.classify.rules import Rules, load_rules
from traceviz_dag.errors import BadInputError
from traceviz_dag.pipeline.nsys.ranks import iterations_of_part, parts_of
from traceviz_dag.read.layouts import TraceFile
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.read.nsys.files import NsysFiles
from traceviz_dag.read.nsys.iterations import Iterations
from traceviz_dag.read.nsys.profile import NO_NAME, NsysProfile
from traceviz_dag.read.placement import PlacedTrace, Placement

_NODE_IN_NAME = re.compile(r"(?<![A-Za-z])node[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Export:
    """One export of a run and what it holds.

    Attributes:
        node: of its name; None where that does not show.
        parts: processes and their GPUs, by GPU.
        evidence: what it shows of its job.
    """

    file: TraceFile
    node: int | None
    parts: tuple[NsysPart, ...]
    evidence: CaptureEvidence


def place_exports(
    files: Sequence[TraceFile],
    home: Path | None,
    rules: Rules | None = None,
    rank: int | None = None,
    known: Mapping[Path, str] | None = None,
    *,
    ranks: Mapping[Path, int] | None = None,
    taken_by: str = "",
) -> Placement:
    """Place the ranks of the exports of one folder. Those that nothing ties to one job are runs of their own.

    Args:
        files: exports and reports, as discovered.
        home: where profiles are kept once they were read; None keeps nothing.
        rank: rank of an export that holds only one and does not say which.
        known: exports that were registered before → the run that they are of; it keeps them, whatever came since.
        ranks: path → its rank, of exports for which ``rank`` is not meant.
        taken_by: what the traces beside them are called that are the run of the folder's name; empty without such.
    """
    exports, problems, words = [], [], list[str]()
    profiles: dict[Path, NsysProfile] = {}
    for file in files:
        try:
            profile = open_profile(file.path, home)
            parts, others = parts_of(profile)
            if not parts:
                raise BadInputError(file.path, "no kernels were recorded", "capture with --trace=cuda,nvtx")
        except BadInputError as error:
            problems.append(error)
            continue
        profiles[file.path] = profile
        node = _NODE_IN_NAME.search(file.path.name)
        exports.append(Export(file, int(node[1]) if node else None, parts, _evidence(file, profile)))
        words += _no_ranks(file.path, others)
    traces: list[PlacedTrace] = []
    for run, members, why in _runs(exports, known or {}, taken_by):
        stated = {one.file.path: (ranks or {}).get(one.file.path, rank) for one in members if rank is not None}
        numbered, assumed = number_ranks(members, stated)
        words += [*why, *assumed]
        for export, its_ranks in numbered:
            for part, number in zip(export.parts, its_ranks, strict=True):
                found = iterations_of_part(profiles[export.file.path], part, rules or load_rules())
                traces += _placed(replace(export.file, run=run), part, number, found)
    places = Counter((trace.run, trace.iteration, trace.rank) for trace in traces)
    doubled = sorted({trace.path for trace in traces if places[trace.run, trace.iteration, trace.rank] > 1})
    problems += [
        BadInputError(
            path, "ranks that another export also claims, so none of them is taken", "name it …rankN or …nodeN"
        )
        for path in doubled
    ]
    kept = [trace for trace in traces if places[trace.run, trace.iteration, trace.rank] == 1]
    kept.sort(key=lambda one: (one.run, one.iteration, one.rank))
    disputed = tuple(place for place, count in places.items() if count > 1)
    return Placement(tuple(kept), tuple(problems), tuple(words), disputed)


def number_ranks(
    exports: Sequence[Export], stated_ranks: Mapping[Path, int | None]
) -> tuple[list[tuple[Export, tuple[int, ...]]], list[str]]:
    """The global rank of each part of each export, and what had to be assumed.

    Args:
        stated_ranks: path → the rank that the user states of an export of one part.

    A name that bears a rank (``rank3``) numbers an export of one part. Otherwise nodes count by the number in their
    names, else by name, and the ranks of a node by GPU: that is how torchrun and Slurm number them.
    """
    found: list[tuple[Export, tuple[int, ...]]] = []
    assumed: list[str] = []
    nodes: list[Export] = []
    for export in exports:
        stated = export.file.rank if export.file.rank is not None else stated_ranks.get(export.file.path)
        if stated is not None and len(export.parts) == 1:
            found.append((export, (stated,)))
        else:
            nodes.append(export)
    ordered = sorted(nodes, key=lambda one: (one.node is None, one.node or 0, one.file.name))
    first = 0
    for export in ordered:
        count = len(export.parts)
        # Nodes hold equally many ranks; a gap in their numbers is a gap in the ranks.
        start = export.node * count if export.node is not None else first
        found.append((export, tuple(range(start, start + count))))
        first = start + count
        if len(ordered) > 1 and export.node is None:
            assumed.append(f"{export.file.path}: ranks {start} to {first - 1} by the order of names; name it …nodeN")
    return found, assumed


def _evidence(file: TraceFile, profile: NsysProfile) -> CaptureEvidence:
    """What an export shows of its job."""
    used = frozenset(profile.names("ranges", "communicator")) - {"", NO_NAME}
    base = profile.facts.utc_start_ns
    operations = profile.table("operations", "start_ns", "duration_ns")
    start, duration = numbers(operations, "start_ns"), numbers(operations, "duration_ns")
    recording = f"{xxhash.xxh3_64_hexdigest(start.tobytes())}{xxhash.xxh3_64_hexdigest(duration.tobytes())}"
    if base is None:
        return CaptureEvidence(file.path.name, communicators=used, recording=recording)
    first, last = base + int(start.min()), base + int((start + duration).max())
    return CaptureEvidence(file.path.name, first, last, used, recording)


def _runs(
    exports: Sequence[Export], known: Mapping[Path, str], taken_by: str
) -> list[tuple[str, list[Export], list[str]]]:
    """(run, its exports, what must be said of that) of each job in a folder."""
    found = [[exports[place] for place in job] for job in jobs([export.evidence for export in exports])]
    alone = len(found) == 1 and not taken_by
    named: list[tuple[str, list[Export], list[str]]] = []
    claims = Counter(name for job in found for name in {known.get(one.file.path, "") for one in job})
    for job in found:
        first = job[0].file
        before = sorted(name for name in {known.get(one.file.path, "") for one in job} if name and claims[name] == 1)
        label = job_name(first.path.name)
        label = first.path.stem if label is None else label or "nsys"
        run = before[0] if before else first.run if alone else f"{first.run}-{label}"
        if run in {other for other, _, _ in named}:
            run = f"{first.run}-{first.path.name}"
        words = _against_their_names(job)
        if not alone:
            others = [one.evidence for other in found if other is not job for one in other]
            why = why_apart([one.evidence for one in job], others) if others else f"{taken_by} are beside it"
            words.append(
                f"{first.path}: taken as a separate run, {run}: {why}; name the nodes of one job …node0, …node1"
            )
        named.append((run, job, words))
    return named


def _no_ranks(path: Path, parts: Sequence[NsysPart]) -> list[str]:
    """What ``traceviz nsys`` counts on a GPU, and no rank has."""
    gpus = sorted({part.device for part in parts})
    what = "no rank has what a process without kernels there copied or set"
    return [f"{path}: {what} on {numbered('GPU', gpus)}"] if gpus else []


def _against_their_names(job: Sequence[Export]) -> list[str]:
    """Exports whose names make them nodes of one job, though what they hold says otherwise."""
    words = []
    for place, one in enumerate(job):
        copied = [other for other in job[:place] if other.evidence.recording == one.evidence.recording]
        same_iteration = one.file.iteration == job[0].file.iteration
        if copied:
            words.append(f"{one.file.path}: holds the same recording as {copied[0].file.path.name}; is it a copy?")
        elif same_iteration and ran_together(job[0].evidence, one.evidence) is False:
            first = job[0].file.path.name
            words.append(f"{one.file.path}: named as of one job with {first}, but its GPUs ran at another time (UTC)")
    return words


def _placed(file: TraceFile, part: NsysPart, rank: int, found: Iterations) -> list[PlacedTrace]:
    steps = found.number.tolist()
    if file.iteration is not None and len(steps) == 1:
        numbers: list[tuple[int, int | None]] = [(file.iteration, None)]
        counted_by = ""
    else:
        numbers = [(step, step if len(steps) > 1 else None) for step in steps]
        counted_by = found.counted_by
    place = (rank, file.path, file.name)
    return [
        PlacedTrace(file.run, number, *place, step, part.key, format=NsysFiles.name, counted_by=counted_by)
        for number, step in numbers
    ]
