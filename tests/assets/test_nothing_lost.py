"""What was computed stays until there is something better; kept tables are marked with the reason and shown as such."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import dagster as dg
import pytest

from assets.conventions import ONLY_STALE_TAG
from assets.partitions import rank_trace_key
from assets.recorded_tables import RECORDED
from assets.resources import TracevizHome
from assets.retention import retention
from tests.assets.loop import ITERATION_ASSETS, PROFILE_ASSETS, QUIET, RANK_ASSETS, TOPOLOGY_ASSETS
from tests.classify.topology.test_topology_file import NEW_FORM
from tests.damage import call
from tests.reported import informed_instance
from tests.small_run import rank_file, two_ranks_analysed, write_run
from traceviz_dag.definitions import ASSETS
from traceviz_dag.lake.inputs import all_registered, register, with_digests
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.partition_keys import rank_key
from traceviz_dag.orchestration.instance import open_instance
from traceviz_dag.pipeline.analysis import BUILT_IN_RULES, AnalysisSettings, IterationResult, analyse
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.home_settings import set_home_rules
from traceviz_dag.pipeline.staleness import pending_stage

STALE = "SELECT rank, stage, cause, reason FROM stale_tables ORDER BY rank NULLS FIRST, stage"
RULES = '[[kernel]]\nname = "own_gemm"\npatterns = ["nvjet*"]\nkind = "computation"\n'


def trace(run: Path, rank: int) -> Path:
    return run / f"iteration_7/rank_{rank:04d}_iter_7.pt.trace.json"


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return two_ranks_analysed(tmp_path_factory.mktemp("analysed"))


@pytest.fixture
def own(analysed, tmp_path):
    """The ranks, which a test may change, and a copy of the home."""
    run, home = analysed
    yield run, shutil.copytree(home, tmp_path / "home")
    shutil.rmtree(run)
    write_run(run, world=2)


def again(run: Path, home: Path, **settings) -> IterationResult:
    (result,) = analyse(AnalysisSettings(home, workers=1, **settings), inputs_below([run], home=home, with_known=True))
    return result


def from_the_ui(home: Path, *names: str, ranks: tuple[int, int] | None = None, only_stale: bool = False) -> bool:
    """Materialise assets as a click does, or as automation; whether that succeeded."""
    ends = {ONLY_STALE_TAG: "true"} if only_stale else {}
    if ranks is not None:
        first, last = (str(rank_trace_key("job@7", rank_key(rank))) for rank in ranks)
        ends |= {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    with informed_instance(home) as instance:
        result = dg.materialize(
            ASSETS,
            selection=dg.AssetSelection.assets(*names),
            instance=instance,
            resources={"traceviz": TracevizHome(home=str(home), workers=1)},
            partition_key=None if ranks else "job@7",
            tags=ends,
            run_config=QUIET,
            raise_on_error=False,
        )
    return result.success


def tables(home: Path) -> dict[str, bytes]:
    lake = home / "lake"
    paths = (path for path in lake.rglob("*.parquet") if not path.is_relative_to(lake / "stale_tables"))
    return {str(path.relative_to(home)): path.read_bytes() for path in paths}


def stale(home: Path) -> list[tuple]:
    return [tuple(row.values()) for row in open_lake(home).query(STALE).to_pylist()]


@pytest.mark.long
def test_materialising_what_was_moved_away_deletes_nothing_and_says_so(own, tmp_path):
    run, home = own
    before = tables(home)
    (run / "iteration_7").rename(tmp_path / "elsewhere")
    assert not from_the_ui(home, *RANK_ASSETS, *PROFILE_ASSETS, ranks=(0, 1))
    assert tables(home) == before
    assert [(rank, stage, cause) for rank, stage, cause, _ in stale(home)] == [
        (0, "ranks", "gone"),
        (1, "ranks", "gone"),
    ]
    assert str(trace(run, 1)) in stale(home)[1][-1]
    assert from_the_ui(home, *TOPOLOGY_ASSETS) and from_the_ui(home, *ITERATION_ASSETS)
    assert tables(home) == before, "nothing newer is known than what the tables were made of"
    told = call("iterations", "--home", home)
    assert told.code == 0 and "traces of ranks 0–1 are gone" in told.err
    (tmp_path / "elsewhere").rename(run / "iteration_7")
    assert "gone" not in call("iterations", "--home", home).err, "they are back, whatever the marks say"
    assert again(run, home).computed == [] and stale(home) == []


def pending(home: Path) -> tuple[str, list[int]] | None:
    """What command and night would compute next."""
    traceviz = TracevizHome(home=str(home))
    (inputs,) = all_registered(home)
    return pending_stage(traceviz.lake(), inputs, traceviz.load_rules().digest)


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.long
def test_command_and_step_mark_alike_what_was_moved_away(own, tmp_path, by_hand: bool):
    """By hand both are asked to make anew what is current, too; else what is stale: the rules have changed."""
    run, home = own
    other = shutil.copytree(home, tmp_path / "other")
    trace(run, 1).unlink()
    if not by_hand:
        (tmp_path / "rules.toml").write_text(RULES)
        set_home_rules(other, tmp_path / "rules.toml")
        assert pending(other) == ("ranks", [0, 1]), "a night counts no rank of other rules"
    told = again(run, home, force=by_hand, rules=None if by_hand else tmp_path / "rules.toml")
    assert told.computed == [0] and told.vanished == [1]
    assert not from_the_ui(other, *RANK_ASSETS, *PROFILE_ASSETS, ranks=(0, 1), only_stale=not by_hand)
    assert from_the_ui(other, *ITERATION_ASSETS) is by_hand, "without a rank they would tell less than they do"
    marks = [row for row in stale(home) if row[1] == "ranks"]
    assert [(rank, cause) for rank, _, cause, _ in marks] == [(1, "gone" if by_hand else "outdated")]
    assert marks == [row for row in stale(other) if row[1] == "ranks"]
    assert tables(other) == tables(home)
    assert pending(other) == (None if by_hand else ("iterations", [])), "what is marked is not asked for again"


@pytest.mark.long
def test_a_topology_stays_whole_while_its_traces_are_away_and_the_text_file_is_there(tmp_path):
    run, home = write_run(tmp_path / "job"), tmp_path / "home"
    (run / "unique_parallel_groups_20260101_000000.txt").write_text(NEW_FORM)
    again(run, home)
    before = tables(home)
    (run / "iteration_7").rename(tmp_path / "elsewhere")
    assert from_the_ui(home, *TOPOLOGY_ASSETS)
    assert tables(home) == before


def test_a_rank_that_fails_keeps_its_tables_which_no_measure_counts(own):
    run, home = own
    before = tables(home)
    trace(run, 1).write_text("no trace any more")
    result = again(run, home)
    assert result.failed == [1] and not result.aggregated and str(trace(run, 1)) in result.faults[1]
    assert tables(home) == before
    assert [(rank, stage, cause) for rank, stage, cause, _ in stale(home)] == [
        (None, "iterations", "waiting"),
        (1, "ranks", "unreadable"),
    ]
    for command in (["iterations"], ["waits"], ["overlap"], ["findings"]):
        told = call(*command, "--home", home)
        assert told.code == 2 and "stale" in (told.err + told.out).lower(), command
    rows = call("overlap", "--home", home, "--json").json
    assert {row["rank"] for row in rows} == {0}, "what is not the trace's any more is no answer"
    (home / "lake/stale_tables/run=job/iteration=7/part.parquet").write_bytes(b"damaged")
    assert again(run, home, allow_partial=True).aggregated
    (row,) = open_lake(home).query("SELECT covered_ranks, partial FROM iterations").to_pylist()
    assert row == {"covered_ranks": [0], "partial": True}
    assert call("sql", "SELECT failed_ranks FROM runs", "--home", home, "--json").json == [{"failed_ranks": [1]}]
    assert {path: data for path, data in tables(home).items() if "rank=1" in path} == {
        path: data for path, data in before.items() if "rank=1" in path
    }
    rank_file(1, 2).write(trace(run, 1))
    assert again(run, home).aggregated and stale(home) == [] and tables(home) == before
    assert call("iterations", "--home", home).code == 0


@pytest.mark.long
def test_aggregates_that_cannot_be_made_again_stay_and_are_marked(own):
    run, home = own
    before = tables(home)
    rank_file(1, 2, scale=3).write(trace(run, 1))
    shutil.rmtree(home / "lake/runs")
    (home / "lake/runs").write_text("a file in the way")
    assert not again(run, home).aggregated
    kept = open_lake(home)
    assert kept.partitions("iterations") and kept.partitions("collectives") and kept.partitions("findings")
    ((rank, stage, cause, reason),) = stale(home)
    assert (rank, stage, cause) == (None, "iterations", "failed") and "lake/runs" in reason
    told = call("iterations", "--home", home)
    assert told.code == 2 and "(stale)" in told.out
    (home / "lake/runs").unlink()
    assert again(run, home).aggregated and stale(home) == [] and tables(home) != before


@pytest.mark.long
def test_ranks_made_anew_mark_the_aggregates_until_these_follow(own):
    run, home = own
    rank_file(1, 2, scale=3).write(trace(run, 1))
    assert from_the_ui(home, *RANK_ASSETS, *PROFILE_ASSETS, ranks=(1, 1))
    ((rank, stage, cause, reason),) = stale(home)
    assert (rank, stage, cause) == (None, "iterations", "outdated") and "rank 1" in reason
    assert from_the_ui(home, *ITERATION_ASSETS) and stale(home) == []


def test_a_changed_rule_keeps_the_tables_of_a_rank_whose_trace_is_gone_out_of_the_others(own, tmp_path):
    run, home = own
    before = tables(home)
    trace(run, 1).unlink()
    (tmp_path / "rules.toml").write_text(RULES)
    result = again(run, home, rules=tmp_path / "rules.toml")
    assert not result.aggregated and result.computed == [0]
    kept = {path: data for path, data in tables(home).items() if "rank=0" not in path}
    assert kept == {path: data for path, data in before.items() if "rank=0" not in path}
    assert [(rank, stage, cause) for rank, stage, cause, _ in stale(home)] == [
        (None, "iterations", "waiting"),
        (1, "ranks", "outdated"),
    ]
    result = again(run, home, rules=BUILT_IN_RULES)
    assert result.computed == [0] and result.aggregated and stale(home) == []
    assert tables(home) == before, "the rules are what they were, and so is what was made by them"


@pytest.mark.long
def test_runs_of_ranks_that_fail_one_by_one_leave_the_marks_that_the_command_does(own, tmp_path):
    run, home = own
    other = shutil.copytree(home, tmp_path / "other")
    for rank in (0, 1):
        trace(run, rank).write_text(f"no trace {rank}")
    (inputs,) = with_digests(other, inputs_below([run], home=other, with_known=True))
    register(other, inputs)
    for rank in (0, 1):
        assert not from_the_ui(other, *RANK_ASSETS, *PROFILE_ASSETS, ranks=(rank, rank), only_stale=True)
    again(run, home)
    assert stale(other) == stale(home)


@pytest.mark.long
def test_a_check_of_every_night_names_what_dagster_shows_and_the_lake_has_not(own):
    _, home = own

    def check() -> dg.AssetCheckEvaluation:
        with open_instance(home) as instance:
            traceviz = TracevizHome(home=str(home))
            result = dg.materialize([retention], instance=instance, resources={"traceviz": traceviz}, run_config=QUIET)
        return next(one for one in result.get_asset_check_evaluations() if one.check_name == RECORDED)

    with informed_instance(home):
        pass
    assert check().passed
    shutil.rmtree(home / "lake/pipelines")
    (home / "lake/kernels/run=job/iteration=7/rank=1/part.parquet").write_bytes(b"something else")
    lost = check()
    assert not lost.passed and lost.metadata["lost"].value == ["pipelines of job@7", "kernels of job@7|0001"]


@pytest.mark.long
def test_a_renamed_iteration_is_said_by_the_command_and_shown_by_dagster(own):
    run, home = own
    (run / "iteration_7").rename(run / "iteration_107")
    shown = call("analyze", run, "--home", home, "--workers", "1", "--json")
    assert "job@107 has the traces that job@7 had: a renamed folder" in shown.err
    (told,) = json.loads(shown.out)
    assert told["same_traces_as"] == "job@7"
    tables = open_lake(home).query("SELECT iteration, step_ns FROM iterations ORDER BY iteration").to_pylist()
    assert [row["iteration"] for row in tables] == [7, 107] and tables[0]["step_ns"] == tables[1]["step_ns"]
    key = dg.AssetCheckKey(dg.AssetKey("runs"), "own_traces")
    with informed_instance(home) as instance:
        (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    evaluation = record.evaluation
    assert evaluation is not None and not evaluation.passed
    assert evaluation.metadata["same_traces_as"].value == "job@7" and evaluation.metadata["renamed"].value is True
