"""Connections to DuckDB that print nothing, and queries that a signal ends."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from threading import TIMEOUT_MAX, Lock, current_thread, main_thread
from typing import TYPE_CHECKING, TypeVar

from traceviz_dag.errors import UsageError
from traceviz_dag.system.memory_limit import THREADS, address_space

if TYPE_CHECKING:
    import duckdb

# traceviz_dag.lake.read_only.fetch asks for that copy where rows are few.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning)

Rows = TypeVar("Rows")

_NAMES = count(1)
_ATTACHING = Lock()
_INTERRUPTED = "Query interrupted"
_INTERRUPTED_READING = "failed: KeyboardInterrupt: "
"""How DuckDB's message ends where a signal came while it asked Python for the rows of an Arrow table."""

_SHARE = 4
"""A limit of the address space, divided by it, is what DuckDB may take: the rest is for code, Arrow and Python."""


def connect_in_memory() -> duckdb.DuckDBPyConnection:
    """A connection to a new database in memory.

    DuckDB's own shows a progress bar on standard output once a query takes two seconds, also where that is no terminal:
    in the middle of JSON.
    """
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    # Its own defaults follow the machine and control groups, neither this limit nor the environment.
    limit = address_space()
    if limit is not None:
        connection.execute(f"SET memory_limit = '{limit // _SHARE}B'")
    threads = "1" if limit is not None else os.environ.get(THREADS, "")
    if threads.isdecimal() and int(threads):
        connection.execute(f"SET threads = {int(threads)}")
    return connection


@contextmanager
def keeping_interrupts() -> Iterator[None]:
    """Raise a KeyboardInterrupt where a signal ended a query: its handler raised one, and DuckDB another error instead.

    Without, an interrupt would be taken for a fault of the query, and the program would go on.
    """
    import duckdb

    try:
        yield
    except (RuntimeError, duckdb.InvalidInputException) as error:
        message = str(error)
        if message != _INTERRUPTED and not message.endswith(_INTERRUPTED_READING):
            raise
        raise KeyboardInterrupt from None


def interruptible(connection: duckdb.DuckDBPyConnection, ask: Callable[[], Rows], seconds: float | None = None) -> Rows:
    """What a function gives that asks a connection. An interrupt ends it at once: DuckDB may wait for threads of its
    own where it notices none, so it is asked in another thread than the one that gets signals.

    Args:
        seconds: how long it may take; None does not stop it.

    Raises:
        UsageError: it took longer.
    """
    if seconds is None and current_thread() is not main_thread():
        return ask()
    from concurrent.futures import ThreadPoolExecutor, wait

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        try:
            if wait([asked], None if seconds is None else min(seconds, TIMEOUT_MAX)).not_done:
                raise UsageError(f"the query took longer than {seconds:g} s and was stopped; ask for less")
            return asked.result()
        finally:
            # Between two statements there is nothing to interrupt.
            while not asked.done():
                connection.interrupt()
                wait([asked], 0.05)


@contextmanager
def scratch_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to an empty database in memory that is gone afterwards, for queries of our own.

    A new instance of DuckDB takes 15 ms of processor time, so the process keeps one for all of these; whoever changes
    settings, or runs what others wrote, takes ``connect_in_memory``.
    """

    name = f"scratch_{next(_NAMES)}"
    connection = _kept().cursor()
    try:
        with keeping_interrupts():
            connection.execute(f"ATTACH ':memory:' AS {name}; USE {name}")
            yield connection
            connection.execute(f"USE memory; DETACH {name}")
    except BaseException:
        # After an error inside DuckDB an instance may answer nothing more: the next caller gets a new one.
        _kept.cache_clear()
        raise
    finally:
        connection.close()


@contextmanager
def attaching_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """As ``scratch_database``, for who attaches a file, and detaches it: one at a time, as a file and a name can only
    be attached once.
    """
    with _ATTACHING, scratch_database() as connection:
        yield connection


@cache
def _kept() -> duckdb.DuckDBPyConnection:
    connection = connect_in_memory()
    # A file of the lake is replaced under the same name: none of its bytes may outlive a query.
    connection.execute("SET enable_external_file_cache = false")
    return connection
