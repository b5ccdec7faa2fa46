"""The dimension that each of Megatron's process-group descriptions serves."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from tests.classify.megatron_truth import CONFIGURATIONS, RUNS, truth
from traceviz_dag.classify.topology.group_dimensions import group_kind
from traceviz_dag.vocabulary import Dimension

EXPECTED = {
    Dimension.WORLD: ["default_pg"],
    Dimension.TP: ["TENSOR_MODEL_PARALLEL_GROUP", "TENSOR_AND_CONTEXT_PARALLEL_GROUP"],
    Dimension.PP: ["PIPELINE_MODEL_PARALLEL_GROUP"],
    Dimension.CP: [
        "CONTEXT_PARALLEL_GROUP",
        "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0",
        "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L11",
        "HYBRID_DP_CP_GROUP_16",
    ],
    Dimension.EP: ["EXPERT_MODEL_PARALLEL_GROUP", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"],
    Dimension.ETP: ["EXPERT_TENSOR_PARALLEL_GROUP"],
    Dimension.DP: [
        "DATA_PARALLEL_GROUP",
        "DATA_PARALLEL_GROUP_GLOO",
        "DATA_PARALLEL_GROUP_WITH_CP",
        "DATA_PARALLEL_GROUP_WITH_CP_GLOO",
        "DATA_PARALLEL_GROUP_WITH_CP_AG",
        "DATA_PARALLEL_GROUP_WITH_GTP_REMAT",
        "DATA_PARALLEL_GROUP_WITH_CP_WITH_GTP_REMAT",
        "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP",
        "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO",
        "TENSOR_AND_DATA_PARALLEL_GROUP",
        "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP",
        "GTP_WEIGHT_REMAT_GROUP",
    ],
    Dimension.EDP: [
        "EXPERT_DATA_PARALLEL_GROUP",
        "EXPERT_DATA_PARALLEL_GROUP_GLOO",
        "EXPERT_DATA_PARALLEL_GROUP_AG",
        "EXPERT_DATA_PARALLEL_GROUP_WITH_GTP_REMAT",
        "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0",
        "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_GLOO_L1",
        "EXPERT_GTP_WEIGHT_REMAT_GROUP",
    ],
    Dimension.EMBEDDING: ["EMBEDDING_GROUP", "POSITION_EMBEDDING_GROUP"],
    Dimension.GRAD_NORM: [
        "MODEL_PARALLEL_GROUP",
        "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
        "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP",
        "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP_WITH_EGTP",
    ],
}


@pytest.mark.parametrize(
    ("description", "dimension"), [(text, dimension) for dimension, texts in EXPECTED.items() for text in texts]
)
def test_each_description_has_its_dimension(description, dimension):
    kind = group_kind(description)
    assert kind is not None
    assert kind.dimension is dimension


@pytest.mark.parametrize("description", [None, "", "undefined", "mesh_dim_0", "MY_TENSOR_MODEL_PARALLEL_GROUP", "0"])
def test_other_descriptions_say_nothing(description):
    assert group_kind(description) is None


@pytest.mark.parametrize("run", RUNS)
def test_dimensions_are_those_of_the_ground_truth(shared_data, run):
    pairs = set()
    for path in (shared_data / "megatron_gpu" / run / "truth").glob("*.parquet"):
        rows = pq.read_table(path, columns=["kind", "group", "dimension"]).to_pylist()
        pairs |= {(row["group"], row["dimension"]) for row in rows if row["kind"] == "comm" and row["group"]}
    assert pairs
    for description, dimension in pairs:
        kind = group_kind(description)
        # num_tokens on the pipeline group is known from activations by the call stack, not by the group.
        assert kind is not None
        assert dimension in (kind.dimension, "control" if kind.dimension is Dimension.PP else kind.dimension)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_megatrons_descriptions_name_the_grid_groups(shared_data, configuration):
    expected = truth(shared_data, configuration)
    for name, description in expected["group_desc"].items():
        kind = group_kind(description)
        assert kind is not None
        assert kind.primary
        # With one optimizer instance the partial groups are the full ones, and carry their description.
        assert kind.grid_group in (name, {"intra_dp_cp": "dp_cp", "intra_edp": "edp"}.get(name))
        assert expected["groups"][name] == expected["groups"][kind.grid_group]
