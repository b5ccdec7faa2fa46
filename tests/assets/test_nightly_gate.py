"""The nightly gate on real tables: verdicts in the order of the series, exact deltas, the way to a verdict."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path

import dagster as dg
import pytest
from dagster._utils.schedules import schedule_execution_time_iterator

from assets.conventions import ONLY_STALE_TAG, RANGE_END_TAG, RANGE_START_TAG
from assets.nightly import nightly_gate
from assets.resources import TracevizHome
from sensors.nightly import NIGHT_TAG, _latest_night, _unfinished, judge_open_night, nightly_schedule
from sensors.notifications import notify_sensor
from sensors.register_traces import register_traces
from tests.assets.loop import ITERATION_ASSETS, PROFILE_ASSETS, QUIET, RANK_ASSETS, Loop
from tests.classify.topology.test_topology_file import NEW_FORM
from tests.damage import call
from tests.nsys_file import Export
from tests.show.home import fill_home
from tests.small_run import rank_file
from traceviz_dag.lake.inputs import all_registered, register, registered
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.marking import mark_stale
from traceviz_dag.lake.stale import Stale
from traceviz_dag.pipeline.figures import figures_folder
from traceviz_dag.pipeline.home_settings import FILE_NAME, HomeSettings, NightlySettings
from traceviz_dag.vocabulary import StaleCause, StaleStage


def write_iteration(run: Path, iteration: int, scale: int = 1) -> None:
    for rank in range(2):
        file = rank_file(rank, 2, step=iteration, scale=scale)
        file.write(run / f"iteration_{iteration}/rank_{rank:04d}_iter_{iteration}.pt.trace.json")


def judge(home: Path, instance: dg.DagsterInstance | None = None, **config) -> dg.ExecuteInProcessResult:
    instance = instance or dg.DagsterInstance.ephemeral()
    keys = [one.key for one in sorted(all_registered(home), key=lambda one: (one.run, one.iteration))]
    instance.add_dynamic_partitions("iteration", keys)
    return dg.materialize(
        [nightly_gate],
        instance=instance,
        resources={"traceviz": TracevizHome(home=str(home))},
        tags={ONLY_STALE_TAG: "true", RANGE_START_TAG: keys[0], RANGE_END_TAG: keys[-1]},
        run_config={**QUIET, "ops": {"nightly_gate": {"config": config}}},
        raise_on_error=False,
    )


def verdicts(home: Path) -> list[tuple[int, bool, int | None]]:
    sql = "SELECT iteration, accepted, reference_iteration FROM nights ORDER BY iteration"
    return [tuple(row.values()) for row in open_lake(home).query(sql).to_pylist()]


SETTINGS = "[nightly]\nwarmup_steps = 0\n[nightly.tolerances]\nfloor_ns = 1000\n"


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> tuple[Path, dg.DagsterInstance, dg.ExecuteInProcessResult]:
    """A home with iterations 1 to 3, the third of which computes twice as long; and the run that judged them."""
    instance = dg.DagsterInstance.ephemeral()
    folder = tmp_path_factory.mktemp("judged")
    for iteration, scale in ((1, 1), (2, 1), (3, 2)):
        write_iteration(folder / "job", iteration, scale)
    home = folder / "home"
    fill_home(home, [folder / "job"])
    (home / FILE_NAME).write_text(f'{SETTINGS}[notify]\nfile = "{home}/told.jsonl"\n')
    return home, instance, judge(home, instance)


@pytest.fixture
def home(judged, tmp_path) -> Path:
    """A copy of it; the traces are beside it."""
    shutil.copytree(judged[0].parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "home"


def test_the_last_night_shows_the_series_as_a_picture(judged):
    home, instance, _ = judged
    path = figures_folder(home, "job", 3) / "night_series.png"
    assert path.read_bytes().startswith(b"\x89PNG") and (path.parent / "previews" / path.name).is_file()
    shown = {
        partition: instance.fetch_materializations(
            dg.AssetRecordsFilter(dg.AssetKey("nights"), asset_partitions=[partition]), limit=1
        )
        .records[0]
        .asset_materialization.metadata.get("night_series")
        for partition in ("job@2", "job@3")
    }
    assert shown["job@2"] is None
    assert (
        shown["job@3"].value
        == "[![night_series](/figures/job/3/previews/night_series.png)](/figures/job/3/night_series.png)"
    )


def test_the_night_that_got_slower_fails_the_run_and_is_no_reference(judged, home):
    assert not judged[-1].success
    assert verdicts(home) == [(1, True, None), (2, True, 1), (3, False, 2)]
    assert judged[1].get_materialized_partitions(dg.AssetKey("nights")) == {"job@1", "job@2", "job@3"}
    write_iteration(home.parent / "job", 4)
    fill_home(home, [home.parent / "job/iteration_4"])
    assert judge(home).success, "compared with iteration 2, and 3 is not judged again"
    assert verdicts(home)[-1] == (4, True, 2)


@pytest.mark.long
def test_nights_over_few_ranks_are_inconclusive_and_no_reference(tmp_path):
    """Iteration 10 and 13 are whole; 11 was captured on rank 0 alone, 12 on rank 3 alone, which is slow that night."""
    for iteration, ranks in ((10, range(4)), (11, (0,)), (12, (3,)), (13, range(4))):
        for rank in ranks:
            file = rank_file(rank, 4, step=iteration, scale=2 if iteration == 12 else 1)
            file.write(tmp_path / f"job/iteration_{iteration}/rank_{rank:04d}_iter_{iteration}.pt.trace.json")
    home = tmp_path / "home"
    fill_home(home, [tmp_path / "job"])
    assert judge(home).success, "nobody knows that one is worse"
    assert verdicts(home) == [(10, True, None), (11, None, None), (12, None, None), (13, True, 10)]
    told = {row["iteration"]: row for row in call("iterations", "--home", home, "--json").json}
    assert "they share 1 of 4 ranks" in told[12]["statement"] and "accept it by hand" in told[12]["statement"]
    assert "inconclusive" in call("iterations", "--home", home).out
    assert judge(home, accept=["job@12"]).success
    assert verdicts(home)[2] == (12, True, None), "from here on it is the reference, as somebody wants it"


def test_a_night_that_is_accepted_by_hand_exists(home):
    result = judge(home, accept=["job@2", "job@99"])
    (failure,) = result.all_events and [one for one in result.all_events if one.is_step_failure]
    assert not result.success and "no measures of job@99" in str(failure.step_failure_data)


@pytest.mark.long
def test_a_first_night_of_few_ranks_is_the_reference_until_a_whole_one_comes(tmp_path):
    for iteration, ranks, scale in ((11, (0,), 1), (12, range(4), 1), (13, range(4), 2)):
        for rank in ranks:
            file = rank_file(rank, 4, step=iteration, scale=scale)
            file.write(tmp_path / f"job/iteration_{iteration}/rank_{rank:04d}_iter_{iteration}.pt.trace.json")
    home = tmp_path / "home"
    fill_home(home, [tmp_path / "job"])
    (home / FILE_NAME).write_text(SETTINGS)
    assert not judge(home).success, "13 is slower than 12"
    assert verdicts(home) == [(11, True, None), (12, True, None), (13, False, 12)]
    (told,) = open_lake(home).query("SELECT statement FROM nights WHERE iteration = 12").to_pylist()
    assert told["statement"].endswith("the first of its series with 4 ranks: job@11 covers 1 of them")


def test_a_night_takes_up_an_iteration_whose_topology_is_of_another_text_file(home):
    judge(home)
    assert list(_unfinished(open_lake(home))) == []
    file = home.parent / "job/unique_parallel_groups_20260101_000000.txt"
    file.write_text(NEW_FORM)
    register(home, replace(registered(home, "job@2"), topology_file=str(file)))
    assert [one.key for one in _unfinished(open_lake(home))] == ["job@2"]


@pytest.mark.parametrize("ranks", [pytest.param((1,), marks=pytest.mark.long), (0, 1)])
def test_a_reference_whose_ranks_are_not_counted_any_more_is_none(home, ranks):
    marks = [Stale(rank, StaleStage.RANKS, StaleCause.OUTDATED, "the trace is gone") for rank in ranks]
    mark_stale(open_lake(home), "job", 2, marks)
    write_iteration(home.parent / "job", 4, scale=9)
    fill_home(home, [home.parent / "job/iteration_4"])
    assert judge(home).success
    assert verdicts(home)[-1] == (4, None, None), "nine times as slow, and accepted by nobody"
    (told,) = open_lake(home).query("SELECT statement FROM nights WHERE iteration = 4").to_pylist()
    assert "inconclusive against job@2: its tables of rank" in told["statement"]


@pytest.mark.long
def test_warm_up_steps_are_compared_with_such_alone(tmp_path):
    for iteration, scale in ((1, 3), (20, 1), (21, 1)):
        write_iteration(tmp_path / "job", iteration, scale)
    fill_home(tmp_path / "home", [tmp_path / "job"])
    assert judge(tmp_path / "home").success
    assert verdicts(tmp_path / "home") == [(1, True, None), (20, True, None), (21, True, 20)]


@pytest.mark.long
def test_a_capture_that_nothing_numbers_is_no_step_0_and_is_compared_with_its_like_alone(tmp_path):
    """The first capture marks its steps 0 and 1, the second has a range around each, of others nothing is marked."""
    ranges = {"a": ("step_0", "step_1"), "b": ("train_step", "train_step"), "c": (), "d": ()}
    for number, (name, marked) in enumerate(ranges.items()):
        export, length = Export(), 10_000_000 * (number + 1)
        for step in range(2):
            start = 1_000_000 + step * length
            export.kernel(start, start + length - 1000)
        for step, text in enumerate(marked):
            export.range(1_000_000 + step * length, 1_000_000 + (step + 1) * length, text)
        (tmp_path / f"night-{name}").mkdir()
        os.utime(export.write(tmp_path / f"night-{name}/capture.sqlite"), ns=(0, 10**18 + number))
    home = tmp_path / "home"
    fill_home(home, [tmp_path / f"night-{name}" for name in ranges])
    (home / FILE_NAME).write_text('[nightly]\nseries = ["night-*"]\n')
    assert not judge(home).success
    rows = open_lake(home).query("FROM nights ORDER BY run, iteration").to_pylist()
    compared = {f"{row['run']}@{row['iteration']}": (row["reference_run"], row["accepted"]) for row in rows}
    assert compared == {
        "night-a@0": (None, True),
        "night-a@1": (None, True),
        "night-b@0": (None, True),
        "night-b@1": (None, True),
        "night-c@0": (None, True),
        "night-d@0": ("night-c", False),
    }
    told = {row["run"]: row["statement"] for row in rows}
    assert "numbers" not in told["night-a"] and told["night-b"].endswith("with its like alone: NVTX ranges train_step")
    assert told["night-d"].endswith(
        "nothing numbers its steps, so it is compared with its like alone: the whole capture"
    )


def test_deltas_by_part_add_up_to_the_change_of_the_step_and_name_what_moved(home):
    (night,) = (
        open_lake(home)
        .query("SELECT step_ns - reference_step_ns AS change, moved, statement FROM nights WHERE iteration = 3")
        .to_pylist()
    )
    sql = (
        "SELECT sum(delta_ns)::BIGINT AS change, arg_max(part, delta_ns) AS part FROM night_deltas WHERE iteration = 3"
    )
    assert open_lake(home).query(sql).to_pylist() == [{"change": night["change"], "part": night["moved"]}]
    assert night["moved"] in night["statement"] and "worse: step time" in night["statement"]


def test_a_regression_accepted_by_hand_is_the_next_reference(home):
    assert judge(home, accept=["job@3"]).success
    assert verdicts(home)[-1] == (3, True, 2)
    write_iteration(home.parent / "job", 4, scale=2)
    fill_home(home, [home.parent / "job/iteration_4"])
    assert judge(home).success
    assert verdicts(home)[-1] == (4, True, 3)


@pytest.mark.long
def test_runs_of_one_series_are_compared_in_the_order_of_their_traces(tmp_path):
    runs, home = tmp_path / "runs", tmp_path / "home"
    for index, name in enumerate(("nightly-b", "nightly-a", "other")):
        write_iteration(runs / name, 1)
        for path in (runs / name).rglob("*.json"):
            os.utime(path, ns=(0, (index + 1) * 10**9))
    os.utime(max((runs / "nightly-b").rglob("*.json")), ns=(0, 9 * 10**9))  # a rank that came late
    fill_home(home, [runs])
    (home / FILE_NAME).write_text('[nightly]\nseries = ["nightly-*"]\n')
    assert judge(home).success
    rows = open_lake(home).query("SELECT run, series, reference_run FROM nights ORDER BY run").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("nightly-a", "nightly-*", "nightly-b"),
        ("nightly-b", "nightly-*", None),
        ("other", "other", None),
    ]


@pytest.mark.long
def test_a_named_pair_that_overlaps_less_is_worse_although_the_step_is_not(tmp_path, monkeypatch):
    (tmp_path / "pairs.toml").write_text(
        '[[pair]]\nname = "decode"\ntimestamps = "stamps.jsonl"\nstage0 = {stamp = "A"}\nstage1 = {stamp = "B"}\n'
    )
    monkeypatch.setenv("TRACEVIZ_PAIRS", str(tmp_path / "pairs.toml"))
    run = tmp_path / "runs/job"
    loop = Loop(tmp_path / "home", run.parent)
    # A unit takes as long as its longer stage, then as long as both.
    for iteration, period in ((1, 100), (2, 150)):
        stamps = ({"rank": 0, "unit": unit, "tA0": unit * period, "tA1": unit * period + 100} for unit in range(6))
        lines = [json.dumps({**stamp, "tB0": stamp["tA1"], "tB1": stamp["tA1"] + 50}) for stamp in stamps]
        (tmp_path / "stamps.jsonl").write_text("\n".join(lines))
        write_iteration(run, iteration)
        loop.settle()
        loop.compute()
    scores = open_lake(loop.home).query("SELECT iteration, score_p50 FROM period_percentiles WHERE kind = 'named'")
    assert sorted(tuple(row.values()) for row in scores.to_pylist()) == [(1, 1.0), (2, 0.0)]
    assert not judge(loop.home).success
    (night,) = open_lake(loop.home).query("SELECT worse FROM nights WHERE iteration = 2").to_pylist()
    assert night["worse"] == ["OverlapScore of decode"]


def test_nothing_is_judged_twice(home):
    files = {path: path.stat().st_mtime_ns for path in (home / "lake/nights").rglob("*.parquet")}
    assert judge(home).success
    assert {path: path.stat().st_mtime_ns for path in files} == files


def open_the_night(loop: Loop) -> str:
    """What the schedule asks for at 02:00, executed."""
    schedule = nightly_schedule(loop.traceviz.settings())
    context = dg.build_schedule_context(loop.instance, scheduled_execution_time=datetime(2026, 8, 1, 2, tzinfo=UTC))
    (request,) = schedule.evaluate_tick(context).run_requests
    register_traces.execute_in_process(
        run_config={**request.run_config, **QUIET},
        instance=loop.instance,
        resources={"traceviz": loop.traceviz},
        tags=dict(request.tags),
    )
    return request.tags[NIGHT_TAG]


def next_requests(loop: Loop, later: float = 300) -> list[tuple[str, str]]:
    """(job, partition) that the verdict sensor asks for, by default when automation has had its time."""
    now = datetime.now(UTC).timestamp() + later
    asked = [one for one in judge_open_night(loop.instance, loop.traceviz, now) if isinstance(one, dg.RunRequest)]
    return [
        (str(one.job_name), one.partition_key or one.tags.get("dagster/asset_partition_range_start", ""))
        for one in asked
    ]


def test_the_night_finds_what_the_sensor_missed_computes_it_stage_by_stage_and_is_judged(tmp_path):
    run = tmp_path / "runs/job"
    write_iteration(run, 1)
    for path in run.rglob("*.json"):
        os.utime(path, ns=(0, 10**18))
    loop = Loop(tmp_path / "home", run.parent)
    assert next_requests(loop) == [], "no night is open"
    open_the_night(loop)
    assert next_requests(loop, later=1) == [], "automation may be about to ask for the same"
    assert next_requests(loop) == [("compute_topology", "job@1")]
    loop._materialise(("topology", "process_groups"), partition_key="job@1")
    assert next_requests(loop) == [("compute_ranks", "job@1|0000")]
    loop._execute_ranks(["job@1|0000", "job@1|0001"])
    assert next_requests(loop) == [("compute_iterations", "job@1")]
    loop._materialise(ITERATION_ASSETS, partition_key="job@1")
    assert next_requests(loop) == [("judge_night", "job@1")]


@pytest.mark.long
def test_the_night_makes_anew_what_was_stale_while_its_trace_was_away(tmp_path):
    run, home = tmp_path / "runs/job", tmp_path / "home"
    write_iteration(run, 1)
    loop = Loop(home, run.parent)
    call("analyze", run, "--home", home)
    judge(home, loop.instance)
    trace, away = run / "iteration_1/rank_0001_iter_1.pt.trace.json", tmp_path / "away.json"
    trace.rename(away)
    (home / "rules.toml").write_text('[[kernel]]\nname = "mine"\npatterns = ["nvjet*"]\nkind = "memory"\n')
    assert call("analyze", run, "--home", home, "--rules", home / "rules.toml").code == 2
    open_the_night(loop)
    assert next_requests(loop) == [("judge_night", "job@1")], "nothing can be made of what is away"
    away.rename(trace)
    assert next_requests(loop) == [("compute_ranks", "job@1|0001")]


@pytest.mark.parametrize("change", [datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)])
def test_where_clocks_change_each_day_has_one_night_and_the_last_one_is_judged(change):
    """At 02:30, which is missing on one day and comes twice on another; and once an hour."""
    instance = dg.DagsterInstance.ephemeral()
    nights = []
    for cron in ("30 2 * * *", "30 * * * *"):
        schedule = nightly_schedule(HomeSettings(nightly=NightlySettings(cron=cron, time_zone="Europe/Berlin")))
        times = schedule_execution_time_iterator(change.timestamp(), cron, "Europe/Berlin", ascending=True)
        ticks = list(takewhile(lambda time: time < change + timedelta(days=1), times))
        nights.append([])
        for tick in ticks:
            context = dg.build_schedule_context(instance, scheduled_execution_time=tick)
            (request,) = schedule.evaluate_tick(context).run_requests
            nights[-1].append(request.tags[NIGHT_TAG])
            instance.create_run_for_job(register_traces, tags=dict(request.tags))
            assert _latest_night(instance) == max(nights[0][-1], nights[-1][-1], key=datetime.fromisoformat)
    assert [len(set(found)) for found in nights] == [1, 24]


@pytest.mark.long
def test_a_night_waits_for_a_rank_that_failed_no_longer_than_it_may(tmp_path):
    run = tmp_path / "runs/job"
    write_iteration(run, 1)
    (run / "iteration_1/rank_0001_iter_1.pt.trace.json").write_text('{"traceEvents": "none"}')
    loop = Loop(tmp_path / "home", run.parent)
    loop.settle()
    loop.compute()
    night = open_the_night(loop)
    (stage,) = next_requests(loop)
    assert stage == ("compute_ranks", "job@1|0001"), "it is tried once more"
    assert next_requests(loop, later=3 * 3600) == [("judge_night", "job@1")]
    now = datetime.now(UTC).timestamp() + 300
    key = next(
        one for one in judge_open_night(loop.instance, loop.traceviz, now) if isinstance(one, dg.RunRequest)
    ).run_key
    dg.materialize(
        loop.assets,
        selection=dg.AssetSelection.assets(*RANK_ASSETS, *PROFILE_ASSETS),
        instance=loop.instance,
        resources={"traceviz": loop.traceviz},
        tags={
            "dagster/run_key": str(key),
            NIGHT_TAG: night,
            "dagster/asset_partition_range_start": "job@1|0001",
            "dagster/asset_partition_range_end": "job@1|0001",
        },
        run_config=QUIET,
        raise_on_error=False,
    )
    assert next_requests(loop) == [("judge_night", "job@1")], "once a night and state"


def test_a_failed_gate_shows_the_file_what_moved(judged):
    home, instance, result = judged
    run = instance.get_run_by_id(result.run_id)
    (entry,) = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    traceviz = TracevizHome(home=str(home))
    context = dg.build_run_status_sensor_context(
        "notify", entry.dagster_event, instance, run, resources={"traceviz": traceviz}
    ).for_run_failure()
    notify_sensor(traceviz.settings())(context)
    (message,) = [json.loads(line) for line in (home / "told.jsonl").read_text().splitlines()]
    assert message["job"] and message["assets"] == ["night_changes", "night_deltas", "night_steps", "nights"]
    assert "job@3: step" in message["text"] and "grew most" in message["text"]
    assert list(message["checks"]) == ["nights:gate"]
