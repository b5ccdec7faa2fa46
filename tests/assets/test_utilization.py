"""MFU from the traces' headers through the tables to what Dagster plots."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest
from typer.testing import CliRunner

from assets.iteration_tables import iteration_assets
from assets.resources import TracevizHome
from tests.show.home import fill_home
from tests.small_run import rank_file
from traceviz_dag.commands.main import app
from traceviz_dag.lake.lake import open_lake

MODEL = {
    **{"global_batch_size": "2", "seq_length": "64", "num_layers": "2", "hidden_size": "128", "kv_channels": "32"},
    **{"num_attention_heads": "4", "group_query_attention": "False", "ffn_hidden_size": "512", "swiglu": "False"},
    **{"padded_vocab_size": "256", "bf16": "True"},
}
OF_A_TOKEN = 3 * (2 * (2 * 128 * 4 * 128 + 2 * 64 * 128 + 2 * 2 * 128 * 512) + 2 * 128 * 256)
STEP_NS = 100_000


def write_rank(folder: Path, rank: int, step: int, **settings: str) -> None:
    file = rank_file(rank, 2, step)
    file.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    file.header["traceviz_capture"] = {"settings": MODEL | settings}
    file.write(folder / f"iteration_{step}/rank_{rank:04d}_iter_{step}.pt.trace.json")


def test_mfu_is_in_the_table_in_json_and_in_what_dagster_plots(tmp_path):
    """The first iteration lacks a rank, whose GPU counts all the same; in the second, ranks state different models."""
    home = tmp_path / "home"
    write_rank(tmp_path / "job", 1, 7)
    write_rank(tmp_path / "job", 0, 9)
    write_rank(tmp_path / "job", 1, 9, seq_length="65")
    fill_home(home, [tmp_path / "job"])
    flops = 2 * 64 * OF_A_TOKEN
    mfu = flops / (STEP_NS / 1e9 * 2 * 989e12)
    rows = json.loads(CliRunner().invoke(app, ["iterations", "--home", str(home), "--json"]).stdout)
    assert [(row["mfu"], row["partial"]) for row in rows] == [(pytest.approx(mfu, rel=1e-12), True), (None, False)]
    assert rows[1]["mfu_refusal"] == "the ranks state different values of seq_length"
    (row,) = open_lake(home).table("iterations", "job", 7).arrow().to_pylist()
    assert (row["model_flops_per_gpu"], row["peak_format"]) == (flops // 2, "bf16")

    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions("iteration", ["job@7", "job@9"])
    for key, plotted in {"job@7": {"mfu": pytest.approx(mfu, rel=1e-12)}, "job@9": {}}.items():
        resources = {"traceviz": TracevizHome(home=str(home))}
        result = dg.materialize([iteration_assets], instance=instance, resources=resources, partition_key=key)
        (event,) = (one for one in result.get_asset_materialization_events() if one.asset_key.path == ["iterations"])
        found = {name: one.value for name, one in event.materialization.metadata.items() if name == "mfu"}
        assert found == plotted
