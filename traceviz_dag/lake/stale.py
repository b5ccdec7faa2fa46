"""Which tables of an iteration are kept although they could not be made anew: what table ``stale_tables`` says.

Whoever lists partitions, or asks an iteration by a named query, does not get the stale ones of its ranks; who names a
rank, or asks by SQL, does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.conversion import DAMAGED
from traceviz_dag.lake.partitions import FILE_NAME, Partition, fault_and_remedy
from traceviz_dag.lake.recorded import check
from traceviz_dag.tables import MEMORY_TABLES, STALE_TABLES, Table
from traceviz_dag.vocabulary import StaleCause, StaleStage


@dataclass(frozen=True, slots=True)
class Stale:
    """A row of ``stale_tables``; see there.

    Attributes:
        stage: a ``StaleStage``, or the name of another package's table.
        cause: a ``StaleCause``.
    """

    rank: int | None
    stage: str
    cause: str
    reason: str

    @property
    def is_counted(self) -> bool:
        """Whether measures count the tables all the same: nothing newer is known than what they were made of."""
        return self.cause == StaleCause.GONE

    @property
    def words(self) -> str:
        """Whose tables, in words."""
        if self.rank is not None:
            return f"rank {self.rank}" if self.stage == StaleStage.RANKS else f"{self.stage} of rank {self.rank}"
        return "tables across ranks" if self.stage == StaleStage.ITERATIONS else self.stage

    @property
    def line(self) -> str:
        """Whose tables are kept though they are stale, and why."""
        if self.rank is not None:
            return f"{self.words} is stale, and the tables that it had are kept: {self.reason}"
        return f"{self.words} not made anew: {self.reason}"

    @property
    def place(self) -> tuple[str, int]:
        """What there is one row of: a stage, and a rank or -1."""
        return (self.stage, -1 if self.rank is None else self.rank)


def read_stale(lake_folder: Path, run: str, iteration: int) -> tuple[Stale, ...]:
    """What is stale of an iteration.

    Raises:
        BadInputError: the file is damaged, or is not the one that was written.
    """
    partition = Partition(run, iteration)
    path = partition.folder(lake_folder / STALE_TABLES.name) / FILE_NAME
    if not path.is_file():
        return ()
    check(lake_folder, STALE_TABLES, [partition])
    try:
        rows = pq.ParquetFile(path).read(STALE_TABLES.schema.names).to_pylist()
    except FileNotFoundError:
        return ()
    except DAMAGED as error:
        raise BadInputError(path, *fault_and_remedy(error)) from error
    return tuple(Stale(**row) for row in rows)


def as_table(rows: Iterable[Stale]) -> pa.Table:
    """Rows as table ``stale_tables`` has them, in its order."""
    return pa.Table.from_pylist([asdict(row) for row in sorted(rows, key=lambda row: row.place)], STALE_TABLES.schema)


def hidden_ranks(table: Table, marks: Iterable[Stale]) -> set[int]:
    """Ranks whose partition of a table no measure counts, by the marks of its iteration."""
    if "rank" not in table.partitioned_by:
        return set()
    stage = StaleStage.MEMORY if table.name in MEMORY_TABLES else StaleStage.RANKS
    return {row.rank for row in marks if row.stage == stage and row.rank is not None and not row.is_counted}
