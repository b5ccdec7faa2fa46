"""Who is to blame for waiting: the matrix of who waited for whom, and the ranks that were late of themselves.

All functions take the table ``collectives`` with its waits charged (``waits.charge_waits``), and go by solved clocks
where these are there, else by durations, which need no clock; never by clocks as they were recorded.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.waits.blamed import judged_waits
from traceviz_dag.analyze.waits.waits import HOST, same_work
from traceviz_dag.arrays import Int64
from traceviz_dag.read.events import MISSING

BLAMED_SHARE, BLAMED_HOST_SHARE = 0.05, 0.01
"""Share of the step by which a rank must delay its peers to be blamed: the second one where most of it is its host's
doing, again and again or for long, as in a hidden synchronisation."""

HOST_JITTER_NS = 20_000
"""Up to this a host launches late by chance; where GPUs outrun their hosts, that adds up to shares of the step."""

HOST_TIMES, HOST_PAUSE_NS = 3, 1_000_000
"""So often, or for so long in all, a host must be late beyond that; one hiccup of some tenths of a millisecond in a
step is nothing that anybody can fix."""

BLAMED_TIMES, BLAMED_OF_WORST = 3.0, 0.2
"""And this multiple of the lower quartile of all ranks (a quarter, and not half, since of two expert-parallel ranks one
can be the slow one), and this share of what the worst rank did (what is small beside that is jitter which its delays
stir up)."""

LATE_PARTS = ("late_compute_ns", "late_communication_ns", "late_memory_ns", "late_host_ns", "late_idle_ns")


def blame_matrix(collectives: pa.Table) -> pa.Table:
    """Who waited for whom.

    Returns:
        A row per rank × late_rank × dimension: ``waits`` (how often, for longer than 0 ns), ``wait_ns``, the sums of
        the late parts, ns, and ``clocks_solved`` (whether all rests on these); longest first.
    """
    rows = judged_waits(collectives)
    # Who arrived at the same nanosecond as the last did not wait for it.
    rows = rows.filter(pc.greater(rows["judged_wait_ns"], 0))
    rows = rows.set_column(rows.schema.get_field_index("dimension"), "dimension", rows["dimension"].cast(pa.string()))
    rows = rows.append_column("clocks_solved", pc.equal(rows["clocks"].cast(pa.string()), "solved"))
    sums = [
        ("judged_wait_ns", "count"),
        ("clocks_solved", "all"),
        *((name, "sum") for name in ("judged_wait_ns", *LATE_PARTS)),
    ]
    matrix = rows.group_by(["rank", "late_rank", "dimension"]).aggregate(sums)
    names = {"judged_wait_ns_count": "waits", "judged_wait_ns_sum": "wait_ns", "clocks_solved_all": "clocks_solved"}
    names |= {f"{part}_sum": part for part in LATE_PARTS}
    matrix = matrix.rename_columns([names.get(name, name) for name in matrix.column_names])
    return matrix.sort_by([("wait_ns", "descending"), ("rank", "ascending"), ("late_rank", "ascending")])


def late_ranks(collectives: pa.Table, step_ns: int | None) -> pa.Table:
    """How much each rank delayed the peers of its own stage, and whether it is to blame.

    Of each communication the longest wait counts, once. Its *own* part is what the late rank computed, copied or had
    not launched (beyond the jitter of hosts); time that it spent in other communications was handed on to it by others.
    One delay makes a rank late to several groups, or to both neighbours in a ring: where the times that explain waits
    overlap, no more is counted than explains each of them.

    Args:
        step_ns: how long the longest training step of the table takes (``step_time.step_time``); None blames nobody.

    Returns:
        A row per rank: ``communications`` it was in whose waits can be known, ``last`` in how many, ``delay_ns``,
        ``own_ns`` (both of longest waits), ``own_share`` of the step (of ``steps``, that in which its own part is
        greatest), ``late_category`` of most of the delay (host where most of its own part is), ``blamed``.
    """
    rows = judged_waits(collectives)
    rows = rows.filter(pa.array(same_work(rows)))
    rank, communication, wait = (optional_integers(rows, name) for name in ("rank", "communication", "judged_wait_ns"))
    everyone = np.unique(optional_integers(collectives, "rank"))
    place = np.searchsorted(everyone, rank)
    order = np.lexsort((wait, communication))
    longest = order[np.append(np.flatnonzero(np.diff(communication[order])), len(order) - 1)] if len(order) else order
    longest = longest[wait[longest] > 0]
    late = np.searchsorted(everyone, optional_integers(rows, "late_rank")[longest])
    busy = optional_integers(rows, "late_compute_ns")[longest] + optional_integers(rows, "late_memory_ns")[longest]
    host = optional_integers(rows, "late_host_ns")[longest]
    host[host < HOST_JITTER_NS] = 0
    own = np.clip(busy + host, 0, wait[longest])
    delayed, own, host = (
        _once(late, *_windows(collectives, rows, longest), values) for values in (wait[longest], own, host)
    )

    def total(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        result = np.zeros(len(everyone), dtype=np.int64)
        np.add.at(result, late, values)
        return result

    own_ns, host_ns = total(own), total(host)
    lasting = (total((host > 0).astype(np.int64)) >= HOST_TIMES) | (host_ns >= HOST_PAUSE_NS)
    hosts = 2 * host_ns > own_ns
    usual_category = _usual_category(rows.take(pa.array(longest)), late, delayed, len(everyone))
    doing = [HOST if mostly_host else word for mostly_host, word in zip(hosts, usual_category, strict=True)]
    # A rank whose trace marks no step communicates in that of its peers.
    met = np.unique(communication, return_inverse=True)[1]
    step = np.full(int(met.max(initial=-1)) + 1, MISSING)
    np.maximum.at(step, met, optional_integers(rows, "step"))
    number = np.unique(step[met], return_inverse=True)[1]
    in_step = np.zeros((len(everyone), int(number.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(in_step, (late, number[longest]), own)
    share = in_step.max(axis=1) / step_ns if step_ns else np.full(len(own_ns), np.nan)
    usual = float(np.quantile(own_ns, 0.25)) if len(own_ns) else 0.0
    return pa.table(
        {
            "rank": everyone,
            "communications": np.bincount(place, minlength=len(everyone)),
            "last": np.bincount(late, minlength=len(everyone)),
            "delay_ns": total(delayed),
            "own_ns": own_ns,
            "own_share": pa.array(share, mask=np.isnan(share)),
            "steps": np.full(len(everyone), in_step.shape[1]),
            "late_category": doing,
            "blamed": (share >= np.where(hosts & lasting, BLAMED_HOST_SHARE, BLAMED_SHARE))
            & (own_ns >= BLAMED_TIMES * usual)
            & (own_ns >= BLAMED_OF_WORST * own_ns.max(initial=0)),
        }
    )


def _windows(collectives: pa.Table, rows: pa.Table, chosen: Int64) -> tuple[Int64, Int64]:
    """From when to when the late ranks of some rows did what made them late, ns on their own clocks."""
    communication, rank, arrival = (
        optional_integers(collectives, name) for name in ("communication", "rank", "arrival_ns")
    )
    order = np.lexsort((rank, communication))
    number, met = np.unique(communication, return_inverse=True)
    ranks = int(rank.max(initial=0)) + 1
    late = optional_integers(rows, "late_rank")[chosen]
    sought = np.searchsorted(number, optional_integers(rows, "communication")[chosen]) * ranks + late
    end = arrival[order[np.searchsorted((met * ranks + rank)[order], sought)]]
    return optional_integers(rows, "late_since_ns")[chosen], end


def _once(late: Int64, since: Int64, end: Int64, delays: Int64) -> Int64:
    """What of each delay is not among those before it in the same time of the same rank.

    The least delay of a rank's own that explains all: in order of their ends, each window gets at its end what the
    delays in it so far lack.
    """
    result = np.zeros(len(late), dtype=np.int64)
    order = np.lexsort((end, late))
    for mine in np.split(order, np.flatnonzero(np.diff(late[order])) + 1):
        before = np.searchsorted(end[mine], since[mine], side="right").tolist()
        summed = [0]
        for place, delay in enumerate(delays[mine].tolist()):
            within = summed[-1] - summed[min(before[place], place)]
            summed.append(summed[-1] + max(delay - within, 0))
        result[mine] = np.diff(summed)
    return result


def _usual_category(
    rows: pa.Table, late: npt.NDArray[np.int64], wait: npt.NDArray[np.int64], ranks: int
) -> list[str | None]:
    """Per rank, what it did longest over all waits that it caused."""
    code, names = codes(rows, "late_category")
    table = np.zeros((ranks, len(names) + 1), dtype=np.int64)
    np.add.at(table, (late, np.where(code < 0, len(names), code)), wait)
    words: list[str | None] = [*names, None]
    return [
        words[place] if total else None for place, total in zip(table.argmax(axis=1), table.sum(axis=1), strict=True)
    ]
