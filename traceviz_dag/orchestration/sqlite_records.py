"""Dagster's records in SQLite without work that each call repeats.

For every event that it stores or reads, Dagster makes a new SQLAlchemy engine, which compiles every statement anew; for
every run, which has a database of its own, it loads the code of all its migrations, only to write down the name of the
last one. Both took a sixth of the time of a small analysis. Here a process keeps the engines that it used last, which
hold no connection, and reads the migrations once.

For each of ten events a rank it waited twice until the disk had them, too. Here the disk is not waited for: after a
power cut the records are whole, and the last of them may be missing, so that some tables are made once more. Events
that come together are written together. What is written is the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from itertools import groupby

from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from dagster._core.events import ASSET_EVENTS, DagsterEventBatchMetadata
from dagster._core.events.log import EventLogEntry
from dagster._core.instance.methods.event_methods import EventMethods
from dagster._core.storage import sql
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.sqlalchemy_compat import db_result
from sqlalchemy import Connection, Engine, NullPool, Pool, create_engine
from sqlalchemy.event import listen

_KEPT_ENGINES = 16
"""Those of runs, schedules and all events, and of the runs that a process looks at by turns."""

_handle_one = EventMethods.handle_new_event

_PLACE = "dagster._core.storage"
_IN_FILES = (
    "event_log.sqlite.sqlite_event_log",
    "runs.sqlite.sqlite_run_storage",
    "schedules.sqlite.sqlite_schedule_storage",
)
_IN_MEMORY = ("event_log.in_memory", "runs.in_memory")


def spare_repetition() -> None:
    """Have Dagster's SQLite storages of this process use what is kept here; a second call changes nothing."""
    for name in _IN_FILES:
        _replace(name, create_engine=_kept_engine, check_alembic_revision=_revisions, stamp_alembic_rev=_stamp)
    for name in _IN_MEMORY:
        _replace(name, stamp_alembic_rev=_stamp)
    EventMethods.handle_new_event = _handle  # type: ignore[method-assign]


def _replace(module: str, **functions: object) -> None:
    vars(import_module(f"{_PLACE}.{module}")).update(functions)


def _kept_engine(address: str, poolclass: type[Pool], connect_args: Mapping[str, int | float] | None = None) -> Engine:
    """The engine of a database, with the arguments that Dagster gives to ``sqlalchemy.create_engine``."""
    if poolclass is not NullPool:
        # It would keep connections, which somebody has to close.
        return create_engine(address, poolclass=poolclass, connect_args=dict(connect_args or {}))
    return _engine(address, tuple(sorted((connect_args or {}).items())))


@lru_cache(_KEPT_ENGINES)
def _engine(address: str, arguments: tuple[tuple[str, int | float], ...]) -> Engine:
    engine = create_engine(address, poolclass=NullPool, connect_args=dict(arguments))
    listen(engine, "connect", _wait_for_no_disk)
    return engine


def _wait_for_no_disk(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA synchronous = NORMAL")


def _handle(
    self: EventMethods, event: EventLogEntry, *, batch_metadata: DagsterEventBatchMetadata | None = None
) -> None:
    """Store an event; those of a batch are stored when its last one comes, all of them or none.

    Dagster's own batches print what kept them from being stored, statement and all, and try again one by one.
    """
    storage = self._event_storage_impl
    if batch_metadata is None or not isinstance(storage, SqliteEventLogStorage):
        _handle_one(self, event, batch_metadata=batch_metadata)
        return
    waiting = self._event_buffer_impl
    if self.should_store_event(event):
        waiting[batch_metadata.id].append(event)
    if batch_metadata.is_end:
        events = waiting.pop(batch_metadata.id, [])
        _store_together(storage, events)
        for each in events:
            for subscriber in self._subscribers_impl[each.run_id]:
                subscriber(each)


def _store_together(storage: SqliteEventLogStorage, events: Sequence[EventLogEntry]) -> None:
    """As the storage's ``store_event`` for each, with one transaction a database for events of assets."""
    for of_asset, some in groupby(events, _is_of_asset):
        if of_asset:
            _store_of_assets(storage, list(some))
        else:
            for one in some:
                storage.store_event(one)


def _is_of_asset(entry: EventLogEntry) -> bool:
    return entry.is_dagster_event and entry.dagster_event_type in ASSET_EVENTS


def _store_of_assets(storage: SqliteEventLogStorage, events: Sequence[EventLogEntry]) -> None:
    for run_id, own in groupby(events, lambda entry: entry.run_id):
        with storage.run_connection(run_id) as connection:
            _insert(storage, connection, own)
    with storage.index_transaction() as connection:
        numbers = _insert(storage, connection, events)
        storage._store_asset_event_tags(connection, events, numbers)
        for entry, number in zip(events, numbers, strict=True):
            storage._store_asset_event(connection, entry, number)


def _insert(storage: SqliteEventLogStorage, connection: Connection, events: Iterable[EventLogEntry]) -> list[int]:
    numbers = []
    for entry in events:
        with db_result(connection, storage.prepare_insert_event(entry)) as result:
            numbers.append(result.inserted_primary_key[0])
    return numbers


def _revisions(config: Config, connection: Connection) -> sql.AlembicVersion:
    """The revision of a database, and the newest there is."""
    with sql._alembic_lock:
        return MigrationContext.configure(connection).get_current_revision(), _newest(_location(config))


def _stamp(config: Config, connection: Connection, rev: str = "head") -> None:
    """Write down that a database is of a revision."""
    with sql._alembic_lock:
        MigrationContext.configure(connection).stamp(_migrations(_location(config)), rev)


def _location(config: Config) -> str:
    """Of the migrations of all storages: Dagster has one folder."""
    return config.get_main_option("script_location", sql.ALEMBIC_SCRIPTS_LOCATION)


@cache
def _newest(location: str) -> str | tuple[str, ...] | None:
    return _migrations(location).as_revision_number("head")


@cache
def _migrations(location: str) -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", location)
    return ScriptDirectory.from_config(config)
