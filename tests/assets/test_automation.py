"""Each cause recomputes exactly what depends on it: the set of (asset, partition), and nothing for no change."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg
import pytest

from tests.assets.loop import (
    COMPUTED,
    ITERATION_ASSETS,
    RANK_ASSETS,
    TOPOLOGY_ASSETS,
    Loop,
    of_iterations,
    of_ranks,
    of_topology,
)
from tests.classify.topology.test_topology_file import NEW_FORM
from tests.in_process import ranks_in_this_process
from tests.small_run import rank_file, write_run
from traceviz_dag.definitions import defs
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline import made, ranks, staleness
from traceviz_dag.pipeline.steps import lead_of
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Layout
from traceviz_dag.tables import ACROSS_RANKS_TABLES

ALL_OF_7 = of_topology("job@7") | of_ranks("job@7", 0, 1, 2, 3) | of_iterations("job@7")


def trace(run: Path, rank: int, iteration: int = 7) -> Path:
    return run / f"iteration_{iteration}/rank_{rank:04d}_iter_{iteration}.pt.trace.json"


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Iteration 7 with four ranks, computed from a cold start: its first evaluation comes after the observations.

    The tests that share it leave nothing undone behind them.
    """
    folder = tmp_path_factory.mktemp("automation")
    run = write_run(folder / "runs/job")
    loop = Loop(folder / "home", run.parent)
    loop.settle()
    assert loop.automate() == [of_topology("job@7"), of_ranks("job@7", 0, 1, 2, 3), of_iterations("job@7")]
    assert loop.news() == ALL_OF_7 and loop.failures == []
    assert loop.instance.get_materialized_partitions(dg.AssetKey("nvtx_ranges")) == {
        f"job@7|{rank:04d}" for rank in range(4)
    }
    assert open_lake(loop.home).partitions("nvtx_ranges") == [], "of profiles only"
    return loop


def test_whoever_depends_on_a_table_waits_for_the_one_that_speaks_for_its_step():
    graph = defs().resolve_asset_graph()
    names = {key.to_user_string(): key for key in graph.materializable_asset_keys}
    automated = {name for name, key in names.items() if graph.get(key).automation_condition is not None}
    assert {"topology", "overlap", "runs", "late_ranks", "rank_figures", "perfetto_trace", "report"} <= automated
    assert {lead_of(name) for name in automated} == automated, "one table speaks for each step"
    for name in automated:
        needed = {key.to_user_string() for key in graph.get(names[name]).parent_keys}
        assert {lead_of(table) for table in needed} - {name} <= needed, name


@pytest.fixture
def run(computed):
    return computed.root / "job"


@pytest.mark.long
def test_a_changed_rank_recomputes_itself_and_the_aggregates(computed, run):
    rank_file(1, 4, scale=2).write(trace(run, 1))
    computed.settle()
    computed.automate()
    assert computed.news() == of_topology("job@7") | of_ranks("job@7", 1) | of_iterations("job@7")


@pytest.mark.long
def test_a_new_time_with_the_old_content_recomputes_nothing(computed, run):
    for rank in range(4):
        os.utime(trace(run, rank))
    computed.settle()
    assert computed.automate() == []


@pytest.mark.long
def test_what_the_command_line_computed_meanwhile_is_not_computed_again(computed, run):
    rank_file(1, 4, scale=4).write(trace(run, 1))
    computed.settle()
    computed.evaluate()
    computed._execute(computed.evaluate())
    computed._execute(of_ranks("job@7", 0, 1, 2, 3))
    assert computed.news() == of_topology("job@7") | of_ranks("job@7", 1)
    computed.automate()
    assert computed.news() == of_iterations("job@7"), "the ranks' versions say what they were made from"


@pytest.mark.long
def test_a_file_of_several_iterations_is_read_once_for_all(tmp_path, monkeypatch: pytest.MonkeyPatch):
    job = JobSettings(pp=2, layers=2, microbatches=2, iterations=2, layout=Layout.TORCH_PROFILE)
    simulate(job, tmp_path / "runs/job", workers=1)
    reads, read = [], ranks.read_events
    monkeypatch.setattr(ranks, "read_events", lambda trace, *others: reads.append(trace.rank) or read(trace, *others))
    loop = Loop(tmp_path / "home", tmp_path / "runs")
    loop.settle()
    with ranks_in_this_process():
        loop.automate()
    assert sorted(reads) == [0, 1]
    keys = ["job@10", "job@11"]
    made = {pair for key in keys for pair in of_topology(key) | of_ranks(key, 0, 1) | of_iterations(key)}
    assert loop.news() == made and loop.failures == []


