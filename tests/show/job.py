"""A job in tables, without files: micro-batches, recompute, overlapped communication and very thin kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from traceviz_dag.analyze.microbatches import microbatches_table
from traceviz_dag.analyze.overlap import overlap_table
from traceviz_dag.lake.catalogue import view_columns
from traceviz_dag.tables import TABLES

MS = 1_000_000
ZERO = 1_770_682_389_000_000_000
STEP = 10


@dataclass
class MemorySource:
    """Tables handed in: name → rank → rows; a rank of None holds tables of the whole iteration."""

    tables: dict[str, dict[int | None, pa.Table]] = field(default_factory=dict)
    run: str = "job"
    iteration: int = 7

    def table(self, name: str, columns: Sequence[str], rank: int | None = None) -> pa.Table:
        parts = self.tables.get(name, {})
        chosen = {at: part for at, part in parts.items() if rank is None or at in (None, rank)}
        found = [
            part
            if at is None or "rank" in part.column_names
            else part.append_column("rank", pa.array([at] * len(part)))
            for at, part in chosen.items()
        ]
        return pa.concat_tables(found).select(list(columns)) if found else empty_table(name, columns)


def empty_table(name: str, columns: Sequence[str]) -> pa.Table:
    """Those columns of a table with their types and no rows: what a source hands out where nothing was written."""
    types = {column.name: column.type for column in view_columns(TABLES[name])}
    return pa.schema([(column, types[column]) for column in columns]).empty_table()


def one_row(name: str, **values: object) -> pa.Table:
    """One row of a table; columns that are not given are NULL."""
    columns = {column.name: [values.pop(column.name, None)] for column in TABLES[name].columns}
    assert not values, f"table {name} has no column {values}"
    return TABLES[name].from_columns(columns)


def kernels(rows: Sequence[Mapping[str, object]], stage: int | None = 0) -> pa.Table:
    """A table of kernels from (start_ns, duration_ns, category, ...) rows; the rest follows from the category."""
    full = []
    for number, row in enumerate(sorted(rows, key=lambda row: row["start_ns"])):
        category = str(row["category"])
        kind = "communication" if "communication" in category else "memory" if category == "memory" else "computation"
        phase = {"fwd": "forward", "bwd": "backward", "opt": "optimizer"}.get(category[:3], "other")
        full.append(
            {
                "kernel_id": number,
                "name": f"kernel_{category}",
                "device": "gpu:0",
                "stream": 7,
                "kind": kind,
                "phase": "recompute" if category.endswith("recompute") else phase,
                "dimension": {"pp_communication": "pp", "dp_communication": "dp"}.get(category, "tp")
                if kind == "communication"
                else None,
                "stage": stage,
                "step": STEP,
                **row,
            }
        )
    columns = {column.name: [row.get(column.name) for row in full] for column in TABLES["kernels"].columns}
    return TABLES["kernels"].from_columns(columns)


def rank_rows(
    stage: int, stages: int, microbatches: int, *, slow: float = 1.0, chunks: int = 1
) -> list[dict[str, object]]:
    """One rank's kernels: forwards, then backwards, with gaps that grow with the stage's distance from the last."""
    rows: list[dict[str, object]] = []
    at = ZERO + stage * 4 * MS

    def add(start: float, length: float, category: str, **more: object) -> None:
        rows.append({"start_ns": int(start), "duration_ns": int(length), "category": category, **more})

    add(at - 10_000, 100, "memory")
    for chunk in range(chunks):
        for number in range(microbatches):
            own = {"chunk": chunk, "microbatch": number}
            for piece in range(4):
                add(at + piece * 0.5 * MS, 0.4 * MS * slow, "fwd_computation", **own)
                add(at + piece * 0.5 * MS + 0.4 * MS * slow, 60_000, "fwd_communication", **own)
            # Three kernels that are far thinner than a pixel: one alone, two close together, one without duration.
            add(at + 2.2 * MS * slow, 100, "fwd_computation", **own)
            add(at + 2.2 * MS * slow + 150, 50, "fwd_computation", **own)
            add(at + 2.3 * MS * slow, 0, "fwd_computation", **own)
            at += int(3 * MS * slow)
            add(at - 0.4 * MS, 0.3 * MS, "pp_communication")
    wait = (stages - stage) * 8 * MS
    add(at, wait, "pp_communication")
    at += wait
    for chunk in reversed(range(chunks)):
        for number in range(microbatches):
            own = {"chunk": chunk, "microbatch": number}
            add(at, 1.0 * MS * slow, "bwd_computation_recompute", **own)
            add(at + 1.0 * MS * slow, 80_000, "bwd_communication_recompute", **own)
            add(at + 1.2 * MS * slow, 2.0 * MS * slow, "bwd_computation", **own)
            add(at + 1.5 * MS * slow, 0.5 * MS, "bwd_communication", **own)
            add(at + 2.0 * MS * slow, 0.7 * MS, "dp_communication")
            at += int(4 * MS * slow)
    add(at + 1 * MS, 3 * MS, "other_communication", dimension="embedding")
    add(at + 5 * MS, 700, "other_computation")
    add(at + 6 * MS, 2 * MS, "optimizer_computation")
    return rows


def job(
    ranks: int = 4,
    stages: int = 2,
    microbatches: int = 4,
    *,
    slow: Mapping[int, float] | None = None,
    chunks: int = 1,
    missing: Sequence[int] = (),
    partial: Sequence[int] = (),
) -> MemorySource:
    """A job of several pipelines; ranks of a stage stand side by side, as in Megatron's default order."""
    source = MemorySource({name: {} for name in ("kernels", "microbatches", "overlap", "traces", "topology", "runs")})
    pipelines = ranks // stages
    topology = []
    for rank in range(ranks):
        stage, pipeline = divmod(rank, pipelines)
        topology.append(
            one_row(
                "topology", rank=rank, stage=stage, stages=stages, pipeline=pipeline, model_replica=0, source="computed"
            )
        )
        if rank in missing:
            continue
        rows = rank_rows(stage, stages, microbatches, slow=(slow or {}).get(rank, 1.0), chunks=chunks)
        fill_rank(source, rank, kernels(rows, stage), "partial" if rank in partial else "read")
    source.tables["topology"][None] = pa.concat_tables(topology)
    return source


def fill_rank(source: MemorySource, rank: int, table: pa.Table, status: str = "read") -> None:
    """Put a rank's kernels into a source, and what is measured on them."""
    source.tables["kernels"][rank] = table
    source.tables["microbatches"][rank] = microbatches_table(table)
    source.tables["overlap"][rank] = overlap_table(table)
    source.tables["traces"][rank] = one_row("traces", file=f"rank_{rank:04d}.pt.trace.json", status=status)
