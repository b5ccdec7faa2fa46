"""Slow and obvious measures on sets of whole nanoseconds, and small random kernels to try the fast ones on."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

from traceviz_dag.tables import KERNELS

EPOCH_NS = 1_700_000_000_000_000_001
"""An instant that a float64 cannot hold: whoever computes with floats fails."""

_NEEDED = (
    *("start_ns", "duration_ns", "device", "kind", "phase", "dimension", "step", "stage", "chunk", "microbatch"),
    *("launching_chunk", "launching_microbatch"),
)


def kernel_table(rows: list[dict]) -> pa.Table:
    """Kernels of a few columns with the types of the real table; what a row does not say is NULL."""
    fields = [KERNELS.schema.field(name) for name in _NEEDED]
    arrays = [pa.array([row.get(field.name) for row in rows], type=field.type) for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def kernel(start: int, duration: int, kind: str, dimension: str | None = None, **more: object) -> dict:
    row = {"start_ns": start, "duration_ns": duration, "device": "gpu:0", "kind": kind, "dimension": dimension}
    return {**row, **more}


def instants(rows: list[dict]) -> set[int]:
    """Every nanosecond in which at least one of the kernels runs."""
    return {instant for row in rows for instant in range(row["start_ns"], row["start_ns"] + row["duration_ns"])}


def naive_measures(rows: list[dict], dimension: str, start: int, end: int) -> dict[str, int]:
    window = set(range(start, end))
    compute = instants([row for row in rows if row["kind"] == "computation"]) & window
    memory = instants([row for row in rows if row["kind"] == "memory"]) & window
    every = [row for row in rows if row["kind"] == "communication"]
    communication = instants([row for row in every if dimension in ("all", row["dimension"] or "unknown")]) & window
    busy = compute | memory | (instants(every) & window)
    return {
        "compute_ns": len(compute),
        "communication_ns": len(communication),
        "hidden_ns": len(communication & compute),
        "exposed_ns": len(communication - compute),
        "memory_ns": len(memory),
        "busy_ns": len(busy),
        "idle_ns": len(window - busy),
    }


def measures_of(row: dict) -> dict[str, int]:
    """The measured columns of one row of a result."""
    names = ("compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "memory_ns", "busy_ns", "idle_ns")
    return {name: row[name] for name in names}


@st.composite
def _random_kernel(draw) -> dict:
    kind = draw(st.sampled_from(["computation", "communication", "communication", "memory"]))
    dimension = draw(st.sampled_from(["tp", "dp", "unknown", None])) if kind == "communication" else None
    inside = draw(st.booleans())
    return kernel(
        EPOCH_NS + draw(st.integers(0, 40)),
        draw(st.integers(0, 12)),
        kind,
        dimension,
        device=draw(st.sampled_from(["gpu:0", "gpu:1"])),
        phase=draw(st.sampled_from(["forward", "backward", "recompute", "optimizer", None])),
        step=draw(st.sampled_from([7, 8, None])),
        stage=1,
        chunk=draw(st.sampled_from([0, 1, None])) if inside else None,
        microbatch=draw(st.integers(0, 1)) if inside else None,
    )


random_kernels = st.lists(_random_kernel(), max_size=14)
