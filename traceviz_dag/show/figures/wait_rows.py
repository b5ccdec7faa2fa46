"""Which ranks share a row of the wait map: of many ranks, those of a stage with similar waits are one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.matching.communications import labels, optional_integers
from traceviz_dag.arrays import Float64, Int64

MOST_ROWS = 64
"""From so many ranks on, similar ranks share a row; the map never has many more rows than these."""

ALIKE = 0.05
"""Ranks of a stage wait alike where no dimension's sum is further from the stage's median than this share of how long
its median rank waits in all."""

_SPREADS = 5.0
"""And than so many median absolute deviations: what spreads evenly is no outlier."""

_MOST_NAMED, _MOST_OUTLIERS = 32, 24

_NO_STAGE = -1


@dataclass(frozen=True, slots=True)
class MapRow:
    """One row of the map.

    Attributes:
        ranks: whose mean it shows, ascending.
        stage: of all of them where they are the similar ranks of a stage.
    """

    ranks: tuple[int, ...]
    stage: int | None = None

    @property
    def label(self) -> str:
        """The row as the map calls it."""
        first, last = self.ranks[0], self.ranks[-1]
        if first == last:
            return f"rank {first}"
        if self.stage is not None:
            return f"stage {self.stage}: {len(self.ranks)} ranks"
        return (
            f"ranks {first} to {last}"
            if last - first + 1 == len(self.ranks)
            else f"{len(self.ranks)} of {first}–{last}"
        )


def map_rows(waits: pa.Table, ranks: Int64, always: Sequence[int]) -> list[MapRow]:
    """The rows of the map, by stage, then by rank; of fewer than ``MOST_ROWS`` ranks each has its own.

    Args:
        waits: as ``judged_waits`` gives them.
        ranks: all ranks, ascending.
        always: ranks that have a row of their own, the worst first; of many the first.
    """
    if len(ranks) < MOST_ROWS:
        return [MapRow((rank,)) for rank in ranks.tolist()]
    totals, stages = _totals(waits, ranks)
    kept = np.isin(ranks, list(dict.fromkeys(always))[:_MOST_NAMED])
    further = _outliers(totals, stages)
    worst = np.argsort(-further, kind="stable")[:_MOST_OUTLIERS]
    kept[worst[further[worst] > 0]] = True
    rows: list[MapRow] = []
    for stage in np.unique(stages).tolist():
        here = stages == stage
        rows += [MapRow((rank,)) for rank in ranks[here & kept].tolist()]
        rows += _shared(ranks[here & ~kept], totals[here & ~kept], stage, len(ranks))
    return sorted(rows, key=lambda row: (_stage_of(row, ranks, stages), row.ranks))


def _stage_of(row: MapRow, ranks: Int64, stages: Int64) -> int:
    return int(stages[np.searchsorted(ranks, row.ranks[0])])


def _shared(ranks: Int64, totals: Float64, stage: int, world: int) -> Iterator[MapRow]:
    """One row of the ranks of a stage with similar waits; else neighbours share rows."""
    if not len(ranks):
        return
    usual = float(np.median(totals.sum(axis=1)))
    alike = float(np.abs(totals - np.median(totals, axis=0)).max(initial=0.0)) <= 2 * ALIKE * usual
    if alike and stage != _NO_STAGE:
        yield MapRow(tuple(ranks.tolist()), stage)
        return
    together = -(-world // MOST_ROWS)
    for first in range(0, len(ranks), together):
        yield MapRow(tuple(ranks[first : first + together].tolist()))


def _outliers(totals: Float64, stages: Int64) -> Float64:
    """By how much of its stage's usual wait each rank is further from it than others are; 0 for what is similar."""
    further = np.zeros(len(stages))
    for stage in np.unique(stages).tolist():
        here = stages == stage
        median = np.median(totals[here], axis=0)
        distance = np.abs(totals[here] - median)
        usual = max(float(np.median(totals[here].sum(axis=1))), 1.0)
        beyond = (distance > ALIKE * usual) & (distance > _SPREADS * np.median(distance, axis=0))
        further[here] = np.where(beyond, distance / usual, 0.0).max(axis=1, initial=0.0)
    return further


def _totals(waits: pa.Table, ranks: Int64) -> tuple[Float64, Int64]:
    """(ranks, dimensions) how long each rank waited, ns, and the stage of each rank."""
    rank, wait, stage = (optional_integers(waits, name) for name in ("rank", "judged_wait_ns", "stage"))
    dimension, names = labels(waits, "dimension")
    place = np.searchsorted(ranks, rank)
    totals = np.zeros((len(ranks), len(names) + 1))
    np.add.at(totals, (place, dimension), wait)
    stages = np.full(len(ranks), _NO_STAGE, dtype=np.int64)
    known = stage >= 0
    stages[place[known]] = stage[known]
    return totals, stages
