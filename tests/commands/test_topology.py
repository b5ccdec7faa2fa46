"""``traceviz topology`` as people and programs see it."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from tests.classify.megatron_truth import CONFIGURATIONS, options, truth
from tests.commands.jobs import home_of, traces_of
from traceviz_dag.commands.topology import topology
from traceviz_dag.errors import BadInputError, UsageError

app = typer.Typer()
app.command()(topology)


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def flags(configuration):
    return [part for name, value in options(configuration).items() for part in (f"--{name.replace('_', '-')}", value)]


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_json_is_keyed_and_valued_as_megatrons_own_groups(shared_data, configuration):
    expected = truth(shared_data, configuration)
    result = run(*flags(expected["config"]), "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.output)
    assert printed["groups"] == expected["groups"]
    assert list(printed["groups"]) == list(expected["groups"])
    assert printed["replicas"] == expected["replicas"]


def test_the_table_shows_pipelines_in_stage_order_and_replicas():
    result = run("--world", 8, "--tp", 2, "--pp", 4, "--vpp", 2)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "0 4 [0, 2, 4, 6]" in lines
    assert "complete model 0 8 [0, 1, 2, 3, 4, 5, 6, 7]" in lines
    assert "embd 2 2 [0, 6] [1, 7]" in lines


def test_impossible_sizes_are_a_usage_error():
    result = run("--world", 10, "--tp", 4)
    assert isinstance(result.exception, UsageError)
    assert "not divisible by tp 4" in str(result.exception)


def test_without_a_path_and_sizes_it_is_that_of_the_home_and_equals_that_of_its_traces(tmp_path):
    printed = json.loads(run("--home", home_of("healthy"), "--iteration", "10", "--json").output)
    assert printed == json.loads(run(traces_of("healthy"), "--json").output)
    assert len(printed) == 1 and len(printed[0]["topology"]["pipelines"]) == 2
    empty = run("--home", tmp_path)
    assert isinstance(empty.exception, BadInputError) and "holds no such iteration" in str(empty.exception)


def test_a_path_gives_the_topology_of_its_traces_and_compares_stated_sizes(shared_data):
    pytest.importorskip("traceviz_dag.pipeline.discovery", reason="the discovery of traces is not built yet")
    folder = shared_data / "megatron_gpu" / "pp2_dp2_distopt_overlap"
    printed = json.loads(run(folder, "--json").output)
    assert [entry["iteration"] for entry in printed] == [2]
    united = printed[0]["topology"]
    assert united["pipelines"] == [[0, 2], [1, 3]]
    assert united["sources"] == ["distributed_info", "text_file"]
    assert united["disagreements"] == []
    assert united["coordinates"]["3"] == {"tp": 0, "cp": 0, "dp": 1, "pp": 1, "ep": 0, "etp": 0, "edp": 1}
    agreeing = run(folder, "--pp", 2)
    assert "0 2 [0, 2]" in [" ".join(line.split()) for line in agreeing.output.splitlines()]
    assert "disagreement" not in agreeing.output
    assert "disagreement: The grid computed from the sizes has [0, 1]" in run(folder, "--tp", 2, "--pp", 2).output
