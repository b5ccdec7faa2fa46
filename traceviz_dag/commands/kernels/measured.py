"""``traceviz kernels --ncu``: what Nsight Compute measured of kernels, beside their operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from traceviz_dag.analyze.wording import counted, shortened
from traceviz_dag.commands.common.output import print_columns, print_wrapped
from traceviz_dag.pipeline.answers.iterations import heading, place

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration
    from traceviz_dag.read.ncu import MeasuredKernel

_OPERATION = ("operation", "phase", "shapes")
_ROUNDING = 1e-6
_LAUNCHED = ("operation", "phase", "shapes", "launches", "median_ns", "flops", "bytes", "model_reason")


def measured_of(
    measured: Sequence[MeasuredKernel], iteration: StoredIteration, rank: int | None
) -> list[dict[str, Any]]:
    """The rows that ``--json`` prints: each measured kernel with each operation that runs it, or with none."""
    from traceviz_dag.lake.operation_summaries import launched

    launches = _with_their_work(launched(iteration.lake, iteration.run, iteration.iteration, rank).to_pylist())
    found = [(kernel, _matching(kernel, launches)) for kernel in measured]
    return [{**place(iteration), **row} for kernel, matching in found for row in _beside(kernel, matching)]


def _with_their_work(launches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The launches with FLOPs and bytes where a kernel does the work of its operation, else with ``model_reason``.

    It does where it is the only one of a call that computes a product or attention, or the only one at all.
    """
    from traceviz_dag.analyze.work_evidence import bound_by_memory

    names = [row["kernel"] for row in launches]
    heavy = [not light for light in bound_by_memory(np.arange(len(names)), names).tolist()]
    of_operation: dict[tuple[Any, ...], list[tuple[dict[str, Any], bool]]] = {}
    for row, one in zip(launches, heavy, strict=True):
        of_operation.setdefault(tuple(row[name] for name in _OPERATION), []).append((row, one))
    found = []
    for rows in of_operation.values():
        calls = sum(row["calls"] for row, _ in rows)
        some = any(one for _, one in rows)
        per_call = sum(row["launches"] for row, one in rows if one == some) / max(calls, 1)
        for row, one in rows:
            reason = None
            if one != some:
                reason = "other kernels of its operation do the work that the model counts"
            elif per_call > 1 + _ROUNDING:
                reason = f"it is one of {per_call:.3g} kernels of a call that do the work that the model counts"
            unknown = {} if reason is None else {"flops": None, "bytes": None}
            found.append({**row, **unknown, "model_reason": reason})
    return found


def _matching(kernel: MeasuredKernel, launches: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | str:
    """The launches of the trace that run a measured kernel, or why there are none.

    Demanglers write templates and arguments differently: if no name is equal, the function decides, where with these
    sizes only one kernel has it.
    """
    from traceviz_dag.show.lanes.names import function_name

    sized = [
        row
        for row in launches
        if all(size is None or None in row[name] or list(size) == row[name] for name, size in _sizes(kernel))
    ]
    name = "".join(kernel.name.split())
    equal = [row for row in sized if "".join(row["kernel"].split()) == name]
    if equal:
        return equal
    function = function_name(kernel.name)
    named = [row for row in sized if function_name(row["kernel"]) == function]
    if not named:
        return "no operation runs a kernel of this name and size"
    count = len({row["kernel"] for row in named})
    return named if count == 1 else f"{count} kernels have this function and size: export with demangled names"


def _sizes(kernel: MeasuredKernel) -> Iterator[tuple[str, tuple[int, int, int] | None]]:
    yield from (("grid", kernel.grid), ("block", kernel.block))


def _beside(kernel: MeasuredKernel, found: list[dict[str, Any]] | str) -> Iterator[dict[str, Any]]:
    own = {
        ("kernel" if name == "name" else name if name in ("grid", "block") else f"ncu_{name}"): value
        for name, value in asdict(kernel).items()
    }
    if isinstance(found, str):
        yield {**own, **dict.fromkeys(_LAUNCHED), "reason": found}
    else:
        yield from ({**own, **{name: row[name] for name in _LAUNCHED}, "reason": None} for row in found)


def print_measured(measured: Sequence[MeasuredKernel], iteration: StoredIteration, rank: int | None) -> bool:
    """Print the measured kernels beside the operations of an iteration; returns whether one was joined."""
    rows = measured_of(measured, iteration, rank)
    known = [row for row in rows if row["reason"] is None]
    joined = counted(len(known), "operation runs", "operations run")
    print_wrapped(heading(iteration, f"{joined} kernels that Nsight Compute measured"), 2, "\n")
    print_columns(
        "Measured by Nsight Compute (ncu), beside the trace and the model, per call",
        [
            {
                **row,
                "operation": shortened(row["operation"] or row["kernel"], 48),
                "call_ns": row["median_ns"],
                "call_flops": row["flops"],
                "call_bytes": row["bytes"],
            }
            for row in known
        ],
        [
            *("operation", "shapes", "phase", "launches", ("call_ns", "time"), ("ncu_duration_ns", "time (ncu)")),
            *(("call_flops", "model"), ("ncu_flops", "ncu"), ("call_bytes", "model"), ("ncu_bytes", "ncu")),
            *(("ncu_compute_share", "compute"), ("ncu_memory_share", "memory")),
        ],
    )
    titles = {"reason": "Measured, without an operation", "model_reason": "Not compared with the model"}
    for column, title in {**titles, "ncu_reason": "FLOPs not measured"}.items():
        print_columns(title, [row for row in rows if row[column] is not None], ["kernel", (column, "reason")])
    return bool(known)
