"""Tables across ranks made by hand, a few rows each, as figures take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tests.show.job import STEP, ZERO, MemorySource, one_row
from traceviz_dag.tables import TABLES

US, MS = 1_000, 1_000_000
STEP_NS = 40 * MS

WAITS = {
    "tp": [[0, 5 * MS, 300 * US], [2 * MS, 0, 0]],
    "dp": [[40 * MS], [0]],
}
"""Dimension → rank → wait of each communication, ns."""


def waiting_job(waits: dict[str, list[list[int]]] = WAITS, clocks: str = "solved") -> MemorySource:
    """Two or more ranks of one stage that wait as told; the rank that waits 0 is the last, for its own computation."""
    rows = []
    communication = 0
    for dimension, by_rank in waits.items():
        for number, parts in enumerate(zip(*by_rank, strict=True)):
            late = parts.index(0)
            for rank, wait in enumerate(parts):
                rows.append(
                    one_row(
                        "collectives",
                        rank=rank,
                        kernel_id=len(rows),
                        communication=communication,
                        step=STEP,
                        dimension=dimension,
                        stage=0,
                        arrival_ns=ZERO + number * 100 * MS - wait,
                        duration_ns=wait + MS,
                        wait_ns=wait,
                        transfer_ns=MS,
                        last_rank=late,
                        wait_aligned_ns=wait,
                        transfer_aligned_ns=MS,
                        last_rank_aligned=late,
                        wait_by_duration_ns=wait,
                        last_rank_by_duration=late,
                        clocks=clocks,
                        late_compute_ns=wait,
                        late_communication_ns=0,
                        late_memory_ns=0,
                        late_host_ns=0,
                        late_idle_ns=0,
                        late_since_ns=ZERO + number * 100 * MS - max(parts),
                        late_category="bwd_computation",
                    )
                )
            communication += 1
    ranks = range(len(next(iter(waits.values()))))
    window = {"window_start_ns": ZERO, "window_end_ns": ZERO + STEP_NS, "device": "gpu:0"}
    step = one_row("overlap", **window, window_name="step", step=STEP, dimension="all")
    return MemorySource(
        {
            "collectives": {None: pa.concat_tables(rows)},
            "rank_clocks": {None: clock_rows(ranks)},
            "overlap": dict.fromkeys(ranks, step),
        }
    )


def clock_rows(
    ranks: Sequence[int], offsets: dict[int, int] | None = None, refused: Sequence[int] = (), component: int = 0
) -> pa.Table:
    """Clocks with residuals of -2 to +3 us; refused ones say why."""
    rows = []
    for rank in ranks:
        known = rank not in refused
        rows.append(
            one_row(
                "rank_clocks",
                rank=rank,
                component=component,
                reference_rank=0 if known else None,
                offset_ns=(offsets or {}).get(rank, 0) if known else None,
                reference_ns=ZERO if known else None,
                matches=40,
                span_ns=MS,
                residual_p05_ns=-2 * US,
                residual_p95_ns=3 * US,
                early_receives=0,
                refusal=None if known else "only 3 matched communications; 5 are needed",
            )
        )
    return pa.concat_tables(rows)


def pipeline_job(stages: int = 2, pipelines: int = 1, refusal: str | None = None, apart_ns: int = 1) -> MemorySource:
    """Pipelines whose bubbles have parts of both signs."""
    rows = []
    for pipeline in range(pipelines):
        for stage in range(stages):
            parts = {
                "fill_drain_ns": 20 * MS,
                "imbalance_ns": -5 * MS,
                "jitter_ns": MS,
                "stall_ns": 4 * MS + apart_ns * pipeline,
            }
            bubble = sum(parts.values())
            figures = {"ideal_ns": 100 * MS, "bubble_ns": bubble, "bubble_share": 0.2, "ideal_share": 0.1, **parts}
            rows.append(
                one_row(
                    "pipelines",
                    step=STEP,
                    pipeline=pipeline,
                    stage=stage,
                    rank=stage * pipelines + pipeline,
                    schedule="1f1b",
                    microbatches=8,
                    span_ns=100 * MS + bubble,
                    refusal=refusal,
                    **({} if refusal else figures),
                )
            )
    return MemorySource({"pipelines": {None: pa.concat_tables(rows)}, "microbatches": _steps(stages, pipelines)})


def _steps(stages: int, pipelines: int) -> dict[int | None, pa.Table]:
    """A forward and a backward step of one micro-batch on each rank; stage 1 computes 4 ms, the others 3 ms."""

    def of_stage(stage: int) -> pa.Table:
        facts = {"step": STEP, "stage": stage, "chunk": 0, "microbatch": 0, "dimension": "all"}
        compute_ns = 2 * MS if stage == 1 else 3 * MS // 2
        return pa.concat_tables(
            one_row("microbatches", phase=phase, compute_ns=compute_ns, **facts) for phase in ("forward", "backward")
        )

    return {stage * pipelines + place: of_stage(stage) for stage in range(stages) for place in range(pipelines)}


def period_job() -> MemorySource:
    """Stage 0 with 20 periods and one that is much longer; its score beside stage 1 and beside TP; one refused pair."""
    rows = []
    for unit in range(20):
        period = 36 * MS if unit == 19 else 11 * MS + unit * US
        for pair, kind, dimension, score in (
            ("stages 0 and 1", "stages", None, 0.5 + unit / 100),
            ("computation + tp", "dimension", "tp", -5.0 if unit == 3 else 0.2),
        ):
            rows.append(
                one_row(
                    "periods",
                    pair=pair,
                    kind=kind,
                    dimension=dimension,
                    step=STEP,
                    pipeline=0,
                    stage=0,
                    rank=0,
                    rank1=1,
                    unit=unit,
                    start_ns=ZERO + unit * 40 * MS,
                    period_ns=period,
                    stage0_ns=MS,
                    stage1_ns=MS,
                    derived_hidden_ns=2 * MS - period,
                    overlap_score=score,
                )
            )
    rows.append(one_row("periods", pair="computation + dp", kind="dimension", stage=0, rank=0, refusal="no dp in it"))
    return MemorySource({"periods": {None: pa.concat_tables(rows)}})


def path_job(
    segments: Sequence[tuple[int, int | None, str, str | None, int]], stages: dict[int, int | None], step: int = STEP
) -> MemorySource:
    """A critical path: rank, micro-batch, cause, category and duration of each segment; and the stage of each rank."""
    rank, microbatch, cause, category, length = (list(column) for column in zip(*segments, strict=True))
    phases = ["backward" if "bwd" in str(each) else "forward" for each in category]
    told = {
        **{"rank": rank, "microbatch": microbatch, "cause": cause, "category": category, "duration_ns": length},
        **{"step": [step] * len(rank), "segment": range(len(rank)), "stage": [stages[each] for each in rank]},
        "phase": [None if each is None else phase for each, phase in zip(microbatch, phases, strict=True)],
        "start_ns": ZERO + np.cumsum(length) - length,
    }
    names = [column.name for column in TABLES["path_segments"].columns]
    table = TABLES["path_segments"].from_columns({name: told.get(name, [None] * len(rank)) for name in names})
    items = [one_row("path_items", step=step, rank=rank, stage=stage) for rank, stage in stages.items()]
    return MemorySource({"path_segments": {None: table}, "path_items": {None: pa.concat_tables(items)}})


def gain_rows(gains: Sequence[dict[str, object]], step_ns: int = STEP_NS) -> pa.Table:
    """Edits with their gains, as the table what_if has them."""
    rows = []
    for each in gains:
        known = {} if "refusal" in each else {"step_ns": step_ns, "replay_error": -0.01}
        if known:
            known["predicted_step_ns"] = step_ns - each["gain_ns"]
        rows.append(one_row("what_if", **{"step": STEP, **known, **each}))
    return pa.concat_tables(rows)
