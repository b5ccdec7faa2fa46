"""``traceviz accuracy``: the lake against the truth of a simulated job, and what it says where they differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.end_to_end.conftest import traceviz
from traceviz_dag.analyze.accuracy import compared, confusion, shares, spanning_graphs
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Graphs


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    settings = JobSettings(layers=2, pp=2, microbatches=2, hidden=256, heads=4, sequence=128, vocabulary=512, seed=3)
    return simulate(settings, tmp_path_factory.mktemp("accuracy") / "job", workers=1)


def test_it_compares_the_lake_where_the_job_is_analysed_and_the_traces_where_not(job, tmp_path):
    home = tmp_path / "home"
    before = json.loads(traceviz("accuracy", job, "--home", home, "--json").stdout)
    assert not home.exists()
    traceviz("analyze", job, "--home", home)
    after = json.loads(traceviz("accuracy", job, "--home", home, "--json").stdout)
    assert (before.pop("source"), after.pop("source")) == ("traces", "lake")
    assert before == after
    kernels = sum(pq.read_metadata(path).num_rows for path in (job / "truth").glob("rank_*.parquet"))
    assert after["kernels"] == after["kernels_read"] == kernels
    assert after["share_of_time_right"] == 1.0
    for rows in (after["microbatch_spans"], after["overlap"]):
        assert rows["expected"] == rows["equal"] >= 8
        assert rows["missing"] == rows["unexpected"] == rows["largest_difference_ns"] == 0


def test_a_rule_that_misleads_shows_in_shares_confusion_spans_and_by_its_name(job, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[frame]]\nname = "misled"\non = ["cpu_op"]\npatterns = ["autograd::engine::*"]\nphase = "optimizer"\n'
    )
    answer = json.loads(traceviz("accuracy", job, "--rules", rules, "--home", tmp_path, "--json").stdout)
    assert answer["source"] == "traces"
    assert 0.05 < answer["wrong"]["phase"] < 0.9 and answer["share_of_time_right"] < 0.95
    wrong = {row["rule"] for row in answer["rules"] if row["aspect"] == "phase" and row["right"] < 1}
    assert "misled" in wrong
    mistaken = {(row["truth"], row["told"]) for row in answer["confusion"] if row["truth"] != row["told"]}
    assert ("bwd_computation", "optimizer_computation") in mistaken
    assert answer["microbatch_spans"]["missing"] > 0 and answer["overlap"]["missing"] == 0
    assert "misled" in traceviz("accuracy", job, "--rules", rules, "--home", tmp_path).stdout


def test_the_columns_of_other_truth_tables_are_understood(shared_data, tmp_path):
    run = shared_data / "megatron_gpu" / "tp2_pp2_vpp2_full"
    answer = json.loads(traceviz("accuracy", run, "--home", tmp_path, "--json").stdout)
    assert answer["share_of_time_right"] == 1.0 and answer["ranks"] == 4
    assert {"bwd_computation_recompute", "other_communication"} <= {row["category"] for row in answer["categories"]}


def test_a_graph_of_a_whole_step_counts_and_its_rest_is_reported_beside(tmp_path):
    settings = JobSettings(layers=2, pp=2, microbatches=2, hidden=256, heads=4, sequence=128, vocabulary=512)
    run = simulate(replace(settings, cuda_graphs=Graphs.ITERATION), tmp_path / "job", workers=1)
    answer = json.loads(traceviz("accuracy", run, "--home", tmp_path, "--json").stdout)
    assert 0 < answer["spanning_graph_time_ns"] < answer["kernel_time_ns"]
    assert answer["share_of_time_right"] < 0.7 and answer["wrong"]["phase"] == answer["wrong"]["category"] == 0
    assert answer["without_spanning_graphs"]["share_of_time_right"] == 1.0


def test_an_iterations_truth_lies_in_its_run_and_a_path_without_truth_is_one_line(job, tmp_path):
    (iteration,) = job.glob("iteration_*")
    traceviz("accuracy", iteration, "--home", tmp_path)
    result = traceviz("accuracy", tmp_path, code=2)
    assert "no truth/rank_*.parquet" in result.stderr and len(result.stderr.splitlines()) == 1


def row(correlation: int, category: str, microbatch: int | None, node: int = -1) -> dict[str, object]:
    phase = "forward" if category.startswith("fwd") else "unknown"
    return {
        **{"correlation": correlation, "graph_node_id": node, "kind": "computation", "phase": phase},
        **{"category": category, "dimension": None, "microbatch": microbatch, "chunk": None},
    }


def test_shares_are_of_all_kernel_time_and_a_graph_over_micro_batches_is_distinguished():
    truth = [row(1, "fwd_computation", 0), row(2, "fwd_computation", 1), row(3, "fwd_computation", 1)]
    truth += [row(4, "fwd_computation", 0, node=1), row(4, "fwd_computation", 1, node=2)]
    ours = [row(1, "fwd_computation", 0), row(2, "unclassified", None), row(4, "unclassified", None, node=1)]
    ours += [row(4, "fwd_computation", 0, node=2), row(9, "fwd_computation", 0)]
    told = pd.DataFrame(ours).assign(kernel_id=range(5), start_ns=2**62 + 1, duration_ns=10)
    was = pd.DataFrame(truth).assign(duration_ns=[60, 20, 10, 5, 5])
    table = compared(told, was)
    assert set(table.start_ns.dropna()) == {2**62 + 1}, "time stamps keep their nanoseconds"
    every = shares(table)
    assert every.right["category"] == pytest.approx(0.65)
    assert every.told["category"] == pytest.approx(0.65)
    assert every.wrong == {"category": 0, "phase": 0, "dimension": 0, "microbatch": pytest.approx(0.05), "chunk": 0}
    graph = spanning_graphs(table)
    assert set(table[graph].correlation) == {4}
    assert shares(table[~graph]).whole == pytest.approx(60 / 90)
    assert {"truth": "fwd_computation", "told": "not in the traces", "kernels": 1, "time_ns": 10} in confusion(table)
