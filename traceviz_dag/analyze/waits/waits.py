"""Who waited for whom, for how long, and what made the late rank late.

A wait is charged to the last rank to arrive. Ranks of one stage do the same work between two communications of their
group: what the late rank did more of, from its arrival at the one before to this one, made it late (``since``).
What it was late there already, and has not made up for, was handed on. Before they meet for the first time this counts
from their first kernels of the training step, if they began it together. Otherwise, and between stages, which do
different work, the answer is what the late rank did while the other waited.
Both are read on the late rank's own clock, so they need no other; only the length of the wait does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.intervals import Intervals, measure_within, merge, subtract, union
from traceviz_dag.analyze.kernel_intervals import codes, kernel_intervals
from traceviz_dag.analyze.matching.communications import labels, nullable, optional_integers
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.arrivals import Arrivals, judge_arrivals
from traceviz_dag.arrays import NONE, Int64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import COLLECTIVES
from traceviz_dag.vocabulary import Dimension

BESIDE_COLUMNS = ("start_ns", "duration_ns", "kind", "dimension", "category", "step", "beside_ns")
"""Columns of ``kernels`` that show what a rank did beside its communications."""

BEGAN_TOGETHER = 0.25
"""Share of a wait by which two ranks' first kernels of a step may lie apart: they then do not explain it."""

HOST, IDLE = "host", "idle"
"""What a late rank did whose GPU idled: its host had not launched yet, or it had."""

SAME_STAGE = (Dimension.TP, Dimension.CP, Dimension.EP, Dimension.ETP, Dimension.DP, Dimension.EDP)
"""Dimensions whose members do the same work."""

_HIDDEN = ("hidden_wait_ns", "exposed_wait_ns", "hidden_transfer_ns", "exposed_transfer_ns")
_LATE = ("late_compute_ns", "late_communication_ns", "late_memory_ns", "late_host_ns", "late_idle_ns")


