"""Rows of single ranks for who asks rank after rank: those of the next ranks are read along.

Of a thousand ranks each reading by itself would list, compare and open anew, and decode a packed file's row group for
each of the ranks in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from traceviz_dag.arrays import Int64
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.write import ROWS_PER_GROUP

_GROWTH = 4
_ALL = 1 << 62
"""Behind every rank."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """The rows of some ranks, one rank after the other.

    Attributes:
        ranks: from the first one to the last, whether they have a part or not. parts: how many have.
        of_row: the rank of each row.
    """

    ranks: range
    parts: int
    of_row: Int64
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Rows of tables by rank of one iteration, as they were when they were first read.

    The text columns of what it gives may have words in their dictionaries that the rank itself does not use.
    """

    lake: Lake
    run: str
    iteration: int
    _batches: dict[tuple[str, tuple[str, ...]], _Batch] = field(default_factory=dict)
    """Table and columns → the batch that was read last."""
    _parts: dict[str, dict[int, Partition]] = field(default_factory=dict)
    """Table → rank → its part, as they were listed once."""

    def rows(self, name: str, columns: Sequence[str], rank: int) -> pa.Table:
        """The rows of a rank, as :meth:`Lake.rows` gives them; the next ranks are read along, up to some rows.

        Raises:
            UsageError, BadInputError: as there.
        """
        key = (name, tuple(columns))
        batch = self._batches.get(key)
        if batch is None or rank not in batch.ranks:
            try:
                batch = self._batches[key] = self._read(name, columns, rank, batch)
            except BadInputError:
                # Another rank's file may be damaged, which is no reason to refuse this one.
                return self.lake.rows(name, self.run, self.iteration, columns, rank)
        if rank not in self._parts[name]:
            # It may have been written since.
            return self.lake.rows(name, self.run, self.iteration, columns, rank)
        first, last = np.searchsorted(batch.of_row, [rank, rank + 1])
        return batch.rows.slice(first, last - first)

    def _read(self, name: str, columns: Sequence[str], rank: int, before: _Batch | None) -> _Batch:
        """As many ranks as have about a row group's rows together, if they are as those before; at first one alone."""
        number = 1
        if before is not None:
            # Step by step: those before may have had no rows by chance.
            number = max(before.parts * min(ROWS_PER_GROUP // max(before.rows.num_rows, 1), _GROWTH), 1)
        if name not in self._parts:
            parts = self.lake.partitions(name, self.run, self.iteration, with_stale=True)
            self._parts[name] = {one.rank: one for one in parts if one.rank is not None}
        following = [one for number, one in self._parts[name].items() if number >= rank]
        chosen, rest = following[:number], following[number:]
        read = self.lake.rows_of(name, chosen, [*dict.fromkeys(["rank", *columns])])
        ranks = range(rank, rest[0].rank if rest and rest[0].rank is not None else _ALL)
        return _Batch(ranks, len(chosen), np.asarray(read["rank"].to_numpy(), np.int64), read.select(columns))
