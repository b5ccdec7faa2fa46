"""Micro-batches: their own kernels in their own span, and their order on the rank."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings

from tests.analyze.naive_measures import kernel, kernel_table, measures_of, naive_measures, random_kernels
from traceviz_dag.analyze.invariants import microbatch_violations
from traceviz_dag.analyze.microbatches import BACKWARD, FORWARD, HostSteps, microbatches_table
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import MICROBATCHES

_UNIT = ("device", "step", "chunk", "microbatch")


def _host_steps(*steps: tuple[int, int, int, int | None, int | None, int | None]) -> HostSteps:
    """(phase, chunk, microbatch, start, end, order) of each step, all in ProfilerStep 7."""
    table = [[MISSING if value is None else value for value in step] for step in steps]
    phase, chunk, microbatch, start, end, order = (
        np.array(column, dtype=np.int64) for column in zip(*table, strict=True)
    )
    return HostSteps(phase.astype(np.int8), chunk, microbatch, np.full(len(table), 7), start, end, order)


def _step_kernel(start: int, phase: str, microbatch: int, chunk: int = 0, **more) -> dict:
    return kernel(start, 10, "computation", phase=phase, step=7, stage=0, chunk=chunk, microbatch=microbatch, **more)


def _order(table: pa.Table) -> list[str]:
    rows = [row for row in table.to_pylist() if row["dimension"] == "all" and row["phase"] != "recompute"]
    rows.sort(key=lambda row: row["order_in_rank"])
    assert [row["order_in_rank"] for row in rows] == list(range(len(rows)))
    return [f"{row['phase'][0].upper()}{row['microbatch']}" for row in rows]


@given(random_kernels)
@settings(max_examples=100, deadline=None)
def test_every_row_is_what_sets_of_instants_give(kernels):
    table = microbatches_table(kernel_table(kernels))
    assert table.schema == MICROBATCHES.schema
    expected = {}
    for each in kernels:
        phases = {"forward": ["forward"], "backward": ["backward"], "recompute": ["backward", "recompute"]}
        if each["microbatch"] is None:
            continue
        for phase in phases.get(each["phase"], []):
            expected.setdefault((*(each[name] for name in _UNIT), phase), []).append(each)
    seen = set()
    for row in table.to_pylist():
        key = (*(row[name] for name in _UNIT), row["phase"])
        own = expected[key]
        assert row["span_start_ns"] == min(each["start_ns"] for each in own)
        assert row["span_end_ns"] == max(each["start_ns"] + each["duration_ns"] for each in own)
        assert measures_of(row) == naive_measures(own, row["dimension"], row["span_start_ns"], row["span_end_ns"])
        assert row["kernels"] == len(own) and row["stage"] == 1
        seen.add((key, row["dimension"]))
    dimensions = {
        (key, dimension)
        for key, own in expected.items()
        for dimension in {"all"} | {each["dimension"] or "unknown" for each in own if each["kind"] == "communication"}
    }
    assert seen == dimensions and table.num_rows == len(dimensions)


def test_overlapped_gradient_communication_stays_out_of_the_microbatch_that_launched_it():
    launched = {"launching_chunk": 0, "launching_microbatch": 3, "phase": "backward"}
    table = microbatches_table(
        kernel_table(
            [_step_kernel(0, "backward", 3), kernel(5, 90, "communication", "dp", step=7, stage=0, **launched)]
        )
    )
    assert [(row["span_end_ns"], row["communication_ns"], row["dimension"]) for row in table.to_pylist()] == [
        (10, 0, "all")
    ]


def test_recompute_is_part_of_its_backward_step_and_shares_its_place_and_host_times():
    kernels = [_step_kernel(0, "forward", 0), _step_kernel(20, "recompute", 0), _step_kernel(40, "backward", 0)]
    host = _host_steps((FORWARD, 0, 0, -9, -5, 0), (BACKWARD, 0, 0, -4, -1, 1))
    rows = {row["phase"]: row for row in microbatches_table(kernel_table(kernels), host).to_pylist()}
    assert {phase: (row["span_start_ns"], row["span_end_ns"], row["compute_ns"]) for phase, row in rows.items()} == {
        "forward": (0, 10, 10),
        "backward": (20, 50, 20),
        "recompute": (20, 30, 10),
    }
    place = {phase: (row["order_in_rank"], row["host_start_ns"], row["host_end_ns"]) for phase, row in rows.items()}
    assert place == {"forward": (0, -9, -5), "backward": (1, -4, -1), "recompute": (1, -4, -1)}


def test_the_host_decides_the_order_where_kernels_of_two_steps_run_at_once():
    kernels = kernel_table(
        [_step_kernel(2, "forward", 0), _step_kernel(1, "forward", 1), _step_kernel(3, "backward", 0)]
    )
    assert _order(microbatches_table(kernels)) == ["F1", "F0", "B0"]
    known = ((FORWARD, 0, 0, -30, -21, None), (FORWARD, 0, 1, -20, -11, None), (BACKWARD, 0, 0, -10, -1, None))
    assert _order(microbatches_table(kernels, _host_steps(*known))) == ["F0", "F1", "B0"]
    ordered = tuple((*step[:5], order) for step, order in zip(known, (2, 0, 1), strict=True))
    assert _order(microbatches_table(kernels, _host_steps(*ordered))) == ["F1", "B0", "F0"]


def test_host_starts_and_kernel_starts_are_not_mixed():
    kernels = kernel_table([_step_kernel(100, "forward", 0), _step_kernel(90, "forward", 1)])
    table = microbatches_table(kernels, _host_steps((FORWARD, 0, 0, 5, 8, None)))
    assert _order(table) == ["F1", "F0"]
    starts = {row["microbatch"]: row["host_start_ns"] for row in table.to_pylist()}
    assert starts == {0: 5, 1: None}


def test_each_profiler_step_is_counted_from_zero():
    kernels = [_step_kernel(0, "forward", 0), _step_kernel(50, "forward", 0) | {"step": 8}]
    table = microbatches_table(kernel_table(kernels))
    assert [(row["step"], row["order_in_rank"]) for row in table.to_pylist()] == [(7, 0), (8, 0)]


def _truth_kernels(path) -> pa.Table:
    truth = pq.read_table(path).to_pylist()
    kinds = {"compute": "computation", "comm": "communication", "memory": "memory"}
    return kernel_table(
        [
            kernel(
                row["ts_ns"],
                row["dur_ns"],
                kinds[row["kind"]],
                row["dimension"] or None,
                phase="recompute" if row["recompute"] else row["phase"],
                step=row["step"],
                chunk=None if row["chunk"] < 0 else row["chunk"],
                microbatch=None if row["microbatch"] < 0 else row["microbatch"],
            )
            for row in truth
        ]
    )


def test_a_pipeline_stage_of_megatron_runs_its_steps_in_the_known_order(shared_data):
    path = shared_data / "megatron_gpu" / "pp4_1f1b" / "truth" / "rank_0001.parquet"
    table = microbatches_table(_truth_kernels(path))
    assert "".join(name[0] for name in _order(table)) == "FFFBFBBB"
    assert microbatch_violations(table).num_rows == 0


def test_chunks_of_an_interleaved_schedule_are_kept_apart_and_tensor_parallel_time_is_theirs(shared_data):
    path = shared_data / "megatron_gpu" / "tp2_pp2_vpp2_full" / "truth" / "rank_0000.parquet"
    kernels = _truth_kernels(path)
    table = microbatches_table(kernels)
    assert microbatch_violations(table).num_rows == 0
    forward = [row for row in table.to_pylist() if row["phase"] == "forward" and row["dimension"] == "all"]
    assert {(row["chunk"], row["microbatch"]) for row in forward} == {(c, m) for c in (0, 1) for m in range(4)}
    dimensions = set(table.column("dimension").to_pylist())
    assert dimensions == {"all", "tp"}
    members = [row for row in kernels.to_pylist() if row["microbatch"] is not None]
    steps = [row for row in table.to_pylist() if row["phase"] != "recompute" and row["dimension"] == "all"]
    assert sum(row["kernels"] for row in steps) == len(members) > 900