@pytest.mark.long
def test_what_appears_after_the_first_look_fails_or_comes_late_is_computed_stage_by_stage(tmp_path):
    """Of one run a trace is broken until it is fixed; of the other the file of a rank comes late."""
    late, broken = write_run(tmp_path / "runs/late", {7: 1}, 2), write_run(tmp_path / "runs/broken", world=2)
    loop = Loop(tmp_path / "home", tmp_path / "runs")
    assert loop.evaluate() == set()
    trace(broken, 1).write_text('{"traceEvents": "none"}')
    loop.settle()
    assert loop.automate() == [of_topology("broken@7"), of_ranks("broken@7", 0, 1)], "rank 1 of late@7 is missing"
    assert loop.news() == of_topology("broken@7") | of_ranks("broken@7", 0)
    assert len(loop.failures) == 1, "a bad trace is not tried again and again"

    rank_file(1, 2).write(trace(broken, 1))
    loop.settle()
    loop.tick(15 * 60)
    fixed = of_ranks("broken@7", 0, 1)
    assert loop.automate() == [
        of_topology("broken@7", "late@7"),
        fixed | of_ranks("late@7", 0),
        of_iterations("broken@7", "late@7"),
    ]
    assert loop.news() == of_topology("broken@7", "late@7") | fixed | of_ranks("late@7", 0) | of_iterations(
        "broken@7", "late@7"
    )
    assert partial(loop) == {"broken": False, "late": True}

    rank_file(1, 2).write(trace(late, 1))
    loop.settle()
    loop.automate()
    whole = of_topology("late@7") | of_ranks("late@7", 0, 1) | of_iterations("late@7")
    assert loop.news() == whole, "its header names groups that nobody knew, so all ranks are classified again"
    assert partial(loop) == {"broken": False, "late": False}


def partial(loop: Loop) -> dict[str, bool]:
    rows = open_lake(loop.home).query("SELECT run, partial FROM iterations").to_pylist()
    return {row["run"]: row["partial"] for row in rows}


@pytest.mark.long
def test_changed_rules_recompute_every_rank_and_no_topology(computed):
    rules = computed.home / "rules.toml"
    rules.write_text(
        '[[frame]]\nname = "mine"\non = ["python_function"]\npatterns = ["*nothing_like_it*"]\nphase = "other"\n'
    )
    computed.rules = str(rules)
    before = set(computed.instance.get_materialized_partitions(dg.AssetKey("kernels")))
    computed.tick()
    computed.automate()
    news = computed.news()
    assert {partition for asset, partition in news if asset == "kernels"} == before
    assert not {asset for asset, _ in news} & {"topology", "process_groups"}


@pytest.mark.long
def test_a_change_on_the_tick_after_a_request_is_not_lost(computed, run):
    rank_file(0, 4, scale=3).write(trace(run, 0))
    computed.settle()
    assert computed.evaluate() == set(), "it has only just been seen"
    first = computed.evaluate()
    rank_file(1, 4, scale=3).write(trace(run, 1))
    computed.settle()
    assert first == of_topology("job@7")
    computed.automate()
    assert computed.news() == of_topology("job@7") | of_ranks("job@7", 0, 1) | of_iterations("job@7")


@pytest.mark.long
def test_a_text_file_that_changes_the_topology_recomputes_its_ranks(computed, run):
    text = run / "unique_parallel_groups_20260101_000000.txt"
    text.write_text(NEW_FORM)
    computed.settle()
    computed.automate()
    across = {(table, "job@7") for table in ACROSS_RANKS_TABLES}
    assert computed.news() == of_topology("job@7") | of_ranks("job@7", 0, 1, 2, 3) | across, "they read its groups"
    text.write_text(NEW_FORM + "\n\n")
    computed.settle()
    computed.automate()
    assert computed.news() == of_topology("job@7"), "it says the same, so the topology came out as before"


@pytest.mark.long
def test_pairs_without_a_trace_are_never_asked_for_and_hold_nothing_up(computed, run):
    write_run(run, {8: 1})
    computed.settle()
    computed.tick(15 * 60)
    assert computed.automate() == [of_topology("job@8"), of_ranks("job@8", 0), of_iterations("job@8")]
    computed.news()


@pytest.mark.long
def test_a_code_version_recomputes_everything_once_and_in_order(computed, monkeypatch):
    before = made.CODE_VERSION
    for module in (made, staleness):
        monkeypatch.setattr(module, "CODE_VERSION", "next")
    computed.assets = [
        asset.map_asset_specs(
            lambda spec: spec.replace_attributes(
                code_version=spec.code_version and spec.code_version.replace(before, "next", 1)
            )
        )
        if isinstance(asset, dg.AssetsDefinition)
        else asset
        for asset in computed.assets
    ]
    everything = {
        (asset, partition)
        for asset in COMPUTED
        for partition in computed.instance.get_materialized_partitions(dg.AssetKey(asset))
    }
    asked = computed.automate()
    assert [sorted({asset for asset, _ in stage}) for stage in asked] == [
        sorted(TOPOLOGY_ASSETS),
        sorted(RANK_ASSETS),
        sorted(ITERATION_ASSETS),
    ]
    assert computed.news() == everything
