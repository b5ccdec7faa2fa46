"""Marks tables as stale, and unmarks them once they are made anew: the one place that writes ``stale_tables``."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.stale import Stale, as_table
from traceviz_dag.system.whole_files import exclusive_lock
from traceviz_dag.tables import STALE_TABLES

_LOCK = ".stale_tables.lock"


def mark_stale(lake: Lake, run: str, iteration: int, found: Iterable[Stale]) -> None:
    """Record what is stale now, instead of what was recorded of the same stage and rank."""
    new = {row.place: row for row in found}
    if new:
        _change(lake, run, iteration, new, ())


def unmark(lake: Lake, run: str, iteration: int, stage: str, ranks: Collection[int] | None = None) -> None:
    """Take away the marks of a stage, of some of its ranks or of all: the tables are what they should be."""
    rows = lake.stale(run, iteration)
    gone = [row.place for row in rows if row.stage == stage and (ranks is None or row.rank in ranks)]
    if gone:
        _change(lake, run, iteration, {}, gone)


def forget_if_damaged(lake: Lake, run: str, iteration: int) -> None:
    """Delete marks that cannot be read; an analysis, which is about to begin, makes them anew."""
    try:
        lake.stale(run, iteration)
    except BadInputError:
        lake.delete(STALE_TABLES.name, run=run, iteration=iteration)


def _change(
    lake: Lake, run: str, iteration: int, new: dict[tuple[str, int], Stale], gone: Collection[tuple[str, int]]
) -> None:
    with exclusive_lock(lake.home / _LOCK):
        before = {row.place: row for row in lake.stale(run, iteration)}
        after = {place: row for place, row in (before | new).items() if place not in gone}
        if after == before:
            return
        if after:
            lake.write(STALE_TABLES.name, as_table(after.values()), run=run, iteration=iteration)
        else:
            lake.delete(STALE_TABLES.name, run=run, iteration=iteration)
