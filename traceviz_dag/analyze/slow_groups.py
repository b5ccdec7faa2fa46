"""Tensor-parallel groups, nodes and stages whose GPUs are slow together: each of their ranks against ranks outside.

A rank that is slow with its neighbours is not found by the median of its peers, of which these may be the half. So all
ranks of a group or a node are compared, item by item, with those of their stage that are not in it, and a stage with
the other stages. What makes all of them slow is theirs: power, cooling, a switch, clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.slow_ranks import comparable
from traceviz_dag.analyze.slow_words import LEAST_ITEMS, SLOWER_THAN_FEW
from traceviz_dag.arrays import Float64, number_groups
from traceviz_dag.spans import spanned
from traceviz_dag.tables import GROUP_SPEEDS

TENSOR_GROUP, NODE, STAGE = "tp", "node", "stage"


class GroupSpeed(TypedDict):
    """A row of the table ``group_speeds``."""

    kind: str
    ranks: str
    members: list[int]
    stage: int | None
    slower_items: float | None
    ratio: float
    more_ns: int
    slow: bool


def slow_groups(
    work: pa.Table, rank_speeds: pa.Table, stage_speeds: pa.Table, sets: Sequence[tuple[str, tuple[int, ...]]]
) -> pa.Table:
    """Compare sets of ranks that may be slow together.

    Args:
        work: as for ``slow_ranks.slow_ranks``. rank_speeds, stage_speeds: the tables.
        sets: kind and ranks of each tensor-parallel group and node, of two ranks or more.

    Returns:
        The table ``group_speeds``: those that could be compared, the slowest first.
    """
    stage_of = dict(zip(rank_speeds["rank"].to_pylist(), rank_speeds["stage"].to_pylist(), strict=True))
    more_work = dict(zip(rank_speeds["rank"].to_pylist(), rank_speeds["work"].to_pylist(), strict=True))
    times = _times(work)
    of_stage: dict[int, tuple[int, ...]] = {}
    for rank, stage in stage_of.items():
        if stage is not None:
            of_stage[stage] = (*of_stage.get(stage, ()), rank)
    rows = [
        _stage_row(row, of_stage, times) for row in stage_speeds.to_pylist() if len(of_stage.get(row["stage"], ())) > 1
    ]
    slow_stages = {row["stage"] for row in rows if row["slow"]}
    for kind, ranks in sets:
        row = _row(kind, [rank for rank in ranks if rank in stage_of], stage_of, more_work, times)
        rows += [row] if row else []
        # A node of whole stages has no peers outside: it is slow where each of its stages is.
        if row is None and kind == NODE:
            stages = {stage_of.get(rank) for rank in ranks}
            held = {rank for stage in stages if stage is not None for rank in of_stage[stage]}
            if len(stages) > 1 and stages <= slow_stages and held == set(ranks) and len(held) < len(stage_of):
                parts = [one for one in rows if one["kind"] == STAGE and one["stage"] in stages]
                rows.append(_of_stages(ranks, parts))
    rows.sort(key=lambda row: -len(row["members"]))
    taken: set[int] = set()
    for row in rows:
        row["slow"] = row["slow"] and not taken & set(row["members"])
        taken |= set(row["members"]) if row["slow"] else set()
    rows.sort(key=lambda row: (-row["ratio"], row["members"]))
    return pa.Table.from_pylist(rows, schema=GROUP_SPEEDS.schema)


def _times(work: pa.Table) -> dict[int, tuple[dict[int, int], Float64]]:
    """Per stage (-1: unknown), the column of each rank, and a row per item with the times of all ranks, ns."""
    rank, stage, time = (optional_integers(work, name) for name in ("rank", "stage", "time_ns"))
    pairs = number_groups(stage, rank)[0]
    size = {int(each): int((stage[pairs] == each).sum()) for each in np.unique(stage)}
    found: dict[int, list[dict[int, int]]] = {}
    for rows in comparable(work, np.array([size[int(each)] for each in stage], np.int64), by_all=True):
        item = dict(zip(rank[rows].tolist(), time[rows].tolist(), strict=True))
        found.setdefault(int(stage[rows[0]]), []).append(item)
    result = {}
    for each, items in found.items():
        ranks = sorted(items[0])
        matrix = np.array([[item[one] for one in ranks] for item in items], np.float64)
        result[each] = {one: column for column, one in enumerate(ranks)}, matrix
    return result


def _row(
    kind: str,
    ranks: Sequence[int],
    stage_of: Mapping[int, int | None],
    more_work: Mapping[int, float | None],
    times: Mapping[int, tuple[dict[int, int], Float64]],
) -> GroupSpeed | None:
    """The row of a group or node; None where a rank has nobody outside to be compared with."""
    shares, ratios, more = [], [], []
    for stage in {stage_of[rank] for rank in ranks}:
        column, matrix = times.get(-1 if stage is None else stage, ({}, np.zeros((0, 0))))
        outside = [place for rank, place in column.items() if rank not in ranks]
        if not outside or not len(matrix):
            return None
        usual = np.sort(matrix[:, outside], axis=1)[:, (len(outside) - 1) // 2]
        for rank in ranks:
            if stage_of[rank] == stage:
                own = matrix[:, column[rank]]
                shares.append(float((own > (1 + SLOWER_THAN_FEW) * usual).mean()))
                # What a rank has more to do makes none slow.
                ratios.append(float(own.sum() / max(usual.sum(), 1.0)) / max(more_work[rank] or 1.0, 1.0))
                more.append(float(own.sum() - usual.sum()))
    if len(ratios) < 2:
        return None
    stages = {stage_of[rank] for rank in ranks}
    return {
        "kind": kind,
        "ranks": spanned(ranks),
        "members": sorted(ranks),
        "stage": stages.pop() if len(stages) == 1 else None,
        "slower_items": min(shares),
        "ratio": min(ratios),
        "more_ns": round(sum(more) / len(more)),
        "slow": min(shares) >= LEAST_ITEMS and min(ratios) >= 1 + SLOWER_THAN_FEW,
    }


def _stage_row(
    row: Mapping[str, object],
    of_stage: Mapping[int, tuple[int, ...]],
    times: Mapping[int, tuple[dict[int, int], Float64]],
) -> GroupSpeed:
    """The row of a stage: the same kernels of the other stages are its peers, and none of its ranks is as fast."""
    ratio, slower = row["ratio"], row["slower_ns"]
    assert isinstance(row["stage"], int) and isinstance(slower, int)
    share = row["slower_items"] if isinstance(row["slower_items"], float) else 0.0
    sums = times.get(row["stage"], ({}, np.ones((1, 1))))[1].sum(axis=0)
    known = (ratio if isinstance(ratio, float) else 1.0) * float(sums.min() / max(sums.mean(), 1.0))
    return {
        "kind": STAGE,
        "ranks": spanned(of_stage[row["stage"]]),
        "members": sorted(of_stage[row["stage"]]),
        "stage": row["stage"],
        "slower_items": share,
        "ratio": known,
        "more_ns": slower,
        "slow": known >= 1 + SLOWER_THAN_FEW and slower > 0 and share >= LEAST_ITEMS,
    }


def _of_stages(ranks: Sequence[int], parts: Sequence[GroupSpeed]) -> GroupSpeed:
    ratios, more = [part["ratio"] for part in parts], [part["more_ns"] for part in parts]
    return {
        "kind": NODE,
        "ranks": spanned(ranks),
        "members": sorted(ranks),
        "stage": None,
        "slower_items": None,
        "ratio": min(ratios),
        "more_ns": round(sum(more) / len(more)),
        "slow": True,
    }
