"""Nsight Systems exports as a source of the pipeline: which ranks and iterations they hold, and the events of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.nsys_activity import Activity, activities
from traceviz_dag.analyze.nsys_iterations import iterations_of
from traceviz_dag.analyze.nsys_ranges import ranges_table
from traceviz_dag.classify.nsys_trace import NsysPart, communicator_groups, trace_events
from traceviz_dag.classify.rules import Rules, load_rules
from traceviz_dag.classify.topology_types import Topology
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.read.events import KERNEL, ProcessGroup, TraceEvents, TraceHeader
from traceviz_dag.read.layouts import TraceFile
from traceviz_dag.read.nsys_cache import open_profile
from traceviz_dag.read.nsys_iterations import Iterations
from traceviz_dag.read.nsys_profile import NsysProfile
from traceviz_dag.read.placement import PlacedTrace, Placement

_NODE_IN_NAME = re.compile(r"(?<![A-Za-z])node[_-]?(\d+)(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Export:
    """One export of a run and what it holds.

    Attributes:
        node: of its name; None where that does not tell.
        utc_start_ns: when the capture began; None where not stated.
        parts: processes and their GPUs, by GPU.
    """

    file: TraceFile
    node: int | None
    utc_start_ns: int | None
    parts: tuple[NsysPart, ...]


def place_exports(
    files: Sequence[TraceFile], home: Path | None, rules: Rules | None = None, rank: int | None = None
) -> Placement:
    """Place the ranks of some exports of one run.

    Args:
        files: exports and reports, as discovered.
        home: where profiles are kept once they were read; None keeps nothing.
        rank: rank of an export that holds only one and does not say which.
    """
    exports, problems = [], []
    profiles: dict[Path, NsysProfile] = {}
    for file in files:
        try:
            profile = open_profile(file.path, home)
            parts = parts_of(profile)
            if not parts:
                raise BadInputError(file.path, "no kernels were recorded", "capture with --trace=cuda,nvtx")
        except BadInputError as error:
            problems.append(error)
            continue
        profiles[file.path] = profile
        node = _NODE_IN_NAME.search(file.path.name)
        exports.append(Export(file, int(node[1]) if node else None, profile.facts.utc_start_ns, parts))
    numbered, words = number_ranks(exports, rank)
    traces = []
    for export, ranks in numbered:
        for part, number in zip(export.parts, ranks, strict=True):
            found = iterations_of_part(profiles[export.file.path], part, rules or load_rules())
            traces += _placed(export.file, part, number, found)
    places = Counter((trace.iteration, trace.rank) for trace in traces)
    doubled = sorted({trace.path for trace in traces if places[trace.iteration, trace.rank] > 1})
    problems += [
        BadInputError(
            path, "ranks that another export claims too, so none of them is taken", "name it …rankN or …nodeN"
        )
        for path in doubled
    ]
    kept = [trace for trace in traces if places[trace.iteration, trace.rank] == 1]
    return Placement(tuple(sorted(kept, key=lambda one: (one.iteration, one.rank))), tuple(problems), tuple(words))


def number_ranks(
    exports: Sequence[Export], rank: int | None = None
) -> tuple[list[tuple[Export, tuple[int, ...]]], list[str]]:
    """The global rank of each part of each export, and what had to be assumed.

    A name that bears a rank (``rank3``) numbers an export of one part. Otherwise nodes count by the number in their
    names, else by name, and the ranks of a node by GPU: that is how torchrun and Slurm number them.
    """
    found: list[tuple[Export, tuple[int, ...]]] = []
    assumed: list[str] = []
    nodes: list[Export] = []
    for export in exports:
        stated = export.file.rank if export.file.rank is not None else rank
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


def parts_of(profile: NsysProfile) -> tuple[NsysPart, ...]:
    """The (process, GPU) pairs of a profile that ran kernels, by GPU."""
    found = []
    for device in profile.keys("operations"):
        rows = profile.rows("operations", "process", "category", of=[device])
        found += [
            NsysPart(process, device) for process in np.unique(rows["process"][rows["category"] == KERNEL]).tolist()
        ]
    return tuple(found)


def iterations_of_part(profile: NsysProfile, part: NsysPart, rules: Rules) -> Iterations:
    """The iterations of one rank, in the capture's clock."""
    return iterations_of(profile, _activity(profile, part, rules), rules)


