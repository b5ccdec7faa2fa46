"""The classification against ground truth per kernel, and against what Megatron's own schedules do."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from isal import igzip

from tests.sets import fast
from traceviz_dag.classify.kernels import Classification
from traceviz_dag.classify.phases.steps import FORWARD
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.pipeline.ranks import classify_trace
from traceviz_dag.read.kineto.reader import read_kineto

RUNS = ("pp4_1f1b", "tp2_pp2_vpp2_full", "pp2_dp2_distopt_overlap", "pp2_ep2_moe")
OF_OWN_WAYS = ("tp2_pp2_vpp2_full", "pp2_ep2_moe")
"""Runs that together take all ways through the rules for kernels without stacks."""
UNIFIED_PHASE = {"p2p": "other", "finalize": "other", "zero_grad_buffer": "other"}


@cache
def classified(run: Path, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> dict[int, Classification]:
    """Kernels of some ranks of a run, classified without the others."""
    files = sorted((run / "iteration_2").glob("*.json.gz"))
    assert len(files) == 4
    events = {rank: read_kineto(files[rank]) for rank in ranks}
    topology = unite({rank: trace.header for rank, trace in events.items()})
    rules = load_rules()
    return {rank: classify_trace(trace, rank, topology, rules) for rank, trace in events.items()}


@pytest.fixture(scope="module", params=fast(RUNS, "tp2_pp2_vpp2_full", "pp2_dp2_distopt_overlap"))
def against_truth(request, shared_data) -> pd.DataFrame:
    """Kernels of all ranks of one run, joined with their truth row by row."""
    run = shared_data / "megatron_gpu" / request.param
    return joined_with_truth(classified(run), run / "truth")


def joined_with_truth(results: dict[int, Classification], truth_folder: Path) -> pd.DataFrame:
    joined = []
    for rank, result in results.items():
        kernels = result.kernels.to_pandas()
        kernels = kernels.astype({name: object for name in kernels if str(kernels[name].dtype) == "category"})
        truth = pd.read_parquet(truth_folder / f"rank_{rank:04d}.parquet")
        joined.append(kernels.merge(truth, on="correlation", how="outer", suffixes=("", "_true"), validate="1:1"))
    table = pd.concat(joined, ignore_index=True)
    table["phase_true"] = table.phase_true.where(~table.recompute, "recompute").replace(UNIFIED_PHASE)
    other = table.kind_true.map({"compute": "other_computation", "comm": "other_communication", "memory": "memory"})
    table["category_true"] = table.category_true.where(table.category_true != "other", other)
    return table


def wrong_share(table: pd.DataFrame, column: str) -> float:
    ours, truth = table[column], table[f"{column}_true"]
    if column in ("microbatch", "chunk"):
        ours = ours.fillna(-1)
    elif column == "dimension":
        ours = ours.fillna("")
    return float(table.dur_ns[ours != truth].sum() / table.dur_ns.sum())


def test_every_kernel_of_the_truth_is_read_with_its_times(against_truth):
    assert against_truth.start_ns.notna().all() and against_truth.ts_ns.notna().all()
    assert (against_truth.duration_ns == against_truth.dur_ns).all()
    offsets = against_truth.start_ns.astype("int64") - against_truth.ts_ns
    assert offsets.nunique() == 1, "the truth counts from the trace's base time, so one offset holds for all kernels"


@pytest.mark.parametrize("column", ["category", "phase", "microbatch", "chunk", "dimension"])
def test_at_least_999_per_mille_of_kernel_time_agrees_with_the_truth(against_truth, column):
    assert wrong_share(against_truth, column) <= 0.001


def test_each_category_is_right_for_99_percent_of_its_own_time(against_truth):
    for category, rows in against_truth.groupby("category_true"):
        right = rows.dur_ns[rows.category == category].sum() / rows.dur_ns.sum()
        assert right >= 0.99, f"{category}: {right:.4f}"


def test_overlapped_data_parallel_communication_counts_once(against_truth):
    dp = against_truth[against_truth.dimension == "dp"]
    assert (dp.category == "dp_communication").all()
    assert dp.microbatch.isna().all()
    overlapped = dp[dp.role.isin(["gradient_synchronisation", "parameter_synchronisation"])]
    assert len(dp) == 0 or len(overlapped) == 0 or set(overlapped.phase) <= {"forward", "backward", "other"}


def test_each_classification_names_its_evidence(against_truth):
    assert (against_truth.phase_evidence != "none").all()
    communication = against_truth[against_truth.kind == "communication"]
    assert (communication.dimension_evidence != "none").all()
    assert against_truth[against_truth.kind != "communication"].dimension.isna().all()


EXPECTED_ORDER = {
    # Rank → F and B with the chunk, as the plain and the interleaved schedule run them.
    "pp4_1f1b": {0: "FFFFBBBB", 1: "FFFBFBBB", 2: "FFBFBFBB", 3: "FBFBFBFB"},
    "pp2_dp2_distopt_overlap": {0: "FFBFBFBB", 1: "FFBFBFBB", 2: "FBFBFBFB", 3: "FBFBFBFB"},
    "pp2_ep2_moe": {0: "FFBFBFBB", 1: "FFBFBFBB", 2: "FBFBFBFB", 3: "FBFBFBFB"},
}


@pytest.mark.parametrize("source", fast(["megatron_cpu", "megatron_gpu"], "megatron_gpu"))
@pytest.mark.parametrize("run", EXPECTED_ORDER)
def test_micro_batches_follow_the_1f1b_schedule(shared_data, source, run):
    for rank, result in classified(shared_data / source / run).items():
        steps = result.steps
        order = "".join("F" if direction == FORWARD else "B" for direction in steps.direction)
        assert order == EXPECTED_ORDER[run][rank]
        for direction in np.unique(steps.direction):
            assert steps.microbatch[steps.direction == direction].tolist() == [0, 1, 2, 3]
        assert set(steps.chunk.tolist()) == {0}


@pytest.mark.parametrize("source", fast(["megatron_cpu", "megatron_gpu"], "megatron_gpu"))
def test_micro_batches_follow_the_interleaved_schedule(shared_data, source):
    warm_up = {
        0: "F00 F01 F10 F11 F02 B10 F03 B11 F12 B00 F13 B01 B12 B13 B02 B03",
        1: "F00 F01 F10 F11 F02 B10 F03 B11 F12 B00 F13 B01 B12 B13 B02 B03",
        2: "F00 F01 F10 B10 F11 B11 F02 B00 F03 B01 F12 B12 F13 B13 B02 B03",
        3: "F00 F01 F10 B10 F11 B11 F02 B00 F03 B01 F12 B12 F13 B13 B02 B03",
    }
    for rank, result in classified(shared_data / source / "tp2_pp2_vpp2_full").items():
        steps = result.steps
        rows = zip(steps.direction.tolist(), steps.chunk.tolist(), steps.microbatch.tolist(), strict=True)
        assert " ".join(f"{'FB'[d]}{chunk}{microbatch}" for d, chunk, microbatch in rows) == warm_up[rank]


@pytest.mark.parametrize("run", fast(RUNS, "pp2_dp2_distopt_overlap"))
def test_authentic_cpu_traces_are_classified_where_their_work_is(shared_data, run):
    for rank, result in classified(shared_data / "megatron_cpu" / run).items():
        kernels = result.kernels.to_pandas()
        time_of = kernels.groupby("category", observed=True).duration_ns.sum()
        assert time_of.get("unclassified", 0) < 0.01 * time_of.sum(), f"rank {rank}"
        assert set(kernels.device) == {"cpu"}
        assert time_of.get("pp_communication", 0) > 0
        if run in ("pp4_1f1b", "tp2_pp2_vpp2_full", "pp2_dp2_distopt_overlap"):
            assert time_of.get("bwd_computation_recompute", 0) > 0
        if run == "pp2_dp2_distopt_overlap":
            assert time_of.get("dp_communication", 0) > 0
        if run == "tp2_pp2_vpp2_full":
            assert time_of.get("bwd_communication_recompute", 0) > 0


GROUP_FACTS = ("Process Group Name", "Process Group Description", "Process Group Ranks", "Group size")


def stripped(run: Path, folder: Path, *, groups: bool = True) -> Path:
    """The run without call stacks, with or without what names process groups."""
    traces = folder / run.name / "iteration_2"
    traces.mkdir(parents=True)
    for file in sorted((run / "iteration_2").glob("*.json.gz")):
        trace = msgspec.json.decode(igzip.decompress(file.read_bytes()), type=dict[str, msgspec.Raw])
        rows = msgspec.json.decode(trace["traceEvents"], type=list[msgspec.Raw])
        rows = [row for row in rows if b'"python_function"' not in bytes(row)]
        changed: dict[str, object] = {"traceEvents": rows if groups else [without_groups(row) for row in rows]}
        if not groups:
            changed["distributedInfo"] = msgspec.json.decode(trace["distributedInfo"])
            del changed["distributedInfo"]["pg_config"]
        (traces / file.name).write_bytes(igzip.compress(msgspec.json.encode({**trace, **changed}), 0))
    return traces.parent


def without_groups(row: msgspec.Raw) -> object:
    if b"Group" not in bytes(row):
        return row
    event = msgspec.json.decode(row)
    for name in GROUP_FACTS:
        event.get("args", {}).pop(name, None)
    return event


def wrongly_told(table: pd.DataFrame, column: str) -> float:
    """The share of time of which something is reported in a column that is not true."""
    told = table[column].notna() & ~table[column].isin(["unknown", "unclassified"])
    return float(table.dur_ns[told & (table[column] != table[f"{column}_true"])].sum() / table.dur_ns.sum())


@pytest.fixture(scope="module", params=fast(RUNS, *OF_OWN_WAYS))
def without_stacks(request, shared_data, tmp_path_factory) -> pd.DataFrame:
    """The same runs as Megatron-LM's default captures them: operators and threads, but no Python functions."""
    run = shared_data / "megatron_gpu" / request.param
    return joined_with_truth(classified(stripped(run, tmp_path_factory.mktemp("without_stacks"))), run / "truth")


