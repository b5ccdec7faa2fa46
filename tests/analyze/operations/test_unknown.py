"""What is not recorded is NULL with its reason, whatever wrote the trace; what holds without it is there."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.analyze.across_ranks import simulated
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.ranks import analyse_rank
from traceviz_dag.simulate import JobSettings
from traceviz_dag.simulate.settings import Format, Graphs

SMALL = {"layers": 2, "hidden": 1024, "dp": 2, "microbatches": 2}
WORK = ("gemm", "attention")


def rows_of(settings: JobSettings) -> tuple[list[dict], int]:
    """The rows of table ``operations`` of a simulated job, and the time of all its kernels, ns."""
    iteration, _ = simulated(settings)
    kernels = iteration.lake.query(
        f"SELECT sum(duration_ns)::BIGINT AS ns FROM kernels WHERE run = '{iteration.run}'"
    ).to_pylist()
    return iteration.lake.table("operations", iteration.run).arrow().to_pylist(), kernels[0]["ns"]


@pytest.mark.parametrize(
    ("capture", "reasons"),
    [
        ({}, {"the sizes of its inputs are not recorded"}),
        ({"format": Format.NSYS, "node_size": 2, "shapes": True}, {"the sizes of its inputs are not recorded"}),
    ],
    ids=["Kineto without shapes", "Nsight Systems"],
)
def test_without_sizes_operations_have_names_classes_and_times_and_nothing_is_made_up(capture, reasons):
    rows, kernel_ns = rows_of(JobSettings(**SMALL, **capture))
    assert sum(row["kernel_ns"] for row in rows) == kernel_ns
    work = [row for row in rows if row["operation_class"] in WORK]
    assert {"_LayerNormLinear", "FlashAttnFunc"} <= {row["operation"] for row in work}
    assert {row["reason"] for row in work} == reasons
    unknown = ("flops", "bytes", "intensity", "roofline_ns", "efficiency", "headroom_ns", "bound", "shapes")
    assert all(row[name] is None for row in rows for name in unknown)
    assert all(row["reason"] for row in rows)


@pytest.mark.parametrize("graphs", [Graphs.LAYER, Graphs.ITERATION])
def test_what_a_cuda_graph_launches_is_unknown_and_what_runs_beside_it_is_known(graphs):
    rows, kernel_ns = rows_of(JobSettings(**SMALL, shapes=True, cuda_graphs=graphs))
    assert sum(row["kernel_ns"] for row in rows) == kernel_ns
    told = [row for row in rows if row["reason"] == "a CUDA graph launched it, whose operators are not recorded"]
    assert sum(row["kernel_ns"] for row in told) > 0.3 * kernel_ns
    assert all(row["flops"] is None and row["roofline_ns"] is None for row in told)
    # The head is in no graph of a layer.
    assert any(row["flops"] for row in rows if row["operation_class"] == "gemm") == (graphs is Graphs.LAYER)


# vLLM's own operators have no formula, and rows of some launches on MI300X are lost.
@pytest.mark.parametrize(("name", "gpu", "known"), [("b200_vllm_eager", "B200", 0.2), ("mi300_qwen05b", "MI300X", 0.6)])
def test_real_traces_of_other_gpus_have_their_own_peaks_and_a_reason_for_the_rest(shared_data, name, gpu, known):
    path = shared_data / "kineto" / "tracelens" / f"{name}.json.gz"
    rows = analyse_rank(RankTrace(path, path.name, 0), unite({}), load_rules())["operations"].to_pylist()
    own = [row for row in rows if row["operation_class"] != "communication"]
    judged = [row for row in own if row["roofline_ns"] is not None]
    assert {row["gpu"] for row in judged} == {gpu}
    products = [row for row in judged if row["operation_class"] in WORK and row["number_format"] == "bf16"]
    assert products and all(row["peak_flops_per_s"] > 10**15 for row in products)
    assert sum(row["kernel_ns"] for row in judged) > known * sum(row["kernel_ns"] for row in own)
    assert all((row["reason"] is None) == (row["roofline_ns"] is not None) for row in own), Counter(
        row["reason"] for row in own
    )
