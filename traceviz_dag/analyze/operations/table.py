"""The table ``operations`` of one rank, from its kernels and the operators that launched them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import codes, holds
from traceviz_dag.analyze.operations.formulas import NOT_COUNTED, class_of, shards_of, work_of
from traceviz_dag.analyze.operations.grouping import grouped
from traceviz_dag.analyze.operations.roofline import Roofline, roofline
from traceviz_dag.analyze.operations.work import Work
from traceviz_dag.analyze.peaks import BUILT_IN, GpuPeaks, Peaks
from traceviz_dag.arrays import NONE, Bool, Int64, among, distinct, lookup, number_groups
from traceviz_dag.classify.operators import LaunchingOperators
from traceviz_dag.read.events import OperatorInputs, TraceEvents, bounded
from traceviz_dag.tables import OPERATIONS
from traceviz_dag.vocabulary import CPU_DEVICE, MATRIX, Kind, OperationClass

NO_OPERATOR = "no operator is recorded around its launch"
OF_A_GRAPH = "a CUDA graph launched it, whose operators are not recorded"
ON_CPU = "it ran on the CPU"

_NUMBER = re.compile(r"[\s_#:=]*\d+\Z")
"""What tells one module of a class, or one range of a kind, from the others."""

_FP4_KERNEL = re.compile(r"nvjet_(sm\d+_)?oo|e2m1|fp4|f4f4", re.IGNORECASE)
_FP8_KERNEL = re.compile(r"nvjet_(sm\d+_)?[qr][qr]|(?<!u)e4m3|e5m2|fp8|f8f8", re.IGNORECASE)
_TF32_KERNEL = re.compile(r"tf32|s1688", re.IGNORECASE)
"""Inputs do not show that matrix units round fp32 to TF32, or that Transformer Engine casts to FP8 or FP4; kernel names
do. cuBLAS has a letter for each matrix: q and r are FP8, o is FP4 (nvjet_sm100_ootst_…_Avec16UE4M3 of
NVFP4). UE4M3 and UE8M0 are the types of scales."""

_REDUCES = re.compile(r"reduce|_rs|broadcast", re.IGNORECASE)

_LONGEST_TEXT = 2_000
_READ = (
    *("kernel_id", "name", "kind", "phase", "module", "duration_ns", "device", "stage", "graph_node_id"),
    "group_size",
)
_PER_ROW = (
    *("operation", "operation_class", "shapes", "types", "strides", "input_values", "forward_shapes", "kernel"),
    *("flops", "bytes", "number_format", "intensity", "gpu", "peak_flops_per_s", "memory_bytes_per_s", "roofline_ns"),
    *("efficiency", "headroom_ns", "bound", "reason"),
)


def operations_table(
    trace: TraceEvents, kernels: pa.Table, operators: LaunchingOperators, peaks: Peaks = BUILT_IN
) -> tuple[pa.Table, pa.Array]:
    """The operations of a rank, and of each kernel the one that it belongs to.

    Args:
        kernels: table ``kernels`` of the iteration.
        operators: of each kernel of the file.

    Returns:
        The table ``operations``, and the column ``operation_id`` of ``kernels``.
    """
    columns = kernels.select(_READ)
    chosen = columns["kernel_id"].to_numpy()
    mine = LaunchingOperators(**{each.name: getattr(operators, each.name)[chosen] for each in fields(operators)})
    label, labels = _labels(trace, mine)
    phase, phases = codes(columns, "phase")
    module, modules = _without_numbers(*codes(columns, "module"))
    name, names = codes(columns, "name")
    communicates = holds(columns, "kind", Kind.COMMUNICATION.value)
    shards = _shards(trace, columns, mine, communicates)
    # What no call launched is told apart by the kernel itself.
    unnamed = np.where(label == NONE, name, NONE)
    parts = (label, mine.inputs, mine.forward_inputs, shards, phase, module, unnamed, communicates)
    keys = [np.asarray(part, dtype=np.int64) for part in parts]
    groups = grouped(keys, mine.call, name.astype(np.int64), columns["duration_ns"].to_numpy())
    first = groups.first
    device = trace.header.device_name
    gpu = peaks.of(device)
    on_cpu = holds(columns, "device", CPU_DEVICE)[first]
    of_graph = columns["graph_node_id"].is_valid().to_numpy()[first]
    described = []
    for number, row in enumerate(first.tolist()):
        operation = labels[label[row]] if label[row] != NONE else None
        given, forward = (trace.operator_inputs[code[row]] for code in (mine.inputs, mine.forward_inputs))
        kernel = names[groups.main_name[number]]
        operation_class, work = _work(operation, given, forward, kernel, int(shards[row]))
        if communicates[row]:
            operation_class, work = OperationClass.COMMUNICATION, Work(reason=NOT_COUNTED)
        elif of_graph[number]:
            # An operator around the launch of a graph is not that of its kernels.
            work = Work(reason=OF_A_GRAPH)
        elif operation is None or mine.annotation[row]:
            work = Work(reason=NO_OPERATOR)
        limit = roofline(work, operation_class, int(groups.calls[number]), int(groups.kernel_ns[number]), gpu, device)
        if on_cpu[number]:
            limit = Roofline(reason=ON_CPU)
        described.append(
            {
                "operation": operation,
                "operation_class": operation_class.value,
                "shapes": _bounded(given.sizes),
                "types": _bounded(given.types),
                "strides": _bounded(given.strides),
                "input_values": _bounded(given.values),
                "forward_shapes": _bounded(forward.sizes),
                "kernel": kernel,
                **_measures(work, limit, int(groups.kernel_ns[number]), None if on_cpu[number] else gpu),
            }
        )
    table = OPERATIONS.from_columns(
        {
            "operation_id": np.arange(len(first)),
            "stage": columns["stage"].take(first),
            "phase": _words(phases, phase[first]),
            "module": _words(modules, module[first]),
            "count": groups.calls,
            "kernels": groups.kernels,
            "kernel_ns": groups.kernel_ns,
            "shortest_ns": groups.shortest_ns,
            "median_ns": groups.median_ns,
            "p95_ns": groups.p95_ns,
            "longest_ns": groups.longest_ns,
            **{each: [row[each] for row in described] for each in _PER_ROW},
        }
    )
    return table, pa.array(groups.of_kernel.astype(np.int32))


def _work(
    operation: str | None, given: OperatorInputs, forward: OperatorInputs, kernel: str, shards: int
) -> tuple[OperationClass, Work]:
    if operation is None:
        return OperationClass.OTHER, Work(reason=NO_OPERATOR)
    operation_class, work = class_of(operation), work_of(operation, given, forward, shards or None)
    if operation_class in MATRIX:
        if work.number_format == "fp32" and _TF32_KERNEL.search(kernel):
            work = work._replace(number_format="tf32")
        elif work.number_format in ("bf16", "fp16") and _FP4_KERNEL.search(kernel):
            work = work._replace(number_format="fp4")
        elif work.number_format in ("bf16", "fp16") and _FP8_KERNEL.search(kernel):
            work = work._replace(number_format="fp8")
    return operation_class, work


def _shards(trace: TraceEvents, columns: pa.Table, operators: LaunchingOperators, communicates: Bool) -> Int64:
    """How many ranks' shards of its activation the call of each kernel gathers; 0 where that is not recorded.

    The gradient of its result shows it. Without one, what communicates in such a call but reduces nothing gathers: on
    its own (userbuffers), or as a call inside it.
    """
    code, names = codes(columns, "name")
    gathers = np.flatnonzero(communicates & (operators.gathering != NONE))
    others = [one for one in distinct(code[gathers]).tolist() if not _REDUCES.search(names[one])]
    gathers = gathers[among(code[gathers], np.array(others, np.int32))]
    members = columns["group_size"].fill_null(0).to_numpy()[gathers]
    found = np.ones(len(code), dtype=np.int64)
    calls, which = np.unique(operators.gathering[gathers], return_inverse=True)
    largest = np.zeros(len(calls), dtype=np.int64)
    np.maximum.at(largest, which, members)
    own = np.flatnonzero((operators.call == operators.gathering) & np.isin(operators.call, calls) & ~communicates)
    found[own] = largest[np.searchsorted(calls, operators.call[own])]
    with_gradient = np.flatnonzero((operators.backward_inputs > 0) & ~communicates)
    layers = (operators.name, operators.inputs, operators.backward_inputs)
    first, which = number_groups(*(each[with_gradient] for each in layers))
    shown = [
        shards_of(trace.strings[name], *(trace.operator_inputs[code] for code in codes_of))
        for name, *codes_of in zip(*(each[with_gradient[first]].tolist() for each in layers), strict=True)
    ]
    by_gradient = np.array([each or NONE for each in shown], dtype=np.int64)[which]
    found[with_gradient] = np.where(by_gradient == NONE, found[with_gradient], by_gradient)
    return found


def _measures(work: Work, limit: Roofline, kernel_ns: int, gpu: GpuPeaks | None) -> Mapping[str, object]:
    known = limit.roofline_ns
    return {
        "flops": work.flops,
        "bytes": work.bytes,
        "number_format": work.number_format,
        "intensity": work.flops / work.bytes if work.flops is not None and work.bytes else None,
        "gpu": gpu.gpu if gpu is not None else None,
        "peak_flops_per_s": limit.peak_flops_per_s,
        "memory_bytes_per_s": gpu.memory_bytes_per_s if gpu is not None else None,
        "roofline_ns": known,
        "efficiency": known / kernel_ns if known is not None and kernel_ns else None,
        "headroom_ns": max(kernel_ns - known, 0) if known is not None else None,
        "bound": limit.bound.value if limit.bound is not None else None,
        "reason": work.reason or limit.reason,
    }


def _labels(trace: TraceEvents, operators: LaunchingOperators) -> tuple[Int64, list[str]]:
    """Of each kernel the number of the name of its operation, NONE where there is none; and the names.

    Annotations and NVTX ranges are often numbered, and each would be an operation of its own.
    """
    names: dict[str, int] = {}
    found = np.full(len(operators.name), NONE, dtype=np.int64)
    for annotation in (False, True):
        rows = np.flatnonzero((operators.annotation == annotation) & (operators.name > 0))
        first, which = number_groups(operators.name[rows])
        words = [trace.strings[code] for code in operators.name[rows[first]].tolist()]
        words = [_NUMBER.sub("", word) or word if annotation else word for word in words]
        numbers = np.array([names.setdefault(word, len(names)) for word in words], dtype=np.int64)
        found[rows] = numbers[which]
    return found, list(names)


def _without_numbers(code: np.ndarray, names: list[str]) -> tuple[Int64, list[str]]:
    classes: dict[str, int] = {}
    number = [classes.setdefault(_NUMBER.sub("", name) or name, len(classes)) for name in names]
    return lookup(np.array(number, dtype=np.int64), code.astype(np.int64)), list(classes)


def _words(words: list[str], code: np.ndarray) -> list[str | None]:
    return [words[place] if place != NONE else None for place in code.tolist()]


def _bounded(text: str) -> str | None:
    return bounded(text, _LONGEST_TEXT) or None
