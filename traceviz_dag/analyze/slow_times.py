"""When a rank is slow: its kernels, one by one in the order of the step, against the same ones of peers of its stage.

Ranks of a stage run the same kernels in the same order, so the n-th kernel of an item (phase, name, operator, sizes) is
the same work on all of them. This needs no clock: what is compared are durations, and the time is the rank's own.
Kernels that share the GPU with communication on one of the ranks are left out: those take longer, on each rank others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.contention import BESIDE
from traceviz_dag.analyze.intervals import measure_within, union
from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.work_evidence import plain_codes, work_by_grid
from traceviz_dag.arrays import Bool, Float64, Int64, number_groups
from traceviz_dag.vocabulary import Kind

KERNEL_COLUMNS = (
    *("kind", "step", "step_evidence", "phase", "name", "operator", "input_sizes", "start_ns", "duration_ns"),
    *("grid_x", "grid_y", "grid_z"),
)
"""Columns of ``kernels`` that are read."""

_PIECES = 64
"""So many pieces of equal usual time a step is cut into."""

_SLOWER, _USUAL = 1.05, 1.03
"""How much longer kernels take at least within the time in which a rank is slow, and at most outside of it."""

_MOST, _FEW = 0.7, 0.2
"""Share of the kernels that are slower within that time, and outside of it."""

_LEAST_KERNELS = 20
_OTHER_WORK = 0.01
"""Share of grids that differ between ranks, from which they do other work."""


class SlowTime(NamedTuple):
    """A part of a step in which a rank is slow.

    Attributes:
        step: None where no step is marked.
        from_ns, to_ns: from the first kernel of the step.
        own_ns, usual_ns: its time for the kernels in it, and that of the median peer.
        outside: its time to that of the median peer for all others.
    """

    step: int | None
    from_ns: int
    to_ns: int
    own_ns: int
    usual_ns: int
    outside: float

    @property
    def ratio(self) -> float:
        """Its time to that of the median peer."""
        return self.own_ns / max(self.usual_ns, 1)


def slow_time(kernels: Callable[[int], pa.Table], rank: int, peers: Sequence[int]) -> SlowTime | None:
    """The part of a step in which alone a rank is slow, the longest of its steps; None where there is none.

    Args:
        kernels: rank → ``KERNEL_COLUMNS`` of its kernels.
        peers: others of its stage, one at least.
    """
    paired = _paired([kernels(each) for each in (rank, *peers)])
    if paired is None:
        return None
    found = []
    for step in np.unique(paired.step).tolist():
        mine = paired.step == step
        part = _part(paired.start[mine], paired.own[mine], paired.usual[mine])
        if part is not None:
            found.append(part._replace(step=None if step < 0 else int(step)))
    return max(found, key=lambda each: (each.own_ns - each.usual_ns, each.from_ns), default=None)


class _Paired(NamedTuple):
    """Kernels of a rank in the order of their start, with their usual durations."""

    step: Int64
    start: Int64
    own: Float64
    usual: Float64


def _paired(tables: Sequence[pa.Table]) -> _Paired | None:
    """The kernels that all ranks ran equally often, of the first rank; None where their grids show other work."""
    alone = np.concatenate([_alone(table) for table in tables])
    tables = [table.filter(_is(table, Kind.COMPUTATION)) for table in tables]
    whose = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    every = pa.concat_tables([table.combine_chunks() for table in tables]).unify_dictionaries()
    cut = pc.equal(every["step_evidence"].cast(pa.string()), "cut").fill_null(False)
    kept = ~np.asarray(cut.to_numpy(), bool)
    whose, alone, every = whose[kept], alone[kept], every.filter(pc.invert(cut))
    start, step = optional_integers(every, "start_ns"), optional_integers(every, "step")
    (phase, _), (name, names), (sizes, _) = (codes(every, each) for each in ("phase", "name", "input_sizes"))
    keys = (step, phase.astype(np.int64), name.astype(np.int64), plain_codes(every, "operator"), sizes.astype(np.int64))
    _, item = number_groups(*keys)
    order = np.lexsort((start, whose, item))
    _, of_rank = number_groups(item[order], whose[order])
    first = np.concatenate(([True], of_rank[1:] != of_rank[:-1])) if len(order) else np.zeros(0, bool)
    ordinal = np.arange(len(order)) - np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    again = np.lexsort((whose[order], ordinal, item[order]))
    order, ordinal = order[again], ordinal[again]
    _, same = number_groups(item[order], ordinal)
    # Of an item that some rank ran less often, the n-th kernels are not the same.
    counts = np.stack([np.bincount(item[whose == each], minlength=item.max() + 1) for each in range(len(tables))])
    whole = (counts == counts[0]).all(axis=0)[item[order]] if len(order) else np.zeros(0, bool)
    order, same = order[whole], same[whole]
    if not len(order):
        return None
    rows = order.reshape(-1, len(tables))
    free = alone[rows].all(axis=1)
    rows = rows[free] if 2 * free.sum() >= len(rows) else rows
    durations = optional_integers(every, "duration_ns")[rows].astype(np.float64)
    blocks = np.prod([np.maximum(optional_integers(every, f"grid_{axis}"), 0) for axis in "xyz"], axis=0)[rows]
    shown = work_by_grid(name[rows[:, 0]], names, blocks[:, 0]) & (sizes[rows[:, 0]] < 0)
    if shown.any() and (blocks[shown] != blocks[shown][:, :1]).any(axis=1).mean() > _OTHER_WORK:
        return None
    mine = rows[:, 0]
    sequence = np.argsort(start[mine], kind="stable")
    usual = np.median(durations[:, 1:], axis=1)
    return _Paired(step[mine][sequence], start[mine][sequence], durations[sequence, 0], usual[sequence])


def _alone(kernels: pa.Table) -> Bool:
    """Mark a rank's computation kernels that run beside no communication, all but a little of them."""
    start, duration = optional_integers(kernels, "start_ns"), optional_integers(kernels, "duration_ns")
    computes, messages = (np.asarray(_is(kernels, kind)) for kind in (Kind.COMPUTATION, Kind.COMMUNICATION))
    busy = union(start[messages], (start + duration)[messages])
    own = duration[computes]
    return np.asarray(measure_within(busy, start[computes], start[computes] + own) <= (1 - BESIDE) * own)


