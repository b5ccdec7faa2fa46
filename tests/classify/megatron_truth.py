"""Reads the ground truth: groups that Megatron-core's own initialize_model_parallel built, and headers of real runs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from isal import igzip

from traceviz_dag.classify.topology.parallel_sizes import ParallelSizes
from traceviz_dag.read.events import ProcessGroup, TraceHeader

CONFIGURATIONS = (
    "w16_tp2_cp2_pp2_order_cp-tp",
    "w16_tp2_ep4_pp2_etp2",
    "w16_tp2_pp2_cp2_dp2",
    "w16_tp2_pp2_dp4_distopt2",
    "w16_tp2_pp4_cp2_dp1",
    "w32_tp2_pp4_cp2_dp2",
    "w32_tp4_pp2_ep8_etp1",
    "w8_pp2_ep4",
    "w8_tp2_pp2_dp2",
    "w8_tp2_pp2_dp2_ppfirst",
    "w8_tp2_pp4_vpp2",
)
RUNS = ("pp2_dp2_distopt_overlap", "pp2_ep2_moe", "pp4_1f1b", "tp2_pp2_vpp2_full")

_OPTIONS = {
    "world": "world",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "virtual_pipeline_model_parallel_size": "vpp",
    "order": "order",
    "num_distributed_optimizer_instances": "distributed_optimizer_instances",
}


def truth(shared_data: Path, configuration: str) -> dict[str, Any]:
    return json.loads((shared_data / "topology" / f"{configuration}.json").read_text())


def options(configuration: dict[str, Any]) -> dict[str, Any]:
    """Megatron's argument names → ours."""
    return {_OPTIONS[name]: value for name, value in configuration.items() if name in _OPTIONS}


def sizes(configuration: dict[str, Any]) -> ParallelSizes:
    return ParallelSizes.of(**options(configuration))


def header(rank: int, distributed: dict[str, Any]) -> TraceHeader:
    groups = tuple(
        ProcessGroup(
            name=entry["pg_name"],
            description=entry.get("pg_desc"),
            ranks=tuple(entry["ranks"]),
            size=entry.get("pg_size", entry.get("group_size", 0)),
        )
        for entry in distributed.get("pg_config", [])
    )
    return TraceHeader(rank=rank, world_size=distributed.get("world_size"), process_groups=groups)


def rank_zero_header(document: dict[str, Any]) -> TraceHeader:
    return header(0, {"world_size": document["config"]["world"], "pg_config": document["pg_config_rank0"]})


def all_headers(document: dict[str, Any], *, described: bool = True) -> dict[int, TraceHeader]:
    """A header per rank out of the true groups, names numbered as the job would."""
    names: dict[tuple[str, tuple[int, ...]], str] = {}
    headers = {}
    world = document["config"]["world"]
    for rank, row in document["per_rank"].items():
        everyone = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": world}
        entries = {"0": everyone}
        for kind, description in document["group_desc"].items():
            if kind in row:
                name = names.setdefault((description, tuple(row[kind])), str(len(names) + 1))
                ranks = [] if len(row[kind]) == world else row[kind]
                entries[name] = {"pg_name": name, "pg_desc": description, "ranks": ranks, "group_size": len(row[kind])}
        if not described:
            entries = {name: {**entry, "pg_desc": "undefined"} for name, entry in entries.items()}
        headers[int(rank)] = header(int(rank), {"world_size": world, "pg_config": list(entries.values())})
    return headers


@cache
def run_headers(shared_data: Path, run: str) -> dict[int, TraceHeader]:
    headers = {}
    for path in sorted((shared_data / "megatron_gpu" / run).glob("iteration_*/*.json.gz")):
        text = igzip.decompress(path.read_bytes()).decode()
        distributed, _ = json.JSONDecoder().raw_decode(text, text.index("{", text.index('"distributedInfo"')))
        headers[distributed["rank"]] = header(distributed["rank"], distributed)
    return headers
