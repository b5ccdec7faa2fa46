"""Operations of real traces against the figures of TraceLens, another analyser, which lie beside them."""

from __future__ import annotations

import ast
import csv
import json
from collections import defaultdict

import pytest

from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.ranks import analyse_rank

_TRACES = ("h100_qwen05b", "mi300_qwen05b", "mi300_resnet_act_checkpoint")
_MEBIBYTE = 2**20
_FILLED = ("aten::fill_", "[[10,64,112,112],[]]")
_ROUNDING_NS = 500
"""TraceLens adds times in microseconds as 64-bit floats of about 10^15."""


def _counts(operation, shapes):
    """What TraceLens counts in another way: (its FLOPs, its bytes) from ours and those sizes.

    See the section on TraceLens in docs/kernels.md, which gives the reasons.
    """
    sizes = [size for size in json.loads(shapes) if size]
    if operation in ("aten::mean", "aten::sum"):
        # It takes any reduction to give one element.
        return lambda flops, moved, element: (flops, flops * element + element)
    if operation == "aten::native_batch_norm_backward":
        # Four vectors of the gradient's type, where two are fp32 and one more is written.
        return lambda flops, moved, element: (flops, moved - 14 * sizes[2][0] + 8 * sizes[2][0])
    if operation == "aten::convolution_backward" and sizes[1][1] == 3:
        # It counts the gradient of the images, which nobody asks for.
        return lambda flops, moved, element: (2 * flops, 2 * moved)
    if operation == "aten::div":
        # It reads each element of an expanded tensor, and takes its divisor to have four bytes, not eight.
        return lambda flops, moved, element: (flops, 2 * flops * element + 4)
    return lambda flops, moved, element: (flops, moved)


@pytest.fixture(scope="module", params=_TRACES)
def compared(request, shared_data):
    """Our rows and theirs, by name, sizes and types; rows that differ in strides, phase or module are added."""
    folder = shared_data / "kineto" / "tracelens"
    path = folder / f"{request.param}.json.gz"
    ours, theirs = defaultdict(list), defaultdict(list)
    tables = analyse_rank(RankTrace(path, path.name, 0), unite({}), load_rules())
    for row in tables["operations"].to_pylist():
        if row["shapes"] is not None:
            ours[row["operation"], row["shapes"], row["types"]].append(row)
    with (folder / f"{request.param}.operations.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            sizes, types = (_text(ast.literal_eval(row[name])) for name in ("Input Dims", "Input type"))
            if row["name"] == "aten::div":
                # It names the outer of two operators, which makes a tensor of the number for the inner one.
                types = types.replace("Scalar", "long int")
            theirs[row["name"].split("->")[0], sizes, types].append(row)
    return tables, ours, theirs


def _text(value):
    return json.dumps(value, separators=(",", ":"))


def test_calls_and_kernel_times_are_equal(compared):
    tables, ours, theirs = compared
    memory_ns = defaultdict(int)
    for kernel in tables["kernels"].select(["kind", "operation_id", "duration_ns"]).to_pylist():
        memory_ns[kernel["operation_id"]] += kernel["duration_ns"] * (kernel["kind"] == "memory")
    for key, rows in theirs.items():
        assert sum(row["count"] for row in ours[key]) == sum(int(row["operation_count"]) for row in rows), key
        total = sum(float(row["Kernel Time (µs)_sum"]) for row in rows)
        mine = sum(row["kernel_ns"] for row in ours[key])
        if "convolution" in key[0]:
            # It does not find what hipMemsetAsync launched.
            mine -= sum(memory_ns[row["operation_id"]] for row in ours[key])
        if key[0] == "aten::max_pool2d_with_indices_backward":
            # It counts the operator that this one calls first as a part of it.
            mine += sum(row["kernel_ns"] for other in ours if other[:2] == _FILLED for row in ours[other])
        assert mine == pytest.approx(total * 1_000, abs=_ROUNDING_NS), key
    assert len(theirs) >= 30
    kernels, operations = tables["kernels"], tables["operations"]
    assert sum(operations["kernel_ns"].to_pylist()) == sum(kernels["duration_ns"].to_pylist())
    assert sum(operations["kernels"].to_pylist()) == kernels.num_rows
    assert set(kernels["operation_id"].to_pylist()) == set(operations["operation_id"].to_pylist())


def test_operations_and_bytes_are_equal_or_the_difference_is_explained(compared):
    _, ours, theirs = compared
    compared_rows = 0
    for key, rows in theirs.items():
        for row in rows:
            if row["has_perf_model"] != "True":
                continue
            compared_rows += 1
            (work,) = {(mine["flops"], mine["bytes"], mine["number_format"]) for mine in ours[key]}
            element = {"bf16": 2, "fp32": 4}.get(work[2], 8)
            flops, moved = _counts(*key[:2])(*work[:2], element)
            assert flops == round(float(row["GFLOPS"]) * 1e9), key
            assert moved == round(float(row["Data Moved (MB)"]) * _MEBIBYTE), key
            assert (work[2] or "") in row["Compute Spec"]
    assert compared_rows >= 26