def export_headers(entries: Iterable[tuple[int, Path, str]], home: Path | None) -> dict[int, TraceHeader]:
    """What stands in for the trace headers of ranks whose source are exports.

    Process groups are NCCL's communicators; their members are the ranks that use them, over all exports of the job.

    Args:
        entries: (rank, path of the export, key of its part) of each.

    Raises:
        BadInputError: an export cannot be read.
    """
    by_path: dict[Path, dict[int, NsysPart]] = {}
    for rank, path, key in entries:
        by_path.setdefault(path, {})[rank] = NsysPart.of_key(key)
    members: dict[str, set[int]] = {}
    sizes: dict[str, int] = {}
    headers: dict[int, TraceHeader] = {}
    for path, parts in by_path.items():
        profile = open_profile(path, home)
        processes = Counter(part.process for part in parts.values())
        alone = {part.process: rank for rank, part in parts.items() if processes[part.process] == 1}
        for name, (group, ranks) in communicator_groups(profile, alone).items():
            members.setdefault(name, set()).update(ranks)
            sizes[name] = max(sizes.get(name, 0), group.size)
        names = {gpu.device: gpu.name for gpu in profile.facts.gpus}
        headers |= {
            rank: TraceHeader(
                rank=rank,
                backend="nccl",
                base_time_ns=profile.facts.utc_start_ns or 0,
                device_name=names.get(part.device),
            )
            for rank, part in parts.items()
        }
    groups = tuple(
        ProcessGroup(name, None, tuple(sorted(ranks)), max(sizes[name], len(ranks))) for name, ranks in members.items()
    )
    return {
        rank: replace(header, process_groups=tuple(group for group in groups if rank in group.ranks))
        for rank, header in headers.items()
    }


def export_events(
    path: Path,
    key: str,
    rank: int,
    topology: Topology,
    home: Path | None,
    rules: Rules,
    *,
    every_annotation: bool = False,
) -> TraceEvents:
    """The events of one rank of an export.

    Args:
        key: the part of the export that is the rank.
        every_annotation: keep annotations that no rule gives a meaning; only for what asks for them by name.

    Raises:
        BadInputError: the export cannot be read, or does not hold the part.
    """
    profile, part = open_profile(path, home), NsysPart.of_key(key)
    try:
        found = iterations_of_part(profile, part, rules)
    except UsageError:
        raise BadInputError(path, "it no longer holds this rank", "run traceviz analyze on its folder again") from None
    groups = tuple(
        ProcessGroup(group.name, None, group.ranks, group.size)
        for group in topology.groups
        if group.name is not None and rank in group.ranks
    )
    names: Mapping[int, str | None] = {gpu.device: gpu.name for gpu in profile.facts.gpus}
    header = TraceHeader(
        rank=rank,
        world_size=topology.world_size,
        backend="nccl",
        process_groups=groups,
        base_time_ns=profile.facts.utc_start_ns or 0,
        device_name=names.get(part.device),
    )
    return trace_events(profile, part, header, found, None if every_annotation else rules)


def export_ranges(path: Path, key: str, home: Path | None, windows: Sequence[tuple[int, int, int]]) -> pa.Table:
    """The table ``nvtx_ranges`` of one rank of an export.

    Args:
        windows: (number, start_ns, end_ns) of the iterations wanted, on the rank's clock; empty takes everything.
    """
    profile = open_profile(path, home)
    activity = _activity(profile, NsysPart.of_key(key), load_rules())
    return ranges_table(profile, activity, windows, profile.facts.utc_start_ns or 0)


def _activity(profile: NsysProfile, part: NsysPart, rules: Rules) -> Activity:
    (gpu,) = activities(profile, rules, [part.device])
    mine = gpu.take(gpu.process == part.process)
    if not len(mine):
        raise UsageError(f"{profile.path}: no activity of process {part.process} on GPU {part.device}")
    return mine


def _placed(file: TraceFile, part: NsysPart, rank: int, found: Iterations) -> list[PlacedTrace]:
    steps = found.number.tolist()
    if file.iteration is not None and len(steps) == 1:
        return [PlacedTrace(file.run, file.iteration, rank, file.path, file.name, None, part.key)]
    several = len(steps) > 1
    return [
        PlacedTrace(file.run, step, rank, file.path, file.name, step if several else None, part.key) for step in steps
    ]
