"""An export of a simulated job in the columns that nsys itself writes, its iteration several times over.

Simulated exports hold what traceviz reads; those of nsys have twice the columns, so that a gigabyte holds fewer rows.

Run: ``python benchmarks/nsys_columns.py job/node0.sqlite PUBLIC.sqlite OUT.sqlite --times 4``. Columns that the
simulated export lacks hold what one row of the public one holds.
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path

_LARGE = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
_PAUSE_NS = 1_000_000


def main() -> None:
    """Write the export."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("simulated", "public", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--times", type=int, default=4)
    given = parser.parse_args()
    given.out.unlink(missing_ok=True)
    with closing(sqlite3.connect(given.out, isolation_level=None)) as made:
        made.execute("PRAGMA journal_mode = off")
        made.execute("PRAGMA synchronous = off")
        made.execute("ATTACH ? AS simulated", (str(given.simulated),))
        made.execute("ATTACH ? AS public", (str(given.public),))
        ((first, last),) = made.execute("SELECT min(start), max(end) FROM simulated.NVTX_EVENTS")
        ((ids,),) = made.execute("SELECT max(correlationId) + 1 FROM simulated.CUPTI_ACTIVITY_KIND_RUNTIME")
        for (name,) in made.execute("SELECT name FROM simulated.sqlite_master WHERE type = 'table'").fetchall():
            model = "public" if name in _LARGE else "simulated"
            ((text,),) = made.execute(f"SELECT sql FROM {model}.sqlite_master WHERE name = ?", (name,))
            made.execute(text)
            for number in range(given.times if name in _LARGE else 1):
                shift = number * (last - first + _PAUSE_NS)
                made.execute(f'INSERT INTO main."{name}" {_rows(made, name, shift, number * ids)}')
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.0f} MB")


def _rows(made: sqlite3.Connection, table: str, shift_ns: int, shift_ids: int) -> str:
    """The rows of a table of the simulated export, in the columns of the table that is made."""
    there = {row[1] for row in made.execute(f'PRAGMA simulated.table_info("{table}")')}
    parts = []
    for _, column, *_ in made.execute(f'PRAGMA main.table_info("{table}")').fetchall():
        if column in there:
            shift = {"start": shift_ns, "end": shift_ns, "correlationId": shift_ids}.get(column, 0)
            parts.append(f'"{column}"' + (f" + {shift}" if shift and table in _LARGE else ""))
        else:
            parts.append(f'(SELECT "{column}" FROM public."{table}" LIMIT 1)')
    repeated = " WHERE eventType != 75" if table == "NVTX_EVENTS" and shift_ns else ""
    return f'SELECT {", ".join(parts)} FROM simulated."{table}"{repeated}'


if __name__ == "__main__":
    main()
