"""The assets across ranks: their tables, their checks, and what a rank that is missing does to them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import dagster as dg
import pytest

from assets.across_ranks import GATE, MATCHED, SOLVED, across_ranks_assets
from assets.conventions import INVARIANTS
from assets.iteration_figures import iteration_figures
from assets.resources import TracevizHome
from tests.analyze.across_ranks import TINY
from traceviz_dag.lake.inputs import IterationInputs, register
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.figures import FigureTask
from traceviz_dag.pipeline.stored_iteration import iterations_at
from traceviz_dag.show.registry import figure_kinds
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.tables import ACROSS_RANKS_TABLES

PAIRS = '[[pair]]\nname = "both"\nstages = [0, 1]\nthreshold = {}\n[[pair]]\nname = "far"\nstages = [8, 9]\n'


BY_HAND = {
    "pipelines": "SELECT 1 - sum(ideal_ns) / sum(span_ns) AS bubble_share,"
    " sum(bubble_ns - imbalance_ns - jitter_ns - stall_ns) AS fill_drain_ns FROM pipelines",
    "collectives": "SELECT avg((fault IS NULL)::INTEGER) AS matched_share,"
    " sum(hidden_wait_ns + exposed_wait_ns) - sum(hidden_wait_ns) AS exposed_wait_ns FROM collectives",
    "rank_clocks": "SELECT count(offset_ns) AS solved_ranks FROM rank_clocks",
    "period_percentiles": "SELECT (SELECT score_p50 FROM period_percentiles WHERE kind = 'stages' ORDER BY 1 LIMIT 1)"
    " AS overlap_score_stages, (SELECT score_p50 FROM period_percentiles WHERE pair = 'both') AS overlap_score_named",
    "what_if": "SELECT gain_ns AS largest_gain_ns, 1 - predicted_step_ns / step_ns AS largest_gain_share FROM what_if"
    " WHERE gain_ns IS NOT NULL ORDER BY gain_ns DESC LIMIT 1",
}
"""Numbers that Dagster plots, computed in another way."""


@pytest.fixture(scope="module")
def analysed_home(tmp_path_factory) -> tuple[Path, IterationInputs]:
    """A home with the tables of ranks, and none across them."""
    folder = tmp_path_factory.mktemp("across") / "job"
    simulate(JobSettings(tp=2, pp=2, microbatches=4, **TINY), folder, workers=1)
    (inputs,) = inputs_below([folder])
    with iterations_at(folder, folder) as (iteration,):
        home = shutil.copytree(iteration.lake.home, folder.parent / "home")
    register(home, inputs)
    return home, inputs


@pytest.fixture
def home(tmp_path, analysed_home) -> tuple[Path, IterationInputs]:
    return shutil.copytree(analysed_home[0], tmp_path / "home"), analysed_home[1]


def materialise(home: Path, inputs: IterationInputs, pairs: str = "") -> dg.ExecuteInProcessResult:
    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions("iteration", [inputs.key])
    config = {"ops": {"across_ranks": {"config": {"pairs": pairs}}}}
    resources = {"traceviz": TracevizHome(home=str(home))}
    return dg.materialize(
        [across_ranks_assets], instance=instance, resources=resources, partition_key=inputs.key, run_config=config
    )


def checks(result: dg.ExecuteInProcessResult) -> dict[tuple[str, str], bool]:
    evaluations = result.get_asset_check_evaluations()
    return {(each.asset_key.to_user_string(), each.check_name): each.passed for each in evaluations}


def versions(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    events = result.asset_materializations_for_node("across_ranks")
    return {event.asset_key.to_user_string(): event.tags["dagster/data_version"] for event in events}


def test_all_tables_are_written_every_check_passes_and_the_same_ranks_give_the_same_versions(home, tmp_path):
    folder, inputs = home
    (tmp_path / "pairs.toml").write_text(PAIRS.format(-5))
    result = materialise(folder, inputs, str(tmp_path / "pairs.toml"))
    assert result.success
    lake = open_lake(folder)
    for name in ACROSS_RANKS_TABLES:
        # The job has no experts, and may have no links of two dimensions to compare; none of them is slow.
        least = 0 if name in ("expert_loads", "links", "link_groups") else 1
        assert lake.table(name, inputs.run, inputs.iteration).arrow().num_rows >= least
        assert lake.query(f"SELECT count(*) AS rows FROM {name}")["rows"][0].as_py() >= least
    plots = {
        event.asset_key.to_user_string(): {name: each.value for name, each in event.materialization.metadata.items()}
        for event in result.get_asset_materialization_events()
    }
    for table, sql in BY_HAND.items():
        for name, value in lake.query(sql).to_pylist()[0].items():
            assert plots[table][name] == pytest.approx(value, rel=1e-12), (table, name)
    assert plots["findings"]["traceviz_serve"] == f"http://127.0.0.1:3210/runs/job/{inputs.iteration}"
    (small, large) = re.fullmatch(
        r"\[!\[bubble_waterfall\]\(/(.*)\)\]\(/(.*)\)", plots["pipelines"]["bubble_waterfall"]
    ).groups()
    drawn = FigureTask(folder, inputs.run, inputs.iteration, figure_kinds()["bubble_waterfall"], None)
    assert folder / large == drawn.folder / f"{drawn.name}.png"
    assert folder / small == drawn.folder / "previews" / f"{drawn.name}.png"
    passed = checks(result)
    assert passed == dict.fromkeys(passed, True)
    again = versions(materialise(folder, inputs, str(tmp_path / "pairs.toml")))
    assert again == versions(result) and set(again) == set(ACROSS_RANKS_TABLES)
    assert {("collectives", MATCHED), ("rank_clocks", SOLVED), ("periods", GATE)} < set(passed)


@pytest.mark.long
def test_the_gate_fails_on_a_named_pair_and_names_what_it_cannot_judge(home, tmp_path):
    (tmp_path / "pairs.toml").write_text(PAIRS.format(1.5))
    result = materialise(*home, str(tmp_path / "pairs.toml"))
    (gate,) = [each for each in result.get_asset_check_evaluations() if each.check_name == GATE]
    assert not gate.passed and gate.metadata["not_judged"].value == ["far"]
    assert result.success, "a gate that fails is a verdict, not an error"


@pytest.mark.long
def test_without_a_rank_its_peers_are_measured_and_the_checks_say_what_is_missing(home):
    folder, inputs = home
    lake = open_lake(folder)
    lake.delete("kernels", run=inputs.run, iteration=inputs.iteration, rank=3)
    lake.delete("microbatches", run=inputs.run, iteration=inputs.iteration, rank=3)
    passed = checks(materialise(folder, inputs))
    assert not passed["collectives", MATCHED]
    assert all(passed[asset, INVARIANTS] for asset in ("collectives", "pipelines", "periods"))
    pipelines = open_lake(folder).table("pipelines", inputs.run, inputs.iteration).df()
    assert pipelines.refusal.notna().tolist() == [False, False, True]


def test_a_run_over_several_iterations_is_refused_with_what_to_do():
    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions("iteration", ["job@1", "job@2"])
    ends = {"dagster/asset_partition_range_start": "job@1", "dagster/asset_partition_range_end": "job@2"}
    for asset in (across_ranks_assets, *iteration_figures):
        resources = {"traceviz": TracevizHome(home="nowhere")}
        result = dg.materialize([asset], instance=instance, resources=resources, tags=ends, raise_on_error=False)
        (failure,) = (event for event in result.all_events if event.is_step_failure)
        assert "not 2 (job@1 to job@2): choose them in the dialog" in str(failure.event_specific_data)
