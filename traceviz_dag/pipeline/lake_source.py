"""The tables of one iteration as everything that shows them takes them; no drawing library is imported for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from traceviz_dag.lake.lake import Lake


@dataclass(frozen=True, slots=True)
class LakeSource:
    """The tables of one iteration in the lake, as pages, figures and commands take them."""

    lake: Lake
    run: str
    iteration: int

    def table(self, name: str, columns: Sequence[str], rank: int | None = None) -> pa.Table:
        """The chosen columns; no rows where the partition was not written."""
        return self.lake.rows(name, self.run, self.iteration, columns, rank)
