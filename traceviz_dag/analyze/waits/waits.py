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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.intervals import Intervals, measure_within, merge, subtract, union
from traceviz_dag.analyze.kernel_intervals import codes, kernel_intervals
from traceviz_dag.analyze.matching.communications import labels, nullable, optional_integers, word_column
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.arrivals import Arrivals, judge_arrivals
from traceviz_dag.arrays import NONE, Int64, number_groups, places_of_each
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
    asked = ask(matches, rank_clocks)
    return charge(collectives, matches, asked, *answer(asked.own(matches), asked.charged(matches), kernels_of))


@dataclass(frozen=True, slots=True)
class Asked:
    """What must be known of the ranks' kernels to charge the waits of some matches.

    Attributes:
        best: the arrivals to go by.
        own_rows: rows with a known wait; charged_rows: those that waited. Each in the order of the rank that is asked.
        before, first: per row, as ``_previous_meetings`` gives them.
    """

    best: Arrivals
    own_rows: Int64
    charged_rows: Int64
    before: Int64
    first: npt.NDArray[np.bool_]

    def own(self, matches: Matches) -> pa.Table:
        """A row for each row with a known wait: its kernel's time, and since when it counts what its rank did."""
        rows, mine = matches.rows, self.own_rows
        before = self.before[mine]
        columns = {
            "rank": rows.rank[mine],
            "start_ns": rows.start_ns[mine],
            "end_ns": rows.end_ns[mine],
            "launch_ns": rows.launch_ns[mine],
            "step": rows.integers("step")[mine],
            "wait_ns": self.best.wait_ns[mine],
            "met_ns": np.where(before == MISSING, MISSING, rows.start_ns[np.where(before == MISSING, 0, before)]),
            "first": self.first[mine],
        }
        return pa.table(columns)

    def charged(self, matches: Matches) -> pa.Table:
        """A row for each wait: the rank that came late, and its arrival."""
        rows, last = matches.rows, self.best.last_row[self.charged_rows]
        columns = {
            "rank": rows.rank[last],
            "start_ns": rows.start_ns[last],
            "launch_ns": rows.launch_ns[last],
            "wait_ns": self.best.wait_ns[self.charged_rows],
        }
        return pa.table(columns)


def ask(matches: Matches, rank_clocks: pa.Table) -> Asked:
    """Find what must be known of the ranks' kernels."""
    best = judge_arrivals(matches, rank_clocks).best()
    rank = matches.rows.rank
    own = np.flatnonzero(best.wait_ns != MISSING)
    charged = own[best.wait_ns[own] > 0]
    charged = charged[np.argsort(rank[best.last_row[charged]], kind="stable")]
    return Asked(best, own[np.argsort(rank[own], kind="stable")], charged, *_previous_meetings(matches))


def answer(own: pa.Table, charged: pa.Table, kernels_of: Callable[[int], pa.Table]) -> tuple[pa.Table, pa.Table]:
    """What the ranks did in the windows that are asked: rank by rank, one in memory.

    Args:
        own, charged: as ``Asked`` gives them, in any order. kernels_of: gives all kernels of a rank.

    Returns:
        A row for each of both: how much of wait and transfer was hidden, and what the rank did since it last met the
        others, from ``begun_ns``; what the late rank did while the other waited.
    """
    asked = {name: optional_integers(own, name) for name in own.column_names}
    late = {name: optional_integers(charged, name) for name in charged.column_names}
    of_own = {name: np.zeros(own.num_rows, np.int64) for name in ("hidden_wait_ns", "hidden_transfer_ns", "begun_ns")}
    since, then = ({name: np.zeros(len(one["rank"]), np.int64) for name in _LATE} for one in (asked, late))
    words = _Words(charged.num_rows)
    own_rows, late_rows = _by_rank(asked["rank"]), _by_rank(late["rank"])
    nothing = np.empty(0, np.int64)
    for rank in sorted({*own_rows, *late_rows}):
        activity = _Activity(kernels_of(rank))
        mine = own_rows.get(rank, nothing)
        start, end = asked["start_ns"][mine], asked["end_ns"][mine]
        end_of_wait = start + np.minimum(asked["wait_ns"][mine], end - start)
        of_own["hidden_wait_ns"][mine] = measure_within(activity.hiding, start, end_of_wait)
        of_own["hidden_transfer_ns"][mine] = measure_within(activity.hiding, end_of_wait, end)
        met = mine[(asked["met_ns"][mine] != MISSING) | (asked["first"][mine] == 1)]
        # From arrival to arrival: while one waits in an asynchronous communication, its computation goes on.
        begin = np.where(asked["first"][met] == 1, activity.beginnings(asked["step"][met]), asked["met_ns"][met])
        of_own["begun_ns"][met] = begin = np.minimum(begin, asked["start_ns"][met])
        activity.fill(since, met, begin, asked["start_ns"][met], asked["launch_ns"][met])
        those = late_rows.get(rank, nothing)
        arrival = late["start_ns"][those]
        activity.fill(then, those, arrival - late["wait_ns"][those], arrival, late["launch_ns"][those])
        words.set(those, *activity.longest(then, those, arrival - late["wait_ns"][those], arrival))
    return pa.table({**of_own, **since}), pa.table({**then, "late_category": words.column()})


def charge(collectives: pa.Table, matches: Matches, asked: Asked, of_own: pa.Table, of_late: pa.Table) -> pa.Table:
    """The table ``collectives`` with what ``answer`` gave; see ``charge_waits``."""
    rows, best, before, first = matches.rows, asked.best, asked.before, asked.first
    known, waiting = best.wait_ns != MISSING, asked.charged_rows
    late = best.last_row[waiting]

    def of_rows(name: str) -> Int64:
        values = np.zeros(len(rows), dtype=np.int64)
        values[asked.own_rows] = of_own[name].to_numpy()
        return values

    duration = rows.end_ns - rows.start_ns
    waited = np.minimum(best.wait_ns, duration)
    filled = {name: of_rows(name) for name in ("hidden_wait_ns", "hidden_transfer_ns")}
    filled["exposed_wait_ns"] = waited - filled["hidden_wait_ns"]
    filled["exposed_transfer_ns"] = duration - waited - filled["hidden_transfer_ns"]
    filled = {name: np.where(known, filled.get(name, 0), MISSING) for name in (*_HIDDEN, *_LATE)}
    begun, late_since = of_rows("begun_ns"), np.full(len(rows), MISSING)
    since = {name: of_rows(name) for name in _LATE}
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
        filled[name][waiting] = np.where(together, excess[name], of_late[name].to_numpy())
    late_since[waiting] = np.where(together, begun[late], rows.start_ns[late] - best.wait_ns[waiting])
    # What it was late before; the other's wait for it there counts as communication instead.
    rest = best.wait_ns[waiting] - sum(filled[name][waiting] for name in _LATE)
    filled["late_communication_ns"][waiting] += rest
    columns = {name: collectives[name] for name in COLLECTIVES.schema.names}
    columns |= {name: nullable(values) for name, values in filled.items()}
    columns["late_since_ns"] = nullable(late_since)
    code, words = labels(of_late, "late_category")
    category = np.full(len(rows), -1)
    category[waiting] = code
    columns["late_category"] = word_column(category, words)
    return COLLECTIVES.from_columns(columns)


def _by_rank(rank: Int64) -> dict[int, Int64]:
    """Part rows by the rank that each of them is for."""
    return {int(rank[rows[0]]): rows for rows in places_of_each(rank)}


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
    # The last place is for rows that ends alone matched, whose group, -1, is not known.
    most = np.zeros(int(group.max()) + 2, np.int64)
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
