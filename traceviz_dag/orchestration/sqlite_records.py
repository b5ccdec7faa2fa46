"""Dagster's records in SQLite without work that each call repeats.

For every event that it stores or reads, Dagster makes a new SQLAlchemy engine, which compiles every statement anew; for
every run, which has a database of its own, it loads the code of all its migrations, only to write down the name of the
last one. Both took a sixth of the time of a small analysis. Here a process keeps the engines that it used last, which
hold no connection, and reads the migrations once. What is written is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import import_module

from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from dagster._core.storage import sql
from sqlalchemy import Connection, Engine, NullPool, Pool, create_engine

_KEPT_ENGINES = 16
"""Those of runs, schedules and all events, and of the runs that a process looks at by turns."""

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
    return create_engine(address, poolclass=NullPool, connect_args=dict(arguments))


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
