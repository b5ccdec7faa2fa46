"""What Dagster does for a home, as programs that ``benchmarks/kill.py`` kills and starts again.

Run one by hand: ``python -m benchmarks.dagster_faults NAME HOME RUN``. Each goes on where a killed one was, and ends
with 1 where what must hold at its end does not.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import dagster as dg
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.storage.tags import SCHEDULE_NAME_TAG, SCHEDULED_EXECUTION_TIME_TAG
from dagster._core.test_utils import create_test_daemon_workspace_context, freeze_time
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._scheduler.scheduler import launch_scheduled_runs

from assets.resources import TracevizHome
from assets.retention import retention as retention_asset
from tests.end_to_end.daemon import Daemon, is_busy, news
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.lake.inputs import all_registered
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.orchestration.instance import open_instance
from traceviz_dag.pipeline import made, memory, staleness
from traceviz_dag.pipeline.home_settings import FILE_NAME
from traceviz_dag.pipeline.staleness import pending_stage
from traceviz_dag.system.whole_files import write_atomically

ZONE = "Europe/Berlin"
CHANGES = (datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC))
"""The days on which its clocks change: 02:30 is missing on the first, and comes twice on the other."""


def retention(home: Path, _run: Path) -> bool:
    """Prune an iteration that is too old; True once nothing of it is known or there."""
    write_atomically(home / FILE_NAME, b"[retention]\nkeep_days = 1\nkeep_newest = 0\n")
    with open_instance(home) as instance:
        traceviz = TracevizHome(home=str(home))
        pruned = dg.materialize([retention_asset], instance=instance, resources={"traceviz": traceviz}).success
        known = instance.get_dynamic_partitions("iteration")
    return pruned and not known and not list(all_registered(home)) and not list((home / "lake").rglob("*.parquet"))


def newer_code(home: Path, run: Path) -> bool:
    """Make all tables of a home anew, as the first analysis after an update of the program does."""
    for module in (made, staleness, memory):
        module.CODE_VERSION += "-next"
    from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
    from traceviz_dag.pipeline.discovery import inputs_below

    [result] = analyse(AnalysisSettings(home, workers=2), inputs_below([run]))
    return result.aggregated and not result.failures


def catalogue(home: Path, _run: Path) -> bool:
    """Build the catalogue anew; a query then answers."""
    lake = open_lake(home)
    lake.catalogue_path.unlink(missing_ok=True)
    lake.refresh_catalogue()
    return lake.query("SELECT count(*) FROM kernels").num_rows == 1


def schedules(home: Path, _run: Path) -> bool:
    """Dagster's scheduler over both changes of daylight saving time; True where each day has one run of each schedule.

    What it asks for is queued, and never started. A file in the home holds the time, so that a killed one goes on.
    """
    home.mkdir(parents=True, exist_ok=True)
    at = 'cron = "30 2 * * *"'
    text = f'[[watch]]\npath = "{home}"\n[nightly]\ntime_zone = "{ZONE}"\n{at}\n[retention]\n{at}\n'
    write_atomically(home / FILE_NAME, text.encode())
    os.environ["TRACEVIZ_HOME"] = str(home)
    origin = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="traceviz_dag.definitions"), "traceviz_dag")
    logger, clock = logging.getLogger("schedules"), home / "clock"
    with (
        open_instance(home) as instance,
        create_test_daemon_workspace_context(InProcessWorkspaceLoadTarget(origin), instance) as workspace,
    ):
        reached = float(clock.read_text()) if clock.exists() else 0.0
        for change in CHANGES:
            for minutes in range(-24 * 60, 48 * 60, 20):
                now = change + timedelta(minutes=minutes)
                if now.timestamp() > reached:
                    with freeze_time(now):
                        for _ in launch_scheduled_runs(workspace, logger, now, {}):
                            pass
                    write_atomically(clock, str(now.timestamp()).encode())
        asked = Counter(_days_of_runs(instance))
    days = {(change + timedelta(days=one)).date() for change in CHANGES for one in range(2)}
    wanted = {(name, day): 1 for name in ("nightly", "keep_house") for day in days}
    found = {one: number for one, number in asked.items() if one[1] in days}
    return found == wanted


def _days_of_runs(instance: dg.DagsterInstance) -> list[tuple[str, object]]:
    """Schedule and day, by the clocks of its zone, of each run that was asked for."""
    found = []
    for run in instance.get_runs():
        at = datetime.fromisoformat(run.tags[SCHEDULED_EXECUTION_TIME_TAG])
        found.append((run.tags[SCHEDULE_NAME_TAG], at.astimezone(ZoneInfo(ZONE)).date()))
    return found


def daemon(home: Path, run: Path) -> bool:
    """A daemon over the folder of a run, until all is computed; True where nothing was computed twice.

    What is under way when all are killed may be. Temporary files of Dagster are kept apart, as by ``traceviz dev``.
    """
    temporary = home / "dagster/tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    one = Daemon(home, run.parent, storage=None)
    lake, rules, quiet = open_lake(home), load_rules(None).digest, 0
    one.start()
    try:
        with open_instance(home) as instance:
            while quiet < 2:
                time.sleep(1)
                every = list(all_registered(home))
                done = bool(every) and not is_busy(instance)
                done = done and all(pending_stage(lake, inputs, rules) is None for inputs in every)
                quiet = quiet + 1 if done else 0
            for inputs in all_registered(home):
                lake.settle(inputs.run, inputs.iteration)
            return max(news(instance, 0).values()) <= 1 + _tried_again(instance)
    finally:
        one.kill()


def _tried_again(instance: dg.DagsterInstance) -> int:
    """Runs that were under way when all were killed, and were tried again."""
    return sum(run.parent_run_id is not None for run in instance.get_runs())


def is_between_tick_and_run(home: Path) -> bool:
    """Whether a tick of the daemon is under way, or a run was asked for that nobody has started."""
    asked = (
        ("schedules/schedules.db", "SELECT count(*) FROM job_ticks WHERE status = 'STARTED'"),
        ("history/runs.db", "SELECT count(*) FROM runs WHERE status IN ('QUEUED', 'NOT_STARTED', 'STARTING')"),
    )
    for name, sql in asked:
        path = home / "dagster" / name
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            if connection.execute(sql).fetchone()[0]:
                return True
    return False


PROGRAMS = {one.__name__: one for one in (retention, newer_code, catalogue, schedules, daemon)}

if __name__ == "__main__":
    raise SystemExit(0 if PROGRAMS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3])) else 1)
