"""Overlap of real traces against TraceLens' gpu_timeline, which counts memsets of CUDA as computation."""

from __future__ import annotations

import csv
from collections import defaultdict

import numpy as np
import pytest

from traceviz_dag.analyze.intervals import union
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.ranks import analyse_rank

ROUNDING_NS = 100
"""It adds microseconds as 64-bit floats of about 10^15, which are a quarter of a microsecond apart."""


@pytest.mark.parametrize("name", ["h100_qwen05b", "mi300_qwen05b", "mi300_resnet_act_checkpoint"])
def test_computation_communication_copies_and_the_total_are_equal_memsets_apart(name, shared_data):
    is_cuda = name.startswith("h100")
    folder = shared_data / "kineto" / "tracelens"
    path = folder / f"{name}.json.gz"
    tables = analyse_rank(RankTrace(path, path.name, 0), unite({}), load_rules())
    (row,) = (
        row for row in tables["overlap"].to_pylist() if row["window_name"] == "kernels" and row["dimension"] == "all"
    )
    theirs = defaultdict(float)
    with (folder / f"{name}.gpu_timeline.csv").open(newline="") as file:
        for each in csv.DictReader(file):
            # What is computed again is a table of its own there.
            again = each.get("is_recompute") == "True" and each["type"] != "computation_time"
            theirs[each["type"]] += 0.0 if again else 1e6 * float(each["time ms"])
    chosen = [
        each
        for each in tables["kernels"].to_pylist()
        if each["start_ns"] >= row["window_start_ns"] and each["start_ns"] < row["window_end_ns"]
    ]

    def time(kept) -> int:
        here = [each for each in chosen if kept(each)]
        starts = np.array([each["start_ns"] for each in here], dtype=np.int64)
        found = union(starts, starts + np.array([each["duration_ns"] for each in here], dtype=np.int64))
        return int((found.ends - found.starts).sum())

    def is_set(each) -> bool:
        return each["name"].startswith("Memset")

    ours = {
        "computation_time": time(lambda each: each["kind"] == "computation" or (is_cuda and is_set(each))),
        "total_comm_time": row["communication_ns"],
        "total_memcpy_time": time(lambda each: each["kind"] == "memory" and not is_set(each)),
        "total_time": row["window_end_ns"] - row["window_start_ns"],
    }
    assert {kind: pytest.approx(theirs[kind], abs=ROUNDING_NS) for kind in ours} == ours