def same_work(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Mark communications whose members do the same work: within a stage, or anywhere in a job without stages.

    Args:
        rows: with the columns dimension and stage.
    """
    dimension, words = labels(rows, "dimension")
    within = np.array([word in SAME_STAGE for word in words])[dimension]
    general = np.array([word in (Dimension.UNKNOWN, Dimension.WORLD) for word in words])[dimension]
    return within | (general & rows["stage"].is_null().to_numpy())


def charge_waits(
    collectives: pa.Table, matches: Matches, rank_clocks: pa.Table, kernels_of: Callable[[int], pa.Table]
) -> pa.Table:
    """Fill in what of waits and transfers was hidden, and what made the late ranks late: rank by rank, one in memory.

    Args:
        collectives: the table ``collectives`` of these matches.
        kernels_of: gives all kernels of a rank, columns ``BESIDE_COLUMNS``.

    Returns:
        The table with its columns hidden_*, exposed_* and late_* filled. A wait counts as hidden or exposed up to the
        end of its kernel; the late parts add up to the wait, and since they met a part may be negative. They are of
        what the late rank did from ``late_since_ns`` to its arrival.
    """
    rows = matches.rows
    best = judge_arrivals(matches, rank_clocks).best()
    known = best.wait_ns != MISSING
    waiting = np.flatnonzero(known & (best.wait_ns > 0))
    late = best.last_row[waiting]
    before, first = _previous_meetings(matches)
    step = rows.integers("step")
    filled = {name: np.where(known, 0, MISSING) for name in (*_HIDDEN, *_LATE)}
    begun, late_since = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), MISSING)
    since, then = ({name: np.zeros(len(rows), dtype=np.int64) for name in _LATE} for _ in range(2))
    words = _Words(len(rows))
    own_rows, charged_rows = _by_rank(rows.rank[known], np.flatnonzero(known)), _by_rank(rows.rank[late], waiting)
    for rank in rows.ranks:
        activity = _Activity(kernels_of(rank))
        mine = own_rows.get(rank, waiting[:0])
        _fill_own(filled, mine, activity, matches, best)
        met = mine[(before[mine] != MISSING) | first[mine]]
        # From arrival to arrival: while one waits in an asynchronous communication, its computation goes on.
        arrived = rows.start_ns[np.where(first[met], 0, before[met])]
        begin = np.minimum(np.where(first[met], activity.beginnings(step[met]), arrived), rows.start_ns[met])
        begun[met] = begin
        activity.fill(since, met, begin, rows.start_ns[met], rows.launch_ns[met])
        charged = charged_rows.get(rank, waiting[:0])
        last = best.last_row[charged]
        arrival = rows.start_ns[last]
        activity.fill(then, charged, arrival - best.wait_ns[charged], arrival, rows.launch_ns[last])
        words.set(charged, *activity.longest(then, charged, arrival - best.wait_ns[charged], arrival))
    excess = {name: since[name][late] - since[name][waiting] for name in _LATE}
    apart = np.abs(best.wait_ns[waiting] - sum(excess.values()))
    began_together = first[waiting] & first[late] & (apart <= BEGAN_TOGETHER * best.wait_ns[waiting])
    met_before = _met_before(matches, waiting, late, before)
    # A GPU that its host keeps waiting idles between communications or in them, as the hosts happen to lie: only what
    # the late host took longer from launch to launch is its own.
    took = _host_time(matches, before)
    timed = met_before & (took[waiting] != MISSING) & (took[late] != MISSING)
    longer = np.maximum(took[late] - took[waiting], 0)
    host = excess["late_host_ns"]
    excess["late_host_ns"] = np.where(timed, np.minimum(host, longer), host)
    together = met_before | began_together
    for name in _LATE:
        filled[name][waiting] = np.where(together, excess[name], then[name][waiting])
    late_since[waiting] = np.where(together, begun[late], rows.start_ns[late] - best.wait_ns[waiting])
    # What it was late before; the other's wait for it there counts as communication instead.
    rest = best.wait_ns[waiting] - sum(filled[name][waiting] for name in _LATE)
    filled["late_communication_ns"][waiting] += rest
    columns = {name: collectives[name] for name in COLLECTIVES.schema.names}
    columns |= {name: nullable(values) for name, values in filled.items()}
    columns["late_since_ns"] = nullable(late_since)
    columns["late_category"] = words.column()
    return COLLECTIVES.from_columns(columns)


def _by_rank(rank: Int64, rows: Int64) -> dict[int, Int64]:
    """Part rows by the rank that each of them is for."""
    if not len(rows):
        return {}
    order = np.argsort(rank, kind="stable")
    ranks, starts = np.unique(rank[order], return_index=True)
    return dict(zip(ranks.tolist(), np.split(rows[order], starts[1:]), strict=True))


class _Words:
    """A text column that is filled in pieces, as codes."""

    def __init__(self, rows: int) -> None:
        self.codes = np.full(rows, -1, dtype=np.int32)
        self.places: dict[str, int] = {}

    def set(self, rows: Int64, codes: Int64, words: list[str]) -> None:
        """Set some rows to words, given as codes into a list."""
        places = np.full(len(words), -1, dtype=np.int32)
        for code in np.unique(codes).tolist():
            places[code] = self.places.setdefault(words[code], len(self.places))
        self.codes[rows] = places[codes]

    def column(self) -> pa.DictionaryArray:
        """The column: words in order, those that occur."""
        words = sorted(self.places)
        used = {self.places[word]: word for word in words}
        order = np.array([words.index(used[place]) for place in range(len(used))] + [-1], dtype=np.int32)
        codes = order[self.codes]
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(words, pa.string()))


class _Activity:
    """What one rank's GPU did, as unions: each instant belongs to computation, else communication, else memory."""

    def __init__(self, kernels: pa.Table) -> None:
        intervals = kernel_intervals(kernels)
        time = intervals.time

        def of(chosen: npt.NDArray[np.bool_]) -> Intervals:
            return union(time.starts[chosen], time.ends[chosen])

        self.computation = of(intervals.computes())
        beside = np.asarray(pc.list_flatten(kernels["beside_ns"].combine_chunks()), dtype=np.int64)
        self.hiding = merge(self.computation, union(beside[::2], beside[1::2]))
        communication, memory = of(intervals.communicates()), of(intervals.moves_memory())
        self.communication = subtract(communication, self.computation)
        self.memory = subtract(memory, merge(self.computation, communication))
        self.busy = merge(self.computation, communication, memory)
        step = optional_integers(kernels, "step")
        self.steps, place = np.unique(step, return_inverse=True)
        self.step_starts = np.full(len(self.steps), np.iinfo(np.int64).max)
        np.minimum.at(self.step_starts, place, time.starts)
        code, self.categories = codes(kernels, "category")
        self.by_category = [of(code == number) for number in range(len(self.categories))]

    def beginnings(self, steps: Int64) -> Int64:
        """The start of the rank's first kernel of each of these steps, ns."""
        if not len(self.steps):
            return np.zeros(len(steps), dtype=np.int64)
        return self.step_starts[np.minimum(np.searchsorted(self.steps, steps), len(self.steps) - 1)]

    def fill(self, parts: dict[str, Int64], rows: Int64, start: Int64, end: Int64, launch: Int64) -> None:
        """Part the windows of some rows into computation, communication, memory, host and idle."""
        parts["late_compute_ns"][rows] = measure_within(self.computation, start, end)
        parts["late_communication_ns"][rows] = measure_within(self.communication, start, end)
        parts["late_memory_ns"][rows] = measure_within(self.memory, start, end)
        launched = np.clip(np.where(launch == MISSING, start, launch), start, end)
        parts["late_host_ns"][rows] = launched - start - measure_within(self.busy, start, launched)
        parts["late_idle_ns"][rows] = end - launched - measure_within(self.busy, launched, end)

    def longest(self, parts: dict[str, Int64], rows: Int64, start: Int64, end: Int64) -> tuple[Int64, list[str]]:
        """What took longest in the windows of some rows, a category, host or idle: codes and their words."""
        of_category = [measure_within(each, start, end) for each in self.by_category]
        table = np.stack([*of_category, parts["late_host_ns"][rows], parts["late_idle_ns"][rows]])
        return table.argmax(axis=0), [*self.categories, HOST, IDLE]


def _fill_own(filled: dict[str, Int64], mine: Int64, activity: _Activity, matches: Matches, best: Arrivals) -> None:
    start, end = matches.rows.start_ns[mine], matches.rows.end_ns[mine]
    end_of_wait = start + np.minimum(best.wait_ns[mine], end - start)
    hidden_wait = measure_within(activity.hiding, start, end_of_wait)
    hidden_transfer = measure_within(activity.hiding, end_of_wait, end)
    filled["hidden_wait_ns"][mine], filled["exposed_wait_ns"][mine] = hidden_wait, end_of_wait - start - hidden_wait
    filled["hidden_transfer_ns"][mine] = hidden_transfer
    filled["exposed_transfer_ns"][mine] = end - end_of_wait - hidden_transfer


def _previous_meetings(matches: Matches) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Where the members of a collective within one stage last met.

    A collective of which a rank's trace lost the kernel is not counted: the others' windows would begin there, its own
    before, and what it did since would look as if it had more to do.

    Returns:
        Per row its rank's row of the last collective before of which as many members are known as of any of the group,
        else ``MISSING``; and whether there is none, in a training step that is known.
    """
    before, first = np.full(len(matches.rows), MISSING), np.zeros(len(matches.rows), dtype=bool)
    rows = matches.collective_rows
    rows = rows[same_work(matches.rows.table)[rows]]
    if not len(rows):
        return before, first
    _, queue = number_groups(matches.grouped.group[rows], matches.rows.rank[rows])
    order = matches.rows.order(rows, queue.astype(np.int64))
    group, found = matches.grouped.group[rows], matches.found[rows]
    most = np.zeros(int(group.max()) + 1, np.int64)
    np.maximum.at(most, group, found)
    met = (found == most[group])[order]
    last = np.append(NONE, np.maximum.accumulate(np.where(met, np.arange(len(order)), NONE))[:-1])
    follows = (last != NONE) & (queue[order] == queue[order][last])
    before[rows[order[follows]]] = rows[order[last[follows]]]
    first[rows] = (before[rows] == MISSING) & (matches.rows.integers("step")[rows] != MISSING)
    return before, first


def _host_time(matches: Matches, before: Int64) -> Int64:
    """How long each row's host took from launching the collective before to launching this one; else ``MISSING``."""
    launch = matches.rows.launch_ns
    earlier = launch[np.where(before == MISSING, 0, before)] if len(launch) else launch
    known = (before != MISSING) & (launch != MISSING) & (earlier != MISSING)
    return np.where(known, launch - earlier, MISSING)


def _met_before(matches: Matches, waiting: Int64, late: Int64, before: Int64) -> npt.NDArray[np.bool_]:
    """Whether a waiting and its late row had the same communication before."""
    both = (before[waiting] != MISSING) & (before[late] != MISSING)
    mine, theirs = (matches.communication[np.where(both, before[rows], 0)] for rows in (waiting, late))
    return both & (mine == theirs)
