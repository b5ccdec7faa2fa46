"""Keeping house: what is old goes with all that was made of it, unless something works on it or rests on it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dagster as dg
import pytest

from assets.conventions import RANGE_END_TAG, RANGE_START_TAG
from assets.nightly import nightly_gate
from assets.recorded_tables import lost_tables
from assets.retention import MOST_PARTITIONS, expired, is_in_use, prune, retention, room_check
from tests.assets.loop import QUIET, Loop, of_iterations, of_ranks, of_topology
from tests.show.home import fill_home
from tests.small_run import rank_file
from traceviz_dag.lake.inputs import IterationInputs, RankInput, registered, registered_if_any
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.home_settings import RetentionSettings, load_settings
from traceviz_dag.pipeline.report import report_path

DAY_SECONDS = 86_400
SETTINGS = "[retention]\nkeep_days = 30\n[nightly.tolerances]\nfloor_ns = 1000\n"
EVERYTHING = of_topology("job@1") | of_ranks("job@1", 0, 1) | of_iterations("job@1")


def write_iteration(root: Path, iteration: int, days_old: float, scale: int = 1) -> None:
    for rank in range(2):
        path = root / f"job/iteration_{iteration}/rank_{rank:04d}_iter_{iteration}.pt.trace.json"
        rank_file(rank, 2, step=iteration, scale=scale).write(path)
        changed = time.time() - days_old * DAY_SECONDS
        os.utime(path, (changed, changed))


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """Iteration 1 is old, 2 is new."""
    folder = tmp_path_factory.mktemp("retention")
    root = folder / "runs"
    for iteration, days_old in ((1, 50), (2, 1)):
        write_iteration(root, iteration, days_old)
    loop = Loop(folder / "home", root, SETTINGS)
    loop.settle()
    loop.compute()
    loop.news()
    return loop


def keep_house(loop: Loop) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [*loop.assets],
        selection=[retention],
        instance=loop.instance,
        resources={"traceviz": loop.traceviz},
        run_config=QUIET,
        raise_on_error=False,
    )


def files_of(loop: Loop, iteration: int) -> list[Path]:
    return sorted(loop.home.glob(f"lake/*/run=job/iteration={iteration}/**/*.parquet"))


def iterations_left(loop: Loop) -> list[str]:
    return sorted(loop.instance.get_dynamic_partitions("iteration"))


@pytest.mark.long
def test_nothing_goes_while_a_run_is_under_way_that_may_work_on_it(loop):
    lake, inputs, before = open_lake(loop.home), registered(loop.home, "job@1"), files_of(loop, 1)
    ranks = {"dagster/asset_partition_range_start": "job@1|0000", "dagster/asset_partition_range_end": "job@1|0001"}
    for tags in ({"dagster/partition": "job@1"}, {"dagster/partition": "job@1|0001"}, ranks, {}):
        run = loop.instance.create_run_for_job(any_job, status=dg.DagsterRunStatus.STARTED, tags=tags)
        assert not prune(loop.instance, lake, inputs)
        assert files_of(loop, 1) == before and "job@1" in iterations_left(loop)
        assert is_in_use(loop.instance, "job@2") is not bool(tags), "only a run that says nothing holds all of them"
        assert not is_in_use(loop.instance, "job@1", own_run=run.run_id)
        loop.instance.report_run_canceled(run)
    assert not is_in_use(loop.instance, "job@1")


@dg.job
def any_job() -> None:
    """Any job."""


@pytest.mark.long
def test_where_no_iteration_is_left_no_table_is_lost(loop):
    assert lost_tables(loop.instance, open_lake(loop.home), []) == []


@pytest.mark.long
def test_what_is_old_goes_with_its_files_and_comes_back_only_when_its_trace_changes(loop):
    other = {path: path.read_bytes() for path in files_of(loop, 2)}
    made = ("perfetto/job/{}/iteration.pftrace.gz", "screens/job/{}/rank_0-0.lanes")
    exports = [loop.home / name.format(iteration) for iteration in (1, 2) for name in made]
    reports = [report_path(loop.home, "job", iteration) for iteration in (1, 2)]
    for export in (*exports, *reports):
        export.parent.mkdir(parents=True, exist_ok=True)
        export.touch()
    notes = exports[0].with_name("notes.txt")
    notes.write_text("somebody's own")
    assert files_of(loop, 1)
    kept = keep_house(loop)
    assert kept.success
    (told,) = kept.asset_materializations_for_node("retention")
    assert told.metadata["partitions"].value == 2, "one iteration is left, and two ranks"
    assert [export.exists() for export in exports] == [False, False, True, True]
    assert [report.exists() for report in reports] == [False, True]
    assert notes.exists() and not exports[1].parent.exists()
    assert iterations_left(loop) == ["job@2"]
    assert not files_of(loop, 1) and registered_if_any(loop.home, "job@1") is None
    assert {path: path.read_bytes() for path in files_of(loop, 2)} == other
    trace = loop.root / "job/iteration_1/rank_0001_iter_1.pt.trace.json"
    assert trace.exists(), "traces are not ours to delete"
    assert open_lake(loop.home).query("SELECT iteration FROM iterations").to_pylist() == [{"iteration": 2}]
    loop.settle()
    loop.compute()
    assert loop.news() == set() and iterations_left(loop) == ["job@2"], "nothing is set in motion"
    rank_file(1, 2, step=1, scale=2).write(trace)
    loop.settle()
    loop.compute()
    assert loop.news() == EVERYTHING, "with the rank that did not change"
    assert len(files_of(loop, 1)) == len(EVERYTHING)


@pytest.mark.long
def test_the_last_accepted_night_stays_since_the_next_is_compared_with_it(tmp_path):
    root = tmp_path / "runs"
    for iteration, scale in ((1, 1), (2, 2)):
        write_iteration(root, iteration, 40, scale)
    loop = Loop(tmp_path / "home", root, SETTINGS.replace("keep_days", "keep_newest = 0\nkeep_days"))
    loop.settle()
    fill_home(loop.home, [root / "job"])
    dg.materialize(
        [*loop.assets],
        selection=[nightly_gate],
        instance=loop.instance,
        resources={"traceviz": loop.traceviz},
        tags={RANGE_START_TAG: "job@1", RANGE_END_TAG: "job@2"},
        run_config=QUIET,
        raise_on_error=False,
    )
    keep_house(loop)
    assert iterations_left(loop) == ["job@1"], "2 is newer, and was not accepted"


def inputs_of(iteration: int, days_old: float, now_ns: int) -> IterationInputs:
    changed_ns = now_ns - int(days_old * DAY_SECONDS * 1e9)
    return IterationInputs("job", iteration, "/runs/job", (RankInput(0, "/x", "x", None, 1, changed_ns),))


def test_what_counts_as_old():
    now_ns = 2_000_000_000 * 1_000_000_000
    every = [inputs_of(iteration, days, now_ns) for iteration, days in ((1, 31), (2, 29), (3, 33), (4, 32))]

    def keys(**policy: float) -> list[str]:
        return [one.key for one in expired(every, {"job@1"}, RetentionSettings(**policy), now_ns)]

    assert keys() == [], "by default nothing ever goes"
    assert keys(keep_days=30) == ["job@3"], "the newest stays, and what others rest on"
    assert keys(keep_days=30, keep_newest=0) == ["job@3", "job@4"]
    assert keys(keep_days=30, keep_newest=2) == []


def test_the_room_for_partitions_is_watched():
    assert room_check(79_999).passed
    warned, full = room_check(80_000), room_check(MOST_PARTITIONS)
    assert not warned.passed and warned.severity is dg.AssetCheckSeverity.WARN
    assert not full.passed and full.severity is dg.AssetCheckSeverity.ERROR and "keep_days" in str(full.description)


def test_the_policy_comes_from_the_settings(tmp_path):
    (tmp_path / "traceviz.toml").write_text("[retention]\nkeep_days = 7\nkeep_newest = 5\n")
    assert load_settings(tmp_path, {}).retention == RetentionSettings(keep_days=7, keep_newest=5)
