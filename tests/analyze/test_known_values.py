"""Overlap on real traces equals what other tools and independent counts give for them.

The classification here is deliberately trivial, so that these figures judge the measuring alone.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.analyze.naive_measures import kernel, kernel_table
from traceviz_dag.analyze.invariants import overlap_violations
from traceviz_dag.analyze.overlap import overlap_table, window_overlap

# Trace → kernels (memory operations left out), hidden / communication in %, hidden / min(compute, communication).
KINETO = {
    "hta/trace_filter_rank-0": (1154, 14.95, 0.282),
    "hta/trace_filter_rank-1": (1104, 19.93, 0.278),
    "hta/nccl_parser_config": (2700, 15.61, 0.156),
    "dlrm8/rank0": (245, 4.50, 0.252),
    "dlrm8/rank1": (310, 2.47, 0.225),
    "dlrm8/rank2": (246, 7.88, 0.257),
    "dlrm8/rank3": (315, 3.31, 0.261),
    "dlrm8/rank4": (251, 0.56, 0.033),
    "dlrm8/rank5": (245, 0.64, 0.038),
    "dlrm8/rank6": (246, 7.56, 0.256),
    "dlrm8/rank7": (246, 9.51, 0.157),
    "tracelens/mi300_resnet_act_checkpoint": (2995, 22.22, 0.617),
}

# Export → per device: kernels, their span, compute, NCCL, hidden and (inside that span) busy; ns, None where not known.
NSYS = {
    "mfu_2gpu_before": [
        (1993, 299848812, 253690832, 17172652, 0, 273817787),
        (2017, 298661551, 256095624, 8229100, 0, 267275916),
    ],
    "h100_2gpu_1s": [
        (1721, 960485009, 22385163, None, None, 953946851),
        (1721, 960307663, 22444359, None, None, 953871950),
    ],
}


def _kind(name: str, category: str) -> str:
    if category in {"gpu_memcpy", "gpu_memset"}:
        return "memory"
    return "communication" if "nccl" in name.lower() else "computation"


def _kineto_kernels(path: Path) -> pa.Table:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        trace = json.load(file, parse_float=Decimal)
    return kernel_table(
        [
            kernel(int(event["ts"] * 1000), int(event["dur"] * 1000), _kind(event["name"], event["cat"].lower()))
            for event in trace["traceEvents"]
            if event.get("ph") == "X" and str(event.get("cat", "")).lower() in {"kernel", "gpu_memcpy", "gpu_memset"}
        ]
    )


def _nsys_kernels(path: Path) -> pa.Table:
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as export:
        rows = export.execute(
            "SELECT start, end, deviceId, value, 'kernel' FROM CUPTI_ACTIVITY_KIND_KERNEL"
            " JOIN StringIds ON StringIds.id = demangledName"
            " UNION ALL SELECT start, end, deviceId, '', 'gpu_memcpy' FROM CUPTI_ACTIVITY_KIND_MEMCPY"
            " UNION ALL SELECT start, end, deviceId, '', 'gpu_memset' FROM CUPTI_ACTIVITY_KIND_MEMSET"
        ).fetchall()
    return kernel_table(
        [
            kernel(start, end - start, _kind(name, category), device=f"gpu:{device}")
            for start, end, device, name, category in rows
        ]
    )


@pytest.mark.parametrize("trace", KINETO)
def test_hidden_shares_of_real_kineto_traces(shared_data, trace):
    kernels, hidden_percent, hidden_over_min = KINETO[trace]
    table = _kineto_kernels(shared_data / "kineto" / f"{trace}.json.gz")
    assert sum(kind != "memory" for kind in table.column("kind").to_pylist()) == kernels
    for overlap in (overlap_table(table), window_overlap(table)):
        row = overlap.to_pylist()[0]
        assert round(100 * row["hidden_share"], 2) == hidden_percent
        assert round(row["hidden_over_min"], 3) == hidden_over_min
        assert overlap_violations(overlap).num_rows == 0


@pytest.mark.parametrize("export", NSYS)
def test_unions_of_real_nsight_systems_exports(shared_data, export):
    table = _nsys_kernels(shared_data / "nsys" / f"{export}.sqlite")
    rows = table.to_pylist()
    for device, (kernels, span, compute, communication, hidden, busy) in enumerate(NSYS[export]):
        launched = [row for row in rows if row["device"] == f"gpu:{device}" and row["kind"] != "memory"]
        start = min(row["start_ns"] for row in launched)
        end = max(row["start_ns"] + row["duration_ns"] for row in launched)
        assert (len(launched), end - start) == (kernels, span)
        measured = window_overlap(table, "clip", start, end).to_pylist()
        row = next(row for row in measured if row["device"] == f"gpu:{device}" and row["dimension"] == "all")
        assert (row["compute_ns"], row["busy_ns"]) == (compute, busy)
        if communication is not None:
            assert (row["communication_ns"], row["hidden_ns"]) == (communication, hidden)
