"""Ranks whose GPU is slow: the same kernels take longer than on the peers of their stage. This needs no clock.

Ranks of one stage run the same kernels. A kernel name in a phase of a step is one item of work; it is compared where
every rank of the stage ran it equally often. A slow GPU is slower in nearly all items; uneven data or experts in some.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.intervals import number_groups
from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.tables import RANK_SPEEDS

SLOWER, SLOWER_THAN_FEW = 0.03, 0.05
"""How much longer than the median of its peers a rank takes for an item to count: the second one where it has fewer
than three peers, whose spread cannot be told."""

SPREADS = 5.0
"""And by how many median absolute deviations of the stage's ranks."""

LEAST_ITEMS = 0.8
"""Share of the items in which a slow rank is slower."""

_FEW_PEERS = 3


class SlowRank(TypedDict):
    """A row of the table ``rank_speeds``."""

    rank: int
    stage: int | None
    peers: int
    items: int
    slower_items: float | None
    ratio: float | None
    more_ns: int | None
    slow: bool | None


def slow_ranks(work: pa.Table) -> pa.Table:
    """Compare each rank's computation with that of the peers of its stage, item by item.

    Args:
        work: a row per rank × item (``lake.summaries.computation_by_kernel``): rank, stage, step, phase, name, kernels,
            time_ns. Ranks without a stage are peers of each other.

    Returns:
        The table ``rank_speeds``, the slowest first.
    """
    rank, stage = optional_integers(work, "rank"), optional_integers(work, "stage")
    everyone, place = np.unique(rank, return_inverse=True)
    stage_of = np.zeros(len(everyone), dtype=np.int64)
    stage_of[place] = stage
    items, slower = np.zeros(len(everyone), dtype=np.int64), np.zeros(len(everyone), dtype=np.int64)
    own, usual = np.zeros(len(everyone)), np.zeros(len(everyone))
    time = optional_integers(work, "time_ns").astype(np.float64)
    for rows in _comparable(work, np.bincount(number_groups(stage_of)[1])[number_groups(stage_of)[1]][place]):
        here, mine = place[rows], time[rows]
        median = _median_of_others(mine)
        spread = float(np.median(np.abs(mine - np.median(mine)))) if len(mine) > _FEW_PEERS else 0.0
        least = SLOWER if len(mine) > _FEW_PEERS else SLOWER_THAN_FEW
        items[here] += 1
        slower[here] += (mine > (1 + least) * median) & (mine - median > SPREADS * spread)
        own[here] += mine
        usual[here] += median
    return _table(everyone, stage_of, items, slower, own, usual)


def slow_statement(row: SlowRank) -> str:
    """What is said of a slow rank, from its row of ``slow_ranks``.

    Raises:
        ValueError: the rank has no peer to be compared with.
    """
    ratio, more_ns = row["ratio"], row["more_ns"]
    if ratio is None or more_ns is None:
        raise ValueError(f"rank {row['rank']} has no peer to be compared with")
    where = "" if row["stage"] is None else f" of stage {row['stage']}"
    peers = f"{row['peers']} peer{'s' if row['peers'] > 1 else ''}"
    return (
        f"rank {row['rank']} computes slowly: the same kernels take {ratio:.2f} times as long as on the median "
        f"of its {peers}{where}, {more_ns / 1e6:,.3f} ms more; no clock is needed for this, and it "
        "is not what mending it would save"
    )


def _comparable(work: pa.Table, ranks_of_stage: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """The rows of each item that all ranks of its stage, two or more, ran equally often."""
    columns = [optional_integers(work, "stage"), optional_integers(work, "step")]
    columns += [codes(work, name)[0].astype(np.int64) for name in ("phase", "name")]
    kernels = optional_integers(work, "kernels")
    if not len(kernels):
        return
    _, item = number_groups(*columns)
    order = np.argsort(item, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(item[order])) + 1):
        if 1 < len(rows) == ranks_of_stage[rows[0]] and (kernels[rows] == kernels[rows[0]]).all():
            yield rows


def _median_of_others(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """For each value the median of all the others."""
    order = np.argsort(values, kind="stable")
    ordered, position = values[order], np.empty(len(values), dtype=np.int64)
    position[order] = np.arange(len(values))
    others = len(values) - 1
    low, high = (others - 1) // 2, others // 2
    return np.asarray((ordered[low + (low >= position)] + ordered[high + (high >= position)]) / 2)


def _table(
    ranks: npt.NDArray[np.int64],
    stage: npt.NDArray[np.int64],
    items: npt.NDArray[np.int64],
    slower: npt.NDArray[np.int64],
    own: npt.NDArray[np.float64],
    usual: npt.NDArray[np.float64],
) -> pa.Table:
    unknown = items == 0
    share, ratio = slower / np.maximum(items, 1), own / np.maximum(usual, 1.0)
    size = np.bincount(number_groups(stage)[1])[number_groups(stage)[1]] if len(ranks) else items
    least = np.where(size > _FEW_PEERS, SLOWER, SLOWER_THAN_FEW)
    table = pa.Table.from_arrays(
        [
            pa.array(ranks),
            pa.array(stage, mask=stage < 0),
            pa.array(size - 1),
            pa.array(items),
            pa.array(share, mask=unknown),
            pa.array(ratio, mask=unknown),
            pa.array(np.rint(own - usual).astype(np.int64), mask=unknown),
            pa.array((share >= LEAST_ITEMS) & (ratio >= 1 + least), mask=unknown),
        ],
        schema=RANK_SPEEDS.schema,
    )
    return table.sort_by([("ratio", "descending"), ("rank", "ascending")])
