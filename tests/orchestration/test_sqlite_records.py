"""Dagster's databases are as it makes them, also where this process does not repeat what it did for an earlier one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import dagster as dg
import pytest
from alembic.script import ScriptDirectory
from dagster._core.instance.utils import RUNLESS_RUN_ID
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.sql import get_alembic_config
from sqlalchemy.exc import OperationalError

from assets.conventions import DATA_VERSION_TAG
from assets.recorded_together import report_together
from traceviz_dag.errors import BadInputError
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


def _report_each(instance: dg.DagsterInstance, events: list[dg.AssetMaterialization | dg.AssetObservation]) -> None:
    for event in events:
        instance.report_runless_asset_event(event)


def test_events_that_are_reported_together_are_recorded_as_those_reported_one_by_one(tmp_path: Path) -> None:
    made = [
        *(dg.AssetMaterialization("kernels", partition=str(n), tags={DATA_VERSION_TAG: str(n)}) for n in range(5)),
        *(dg.AssetObservation("raw_traces", partition=str(n), tags={DATA_VERSION_TAG: "-"}) for n in range(5)),
        dg.AssetMaterialization("topology", metadata={"rows": 3}),
    ]
    recorded = {}
    for name, report in (("each", _report_each), ("together", report_together)):
        with open_instance(tmp_path / name) as instance:
            report(instance, made)
            latest = instance.get_latest_materialization_event(dg.AssetKey("kernels"))
            assert latest is not None and latest.asset_materialization == made[4]
        recorded[name] = {
            path.name: [_rows(path, query) for query in (_EVENTS, _TAGS, _ASSETS)]
            for path in (tmp_path / name).rglob("*.db")
            if path.name in ("index.db", f"{RUNLESS_RUN_ID}.db")
        }
    assert len(recorded["each"]) == 2, "the events of all runs, and of none"
    assert recorded["together"] == recorded["each"]
    assert len(recorded["together"]["index.db"][0]) == len(made)


def test_events_that_cannot_be_recorded_together_are_told_once_and_none_is_there(tmp_path, monkeypatch, capfd):
    full = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))
    monkeypatch.setattr(SqliteEventLogStorage, "_store_asset_event_tags", Mock(side_effect=full))
    made = [dg.AssetMaterialization("kernels", partition=str(n)) for n in range(3)]
    with pytest.raises(BadInputError, match="disk is full"), open_instance(tmp_path) as instance:
        report_together(instance, made)
    assert capfd.readouterr() == ("", "")
    assert _rows(next(tmp_path.rglob("index.db")), _EVENTS) == []


_EVENTS = "SELECT id, dagster_event_type, asset_key, partition FROM event_logs ORDER BY id"
_TAGS = "SELECT event_id, asset_key, key, value FROM asset_event_tags ORDER BY event_id, key"
_ASSETS = "SELECT asset_key, last_materialization IS NULL, last_run_id FROM asset_keys ORDER BY asset_key"


def _rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()
