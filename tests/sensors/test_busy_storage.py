"""A storage that somebody else writes to is asked again within the tick, a bounded number of times."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.exc import OperationalError

from sensors.busy_storage import once_free


@pytest.fixture
def storage(tmp_path: Path):
    """A database and a connection that holds it."""
    path = tmp_path / "runs.db"
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0.01})
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE runs (id INTEGER)"))
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    yield engine, holder
    holder.close()


def count(engine: sqlalchemy.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sqlalchemy.text("SELECT count(*) FROM runs")).scalar_one())


def test_a_lock_that_is_let_go_within_the_tick_is_not_seen(storage):
    engine, holder = storage
    with pytest.raises(OperationalError, match="database is locked"):
        count(engine)
    threading.Timer(0.4, lambda: holder.execute("COMMIT")).start()
    assert once_free(lambda: count(engine)) == 0


def test_a_lock_that_stays_ends_the_tick_after_four_looks(storage):
    engine, _ = storage
    pauses: list[float] = []
    with pytest.raises(OperationalError, match="database is locked"):
        once_free(lambda: count(engine), pauses.append)
    assert pauses == [0.25, 0.5, 1.0]


def test_other_faults_are_reported_at_once():
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        raise OperationalError("SELECT", None, sqlite3.OperationalError("no such table: runs"))

    with pytest.raises(OperationalError, match="no such table"):
        once_free(look)
    assert len(looks) == 1
