"""Dagster's databases are as it makes them, also where this process does not repeat what it did for an earlier one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest
from alembic.script import ScriptDirectory
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.sql import get_alembic_config

from traceviz_dag.orchestration.instance import open_instance


@dg.job
def nothing() -> None:
    pass


def test_the_migrations_are_read_once_and_each_database_is_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = ScriptDirectory.from_config(get_alembic_config(sqlite_event_log.__file__)).get_current_head()
    readings = []
    load = ScriptDirectory._load_revisions

    def loaded(self: ScriptDirectory):
        readings.append(self)
        return load(self)

    monkeypatch.setattr(ScriptDirectory, "_load_revisions", loaded)
    for name in ("one", "two"):
        with open_instance(tmp_path / name) as instance:
            run = instance.create_run_for_job(nothing)
            instance.report_engine_event("it is looked at", run)
            assert [entry.message for entry in instance.all_logs(run.run_id)] == ["it is looked at"]
    assert len(readings) <= 1
    databases = sorted(tmp_path.rglob("*.db"))
    assert len(databases) == 2 * 4, "runs, schedules, all events, and those of the run"
    for path in databases:
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(newest,)], path
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",), path
