"""Nsight Systems exports as a source of the pipeline: the ranks of one, and the iterations and events of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.nsys.activity import Activity, activities
from traceviz_dag.analyze.nsys.iterations import iterations_of
from traceviz_dag.analyze.nsys.ranges import ranges_table
from traceviz_dag.classify.nsys.trace import NsysPart, communicator_groups, trace_events
from traceviz_dag.classify.rules import Rules, load_rules
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.read.events import KERNEL, ProcessGroup, TraceEvents, TraceHeader
from traceviz_dag.read.kineto.memory import MEMORY
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.read.nsys.iterations import Iterations
from traceviz_dag.read.nsys.memory import TABLE as MEMORY_TABLE
from traceviz_dag.read.nsys.profile import SCHEMAS, NsysProfile


def parts_of(profile: NsysProfile) -> tuple[tuple[NsysPart, ...], tuple[NsysPart, ...]]:
    """The (process, GPU) pairs of a profile that ran kernels, by GPU; and the others, which copied or set memory of the
    GPU, and are no ranks there."""
    found: tuple[list[NsysPart], list[NsysPart]] = ([], [])
    for device in profile.keys("operations"):
        rows = profile.rows("operations", "process", "category", of=[device])
        ran = set(np.unique(rows["process"][rows["category"] == KERNEL]).tolist())
        for process in np.unique(rows["process"]).tolist():
            found[process not in ran].append(NsysPart(process, device))
    return tuple(found[0]), tuple(found[1])


def iterations_of_part(profile: NsysProfile, part: NsysPart, rules: Rules) -> Iterations:
    """The iterations of one rank, in the capture's clock."""
    return iterations_of(profile, _activity(profile, part, rules), rules)


def export_headers(entries: Iterable[tuple[int, Path, str]], home: Path | None) -> dict[int, TraceHeader]:
    """What replaces the trace headers of ranks whose source are exports.

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
        raise BadInputError(
            path, "this rank is no longer in the file", "run traceviz analyze on its folder again"
        ) from None
    groups = tuple(
        ProcessGroup(group.name, None, group.ranks, group.size)
        for group in topology.groups
        if group.name is not None and rank in group.ranks
    )
    gpu = next((one for one in profile.facts.gpus if one.device == part.device), None)
    header = TraceHeader(
        rank=rank,
        world_size=topology.world_size,
        process_groups=groups,
        base_time_ns=profile.facts.utc_start_ns or 0,
        device_name=gpu.name if gpu else None,
        device_memory_bytes=gpu.memory_bytes if gpu else None,
        driver_version=profile.facts.driver_version,
        driver_release=profile.facts.driver_release,
        profiler_version=profile.facts.product_version and f"Nsight Systems {profile.facts.product_version}",
        profile_memory=bool(profile.facts.tables.get(MEMORY_TABLE)),
    )
    return trace_events(profile, part, header, found, None if every_annotation else rules)


def export_memory(path: Path, key: str, home: Path | None) -> pa.Table:
    """What one rank of an export allocated by calls of the driver, as ``MEMORY``; totals are not in exports."""
    profile, part = open_profile(path, home), NsysPart.of_key(key)
    if part.process not in profile.keys("memory"):
        return MEMORY.empty_table()
    rows = profile.part("memory", part.process, *SCHEMAS["memory"].names)[0]
    rows = rows.filter(pc.equal(rows["device"], part.device))
    base = profile.facts.utc_start_ns or 0

    def known(name: str) -> pa.Array:
        return pc.if_else(pc.less(rows[name], 0), None, rows[name])

    return pa.table(
        {
            "time_ns": pc.add(rows["time_ns"], base),
            "device": pa.repeat(f"gpu:{part.device}", rows.num_rows),
            "allocated_bytes": pa.nulls(rows.num_rows, pa.int64()),
            "reserved_bytes": pa.nulls(rows.num_rows, pa.int64()),
            "action": pc.if_else(pc.equal(rows["released"], 1), "segment_free", "segment_alloc"),
            "address": known("address"),
            "bytes": known("bytes"),
            "stream": known("stream"),
        },
        schema=MEMORY,
    )


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