@pytest.mark.parametrize("run", fast(RUNS, "pp2_ep2_moe"))
def test_without_stacks_and_groups_nothing_untrue_is_reported_and_computation_is(shared_data, tmp_path, run):
    folder = stripped(shared_data / "megatron_gpu" / run, tmp_path, groups=False)
    for ranks in ((0, 1, 2, 3), (1,), (0, 3)):
        table = joined_with_truth(classified(folder, ranks), shared_data / "megatron_gpu" / run / "truth")
        for column in ("category", "phase", "dimension", "microbatch", "chunk"):
            assert wrongly_told(table, column) == 0.0, (ranks, column)
        computing = table[table.kind_true != "comm"]
        assert (computing.category == computing.category_true).all(), ranks


def test_without_stacks_little_is_unknown_and_less_is_wrong(without_stacks):
    table = without_stacks
    for column in ("category", "phase", "dimension", "microbatch", "chunk"):
        assert wrong_share(table, column) <= 0.01, column
        assert wrongly_told(table, column) <= 0.001, column


def test_without_stacks_interleaved_steps_are_numbered_by_the_schedule_they_fit(without_stacks):
    assert set(without_stacks.chunk.dropna()) == set(without_stacks.chunk_true[without_stacks.chunk_true >= 0])
    assert "step_window" in set(without_stacks.phase_evidence)
