"""The modules of a simulated model: whose time and FLOPs they are, backward and recompute too, against its settings."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from tests.analyze.across_ranks import simulated
from traceviz_dag.lake.module_summaries import modules, modules_and_layers
from traceviz_dag.lake.operation_summaries import MODULES_SQL, asked
from traceviz_dag.simulate import JobSettings
from traceviz_dag.simulate.settings import Recompute

MODEL = {"layers": 4, "hidden": 1024, "heads": 8, "feed_forward": 2048, "sequence": 512, "vocabulary": 4096}


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_each_part_has_the_products_of_its_settings_forward_backward_and_recomputed(recompute):
    job = JobSettings(**MODEL, dp=2, microbatches=2, shapes=True, recompute=recompute)
    iteration, _ = simulated(job)
    place = (iteration.lake, iteration.run, iteration.iteration)
    rows = modules(*place).to_pylist()
    assert modules_and_layers(*place)[0].to_pylist() == rows
    of_part = {row["part"]: row for row in rows if row["part"] is not None}
    assert set(of_part) == {"layer", "attention", "mlp", "embedding", "head"}
    # A forward pass and two backward; one more where it is computed again, but for the logits.
    passes = 3 + (recompute is Recompute.FULL)
    tokens, width = job.sequence * job.microbatches * job.dp, job.hidden
    products = {"mlp": 4 * width * job.feed_forward * job.layers, "head": 2 * width * job.vocabulary}
    for part, flops in products.items():
        expected = tokens * flops * (3 if part == "head" else passes)
        # Norms and activations add a little.
        assert of_part[part]["flops"] == pytest.approx(expected, rel=0.01) and of_part[part]["flops"] >= expected
    for row in of_part.values():
        assert row["kernel_ns"] == row["forward_ns"] + row["backward_ns"] + row["recompute_ns"]
        assert (row["recompute_ns"] > 0) == (
            recompute is Recompute.FULL and row["part"] in ("layer", "attention", "mlp")
        )
        assert row["forward_ns"] > 0 and row["backward_ns"] > 0
    # A module holds what those in it have.
    layer, inner = of_part["layer"], [of_part["attention"], of_part["mlp"]]
    assert sum(row["kernel_ns"] for row in inner) < layer["kernel_ns"] < 1.2 * sum(row["kernel_ns"] for row in inner)
    windows = [
        row["window_end_ns"] - row["window_start_ns"]
        for row in iteration.lake.table("overlap", *place[1:]).arrow().to_pylist()
        if row["window_name"] == "step" and row["dimension"] == "all"
    ]
    assert len(windows) == job.dp
    assert layer["step_share"] == pytest.approx(layer["kernel_ns"] / sum(windows))
    # By the innermost module it is the same: what holds no other has all its time there, backward steps too.
    innermost = {
        row["name"]: row["kernel_ns"] for row in asked(place[0], MODULES_SQL, *place[1:], rank=None).to_pylist()
    }
    inside = {row["module"].rpartition("/")[0] for row in rows}
    leaves: dict[str, int] = {}
    for row in rows:
        if row["module"] not in inside:
            leaves[row["name"]] = leaves.get(row["name"], 0) + row["kernel_ns"]
    assert leaves.items() <= innermost.items()
    of_modules = sum(time for name, time in innermost.items() if name is not None)
    assert of_modules == sum(row["kernel_ns"] for row in rows if row["depth"] == 1)
    told = modules_and_layers(*place)[1].to_pylist()
    assert len(told) == job.layers * job.world
    assert all(row["ratio"] is not None and abs(row["ratio"] - 1) < 0.05 for row in told)
    assert sum(row["kernel_ns"] for row in told) == layer["kernel_ns"]


def test_a_layer_that_does_more_is_an_outlier_and_without_call_stacks_there_are_no_modules():
    iteration, _ = simulated(JobSettings(**{**MODEL, "hidden": 2048}, dp=2, microbatches=2, wide_layers=1))
    told = modules_and_layers(iteration.lake, iteration.run, iteration.iteration)[1].to_pylist()
    assert [row["layer"] for row in told[:2]] == [3, 3] and min(row["ratio"] for row in told[:2]) > 1.2
    assert {row["rank"] for row in told[:2]} == {0, 1}
    lake, where = iteration.lake, f"run = '{iteration.run}' AND rank = 1"
    viewed = lake.query(f"SELECT part, layer, kernel_ns, ratio, step_share FROM modules WHERE {where}").to_pylist()
    # Equal modules are compared at every depth: it is the wide layer's MLP that takes longer, once a layer.
    mlps = [row["ratio"] for row in viewed if row["part"] == "mlp"]
    assert len(mlps) == 4 and sum(ratio > 1.2 for ratio in mlps) == 1
    own = {row["layer"]: (row["kernel_ns"], row["ratio"]) for row in told if row["rank"] == 1}
    assert {row["layer"]: (row["kernel_ns"], row["ratio"]) for row in viewed if row["layer"] is not None} == own
    assert all(0 < row["step_share"] < 1 for row in viewed)
    # Where FLOPs are known, it is compared with layers of as many alone.
    sized, _ = simulated(JobSettings(**{**MODEL, "hidden": 2048}, microbatches=2, wide_layers=1, shapes=True))
    known = modules_and_layers(sized.lake, sized.run, sized.iteration)[1].to_pylist()
    assert [row["layer"] for row in known if row["ratio"] is None] == [3]
    assert all(abs(row["ratio"] - 1) < 0.05 for row in known if row["layer"] != 3)
    blind, _ = simulated(JobSettings(**MODEL, dp=2, microbatches=2, stacks=False))
    assert modules(blind.lake, blind.run, blind.iteration).num_rows == 0
    assert pc.all(blind.kernels(0, ("module_path",))["module_path"].is_null()).as_py()
