"""The tables of one iteration as everything that shows them takes them; no drawing library is imported for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from traceviz_dag.lake.across_ranks_views import VIEWS
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.read_ahead import ReadAhead


@dataclass(frozen=True, slots=True)
class LakeSource:
    """The tables of one iteration in the lake, as pages, figures and commands take them.

    Attributes:
        ahead: for what is asked rank after rank of all ranks; None reads each rank as it is now.
    """

    lake: Lake
    run: str
    iteration: int
    ahead: ReadAhead | None = None

    def table(self, name: str, columns: Sequence[str], rank: int | None = None) -> pa.Table:
        """The chosen columns of a table or view; no rows where the partition was not written."""
        for view in VIEWS:
            if view.name == name:
                sql = f"SELECT {', '.join(columns)} FROM ({view.sql}) WHERE run = $run AND iteration = $iteration"
                of_rank = "" if rank is None else f" AND rank = {int(rank)}"
                return self.lake.query_iteration(f"{sql}{of_rank}", run=self.run, iteration=self.iteration)
        if self.ahead is not None and rank is not None:
            return self.ahead.rows(name, columns, rank)
        return self.lake.rows(name, self.run, self.iteration, columns, rank)
