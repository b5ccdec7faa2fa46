"""The Dagster instance of a home: set up by one process at a time, repaired where it is damaged."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path

import dagster as dg
from alembic.util import CommandError
from dagster_shared.check import CheckError
from sqlalchemy.exc import DatabaseError, OperationalError
from yaml import YAMLError  # type: ignore[import-untyped]

from traceviz_dag.errors import BadInputError
from traceviz_dag.system.whole_files import exclusive_lock, write_atomically

INSTANCE_FOLDER = "dagster"

_LOCK = ".prepare.lock"
_SETTINGS = "dagster.yaml"
_LAUNCHER = b"module: traceviz_dag.orchestration.run_launcher"
_FORMER_LAUNCHER = _LAUNCHER.replace(b"orchestration.", b"")
"""The line of the settings in homes from before our launcher moved."""

_LONGEST_QUOTE = 300
_EVENT_INDEX = Path("history/runs/index.db")
_FULL = "disk is full"
"""What SQLite says then, where no code comes with it."""

_LEAST_FREE_BYTES = 1 << 20
"""A database of an empty instance takes about half of it."""


@contextmanager
def open_instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """The Dagster instance of a home; its records are in HOME/dagster, where ``traceviz dev`` finds them.

    Programs that start at once on a new home would each create the same tables and leave databases that none of them
    can open: all storages are created under a lock.

    Raises:
        BadInputError: the records or their settings are damaged, or out of reach, also within the block.
        OutputError: the folder cannot be written.
    """
    folder = prepare_instance(home)
    try:
        with exclusive_lock(folder / _LOCK):
            _remove_empty_events(folder)
            instance = _instance_of(folder)
    except (DatabaseError, sqlite3.DatabaseError, CommandError) as error:
        raise _refusal(folder, error) from error
    try:
        with instance:
            yield instance
    except OperationalError as error:
        # The disk is full, say: the tables are no part of these records, and stay.
        raise _refusal(folder, error) from error


def _instance_of(folder: Path) -> dg.DagsterInstance:
    try:
        return dg.DagsterInstance.from_config(str(folder))
    except (YAMLError, dg.DagsterInvalidConfigError, CheckError, TypeError) as error:
        # Dagster looks into some of its settings before it checks them: a number there is a TypeError.
        fault = f"Dagster does not take these settings ({' '.join(str(error).split())[:_LONGEST_QUOTE]})"
        remedy = "fix them, or move the file away: it is made anew"
        raise BadInputError(folder / _SETTINGS, fault, remedy) from error


def _refusal(folder: Path, error: Exception) -> BadInputError:
    """Why Dagster's records cannot be used, and what to do: a full disk, a storage out of reach, or damage."""
    reason = str(error).splitlines()[0]
    if _for_want_of_space(folder, error):
        remedy = "free space there, and run it again: what was computed stays"
        return BadInputError(folder, f"Dagster's records cannot be written ({reason})", remedy)
    if isinstance(error, OperationalError | sqlite3.OperationalError):
        remedy = "check the storage that dagster.yaml names, and run it again"
        return BadInputError(folder, f"Dagster's records cannot be reached ({reason})", remedy)
    remedy = "move the folder away: the tables stay, and are recorded again"
    return BadInputError(folder, f"Dagster's records cannot be opened ({reason})", remedy)


def _for_want_of_space(folder: Path, error: Exception) -> bool:
    """Whether a database says so; on a full disk some of its writes end as another error, or as a half-made table."""
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_FULL or _FULL in str(error) or shutil.disk_usage(folder).free < _LEAST_FREE_BYTES


def prepare_instance(home: Path) -> Path:
    """Create HOME/dagster with its settings where it is not there, bring older ones up to date; returns the folder."""
    folder = home / INSTANCE_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / _SETTINGS
    with exclusive_lock(folder / _LOCK):
        if not settings.exists():
            write_atomically(settings, resources.files(__package__).joinpath("dagster.yaml").read_bytes())
        elif _FORMER_LAUNCHER in (known := settings.read_bytes()):
            write_atomically(settings, known.replace(_FORMER_LAUNCHER, _LAUNCHER))
    return folder


def _remove_empty_events(folder: Path) -> None:
    """Remove the file of events that a killed set-up left without tables: Dagster creates them only where the file is
    missing. Call it under the lock."""
    path = folder / _EVENT_INDEX
    if path.is_file():
        with closing(sqlite3.connect(path)) as connection:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "event_logs" not in tables:
            path.unlink()
