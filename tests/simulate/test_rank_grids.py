"""The simulator's groups equal those that Megatron-core's own initialisation builds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from isal import igzip

from traceviz_dag.simulate.rank_grids import RankGrids
from traceviz_dag.simulate.settings import JobSettings

_DESCRIPTIONS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "dp_cp": "DATA_PARALLEL_GROUP_WITH_CP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "mp(tp-pp)": "MODEL_PARALLEL_GROUP",
    "tp_cp": "TENSOR_AND_CONTEXT_PARALLEL_GROUP",
    "tp_dp": "TENSOR_AND_DATA_PARALLEL_GROUP",
    "tp_dp_cp": "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "etp": "EXPERT_TENSOR_PARALLEL_GROUP",
    "etp_ep": "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP",
    "etp_ep_pp": "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP",
    "edp": "EXPERT_DATA_PARALLEL_GROUP",
    "embd": "EMBEDDING_GROUP",
    "pos_embd": "POSITION_EMBEDDING_GROUP",
    "gtp": "GTP_WEIGHT_REMAT_GROUP",
}


def _settings(config: dict) -> JobSettings:
    tp, pp = config["tensor_model_parallel_size"], config["pipeline_model_parallel_size"]
    cp, ep = config["context_parallel_size"], config["expert_model_parallel_size"]
    return JobSettings(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=config.get("expert_tensor_parallel_size"),
        dp=config["world"] // (tp * pp * cp),
        order=config["order"],
    )


def test_groups_equal_megatrons(shared_data: Path):
    files = sorted((shared_data / "topology").glob("*.json"))
    assert len(files) >= 10
    for file in files:
        real = json.loads(file.read_text())
        grids = RankGrids.of(_settings(real["config"]))
        for key, description in _DESCRIPTIONS.items():
            mine = [list(group.ranks) for group in grids.groups if group.description == description]
            assert mine == real["groups"][key] or sorted(mine) == sorted(real["groups"][key]), (file.name, key)
        for rank, row in real["per_rank"].items():
            mine = grids.coordinates(int(rank))
            assert mine == {axis: row["coords"][axis] for axis in mine}, (file.name, rank)


@pytest.mark.parametrize(
    ("run", "settings"),
    [
        ("pp4_1f1b", JobSettings(pp=4)),
        ("tp2_pp2_vpp2_full", JobSettings(tp=2, pp=2, vpp=2)),
        ("pp2_dp2_distopt_overlap", JobSettings(pp=2, dp=2)),
        ("pp2_ep2_moe", JobSettings(pp=2, dp=2, ep=2)),
    ],
)
def test_names_equal_those_of_authentic_headers(shared_data: Path, run: str, settings: JobSettings):
    grids = RankGrids.of(settings)
    for rank in range(settings.world):
        file = shared_data / "megatron_cpu" / run / "iteration_2" / f"rank_{rank:04d}_iter_2.pt.trace.json.gz"
        text = igzip.decompress(file.read_bytes()).decode()
        header, _ = json.JSONDecoder().raw_decode(text, text.index("{", text.index('"distributedInfo"')))
        real = [(group["pg_name"], group["pg_desc"], tuple(group["ranks"])) for group in header["pg_config"]]
        mine = [(group.name, group.description, group.ranks) for group in grids.of_rank(rank).values()]
        assert mine == real
