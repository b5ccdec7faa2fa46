"""FLOPs of all operations of simulated jobs against the count that follows from the arguments of their models."""

from __future__ import annotations

import gzip
import json
from collections import Counter

import pytest

from traceviz_dag.analyze.model_flops import model_flops
from traceviz_dag.analyze.operations.formulas import NOT_GATHERED
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.ranks import analyse_rank
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Precision, Recompute, Transformer
from traceviz_dag.tables import OPERATIONS
from traceviz_dag.vocabulary import OperationClass

_MODEL = {"layers": 2, "hidden": 1024, "heads": 8, "feed_forward": 2048, "sequence": 512, "vocabulary": 4096}
_MATRIX = {OperationClass.GEMM, OperationClass.GROUPED_GEMM, OperationClass.ATTENTION}


def _operations(folder, **settings):
    """The operations of all ranks that compute on matrix units."""
    simulate(JobSettings(**_MODEL, microbatches=2, shapes=True, **settings), folder, workers=1)
    rows = []
    for path in sorted(folder.rglob("*.json.gz")):
        tables = analyse_rank(RankTrace(path, path.name, 0), unite({}), load_rules())
        assert tables["operations"].schema == OPERATIONS.schema
        rows += [row for row in tables["operations"].to_pylist() if row["operation_class"] in _MATRIX]
    return rows


@pytest.mark.parametrize("layout", [{}, {"tp": 2, "pp": 2}], ids=["one rank", "four ranks"])
def test_flops_of_all_operations_are_those_of_the_model(tmp_path, layout):
    rows = _operations(tmp_path, **layout)
    assert rows and all(row["reason"] is None and row["number_format"] == "bf16" for row in rows)
    total = Counter()
    for row in rows:
        total[row["operation_class"]] += row["count"] * row["flops"]
    # Column-parallel layers state their shard of the sequence, and gather the others.
    tokens = 512 // layout.get("tp", 1)
    assert {json.loads(row["shapes"])[0][0] for row in rows if row["operation"] == "_LayerNormLinear"} == {tokens}
    settings = {
        **{"global_batch_size": 2, "seq_length": 512, "num_layers": 2, "hidden_size": 1024, "num_attention_heads": 8},
        **{"kv_channels": 128, "group_query_attention": False, "ffn_hidden_size": 2048, "swiglu": False},
        "padded_vocab_size": 4096,
    }
    expected = model_flops({name: str(value) for name, value in settings.items()}).flops
    # Flash attention computes the scores again: 3.5 times the forward pass instead of 3.
    attention, rest = divmod(6 * total[OperationClass.ATTENTION], 7)
    assert rest == 0
    assert total[OperationClass.GEMM] + attention == expected


def test_what_userbuffers_gather_is_known_by_the_gradient_and_unknown_without_one(tmp_path):
    settings = {"tp": 2, "overlap_tensor": True, "recompute": Recompute.FULL}
    rows = [row for row in _operations(tmp_path, **settings) if "LayerNormLinear" in row["operation"]]
    reasons = {row["phase"]: row["reason"] for row in rows}
    # The forward pass of a layer that is computed again makes no node of the graph.
    assert reasons == {"forward": NOT_GATHERED, "recompute": None, "backward": None}
    known = Counter()
    for row in rows:
        known[row["phase"]] += row["count"] * (row["flops"] or 0)
    # Two layers of two micro-batches on two ranks.
    assert known["backward"] == 2 * known["recompute"] == 2 * 8 * (2 * 512 * 1024 * (1536 + 1024))


def test_products_of_megatrons_own_layers_are_known(tmp_path):
    rows = _operations(tmp_path, transformer=Transformer.LOCAL)
    scores = [json.loads(row["shapes"]) for row in rows if row["operation"] == "aten::baddbmm"]
    # Kineto writes five arguments: what is added, two matrices, and two numbers.
    assert scores and all(sizes == [[8, 512, 512], [8, 512, 128], [8, 128, 512], [], []] for sizes in scores)
    assert all(row["reason"] is None and row["flops"] for row in rows)


def test_attention_over_context_parallel_ranks_is_attention_whose_flops_are_not_recorded(tmp_path):
    rows = [row for row in _operations(tmp_path, cp=2) if row["operation_class"] == OperationClass.ATTENTION]
    assert {row["operation"] for row in rows} == {"AttnFuncWithCPAndKVP2P", "AttnFuncWithCPAndKVP2PBackward"}
    assert all(row["flops"] is None and "context parallelism" in row["reason"] for row in rows)


def test_experts_compute_twice_as_much_backward(tmp_path):
    rows = [row for row in _operations(tmp_path, experts=4) if row["operation_class"] == OperationClass.GROUPED_GEMM]
    by_phase = Counter()
    for row in rows:
        by_phase[row["phase"]] += row["count"] * row["flops"]
    assert by_phase["backward"] == 2 * by_phase["forward"] > 0


def test_pointwise_operators_move_the_bytes_that_their_kernels_take_their_time_for(tmp_path):
    simulate(JobSettings(layers=2, microbatches=2, shapes=True), tmp_path, workers=1)
    (path,) = tmp_path.rglob("*.json.gz")
    rows = analyse_rank(RankTrace(path, path.name, 0), unite({}), load_rules())["operations"].to_pylist()
    known = [row for row in rows if row["operation_class"] in ("elementwise", "copy") and row["bytes"]]
    sizes = {row["operation"]: row["shapes"] for row in known}
    # A micro-batch of 4,096 tokens, 4,096 wide.
    assert sizes["aten::native_dropout"] == "[[16777216],[],[]]"
    # Pointwise kernels reach 78 % of the bandwidth of the simulated GPU, and memsets 2.8 TB/s.
    long = [row for row in known if row["median_ns"] > 500_000]
    assert {row["operation"] for row in long} == {"aten::mul_", "aten::copy_", "aten::zero_"}
    assert all(row["efficiency"] == pytest.approx(0.8, abs=0.04) for row in long)


@pytest.mark.parametrize(("precision", "number_format"), [("mxfp8", "fp8"), ("nvfp4", "fp4"), ("fp8", "fp8")])
def test_products_of_eight_and_four_bits_are_held_against_their_own_peak(tmp_path, precision, number_format):
    rows = _operations(tmp_path, precision=Precision(precision))
    products = [row for row in rows if "Linear" in row["operation"] and row["operation"].startswith("_")]
    assert {row["operation"] for row in products} >= {"_Linear", "_LinearBackward", "_LayerNormLinear"}
    peak = {"fp8": 1979 * 10**12, "fp4": None}[number_format]
    assert {(row["number_format"], row["peak_flops_per_s"]) for row in products} == {(number_format, peak)}
    (path,) = tmp_path.rglob("*.json.gz")
    stated = json.loads(gzip.decompress(path.read_bytes()))["traceviz_capture"]["settings"]
    assert stated[number_format] == {"fp8": "e4m3", "fp4": "e2m1"}[number_format] and stated["bf16"] == "True"