def _is(kernels: pa.Table, kind: Kind) -> pa.Array:
    return pc.equal(kernels["kind"].cast(pa.string()), kind.value).fill_null(False)


def _part(start: Int64, own: Float64, usual: Float64) -> SlowTime | None:
    """The piece of a step in which alone kernels take longer: of all, the one that leaves the least deviation."""
    if len(start) < 2 * _LEAST_KERNELS or usual.sum() <= 0:
        return None
    piece = np.minimum((np.cumsum(usual) - usual / 2) * _PIECES / usual.sum(), _PIECES - 1).astype(np.int64)
    owns, usuals = (np.bincount(piece, weights=each, minlength=_PIECES) for each in (own, usual))
    ratio = np.divide(owns, usuals, out=np.ones(_PIECES), where=usuals > 0)
    # The mean of pieces i to j against that of the others, weighted as in an analysis of variance.
    before = np.concatenate(([0.0], np.cumsum(ratio)))
    begin, end = np.triu_indices(_PIECES + 1, 1)
    count = end - begin
    inside = (before[end] - before[begin]) / count
    outside = (before[-1] - before[end] + before[begin]) / np.maximum(_PIECES - count, 1)
    gain = np.where(count < _PIECES, (inside - outside) * np.abs(inside - outside) * count * (_PIECES - count), -1.0)
    best = int(gain.argmax())
    chosen = (piece >= begin[best]) & (piece < end[best])
    if not chosen.any() or chosen.all():
        return None
    within, beyond = (float(own[rows].sum() / max(usual[rows].sum(), 1.0)) for rows in (chosen, ~chosen))
    slower = own > (1 + (within - 1) / 2) * usual
    enough = min(chosen.sum(), (~chosen).sum()) >= _LEAST_KERNELS
    if not enough or within < _SLOWER or beyond >= _USUAL:
        return None
    if slower[chosen].mean() < _MOST or slower[~chosen].mean() > _FEW:
        return None
    rows = np.flatnonzero(chosen)
    first, last = int(start[rows[0]]), int(start[rows[-1]] + own[rows[-1]])
    origin = int(start.min())
    return SlowTime(None, first - origin, last - origin, round(own[chosen].sum()), round(usual[chosen].sum()), beyond)
