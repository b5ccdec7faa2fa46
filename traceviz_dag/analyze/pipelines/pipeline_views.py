"""Pipelines seen together: a stage over its data- and tensor-parallel peers, and a replica as all its pipelines."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.matching.communications import nullable, optional_integers
from traceviz_dag.arrays import number_groups

_PARTS = ("bubble_ns", "fill_drain_ns", "imbalance_ns", "jitter_ns", "stall_ns")


def stage_spread(pipelines: pa.Table) -> pa.Table:
    """How much the ranks of a stage differ: they hold the same layers, so they should not.

    Returns:
        A row per step × stage: ``ranks``, the least, median and greatest ``microbatch_ns``, ``spread`` (greatest over
        median, minus 1), ``longest_rank``, whose mean is the greatest: waits inside its steps are part of it.
    """
    step, stage, rank, mean = (
        optional_integers(pipelines, name) for name in ("step", "stage", "rank", "microbatch_ns")
    )
    if not len(rank):
        first, group = np.empty(0, np.intp), np.empty(0, np.intp)
    else:
        first, group = number_groups(step, stage)
    rows = []
    for number, row in enumerate(first.tolist()):
        mine = np.flatnonzero(group == number)
        longest = mine[np.argmax(mean[mine])]
        middle = float(np.median(mean[mine]))
        rows.append((step[row], stage[row], len(mine), mean[mine].min(), round(middle), mean[longest], rank[longest]))
    names = ("step", "stage", "ranks", "least_ns", "median_ns", "greatest_ns", "longest_rank")
    columns = np.array(rows, dtype=np.int64).reshape(-1, len(names)).T
    table = pa.table({name: nullable(column) for name, column in zip(names, columns, strict=True)})
    share = columns[5] / np.maximum(columns[4], 1) - 1
    return table.append_column("spread", pa.array(share, pa.float64()))


def replica_stages(pipelines: pa.Table) -> pa.Table:
    """A replica as the union of its pipelines: of each stage the longest span and the means over its pipelines.

    Returns:
        A row per step × dense replica × stage: ``pipelines``, ``span_ns`` (the longest), and the means of ``idle_ns``
        and of the bubble and its parts over the pipelines that have them, ns.
    """
    keys = [optional_integers(pipelines, name) for name in ("step", "dense_replica", "stage")]
    if not len(keys[0]):
        first, group = np.empty(0, np.intp), np.empty(0, np.intp)
    else:
        first, group = number_groups(*keys)
    count = np.bincount(group, minlength=len(first))
    span = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(span, group, optional_integers(pipelines, "span_ns"))
    columns = {
        name: nullable(key[first]) for name, key in zip(("step", "dense_replica", "stage"), keys, strict=True)
    } | {"pipelines": pa.array(count, pa.int64()), "span_ns": pa.array(span)}
    for name in ("idle_ns", *_PARTS):
        values = pipelines[name].to_numpy(zero_copy_only=False).astype(np.float64)
        known = ~np.isnan(values)
        total = np.bincount(group[known], weights=values[known], minlength=len(first))
        counted = np.bincount(group[known], minlength=len(first))
        mean = np.rint(total / np.maximum(counted, 1)).astype(np.int64)
        columns[name] = pa.array(mean, mask=counted == 0)
    return pa.table(columns)
