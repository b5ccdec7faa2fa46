"""The table ``collectives``: every rank's part in every communication, matched across ranks, with its waiting time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.matching.collective_matching import FAULTS, MATCHED_BY
from traceviz_dag.analyze.matching.communications import (
    communication_bytes,
    labels,
    nullable,
    optional_integers,
    word_column,
)
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.matching.operations import OPERATIONS, bandwidth, bus_factor
from traceviz_dag.analyze.waits.arrivals import REFUSALS, judge_arrivals
from traceviz_dag.analyze.waits.nodes import nodes_of_devices
from traceviz_dag.arrays import number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import COLLECTIVES
from traceviz_dag.vocabulary import Fault, Refusal

SOLVED, DURATIONS = "solved", "durations"
"""What a measure across ranks rests on: solved clocks, or durations alone, which need no clock."""

INTRA_NODE, INTER_NODE = "intra_node", "inter_node"

_FILLED_LATER = (
    *("hidden_wait_ns", "exposed_wait_ns", "hidden_transfer_ns", "exposed_transfer_ns", "late_compute_ns"),
    *("late_communication_ns", "late_memory_ns", "late_host_ns", "late_idle_ns", "late_since_ns", "late_category"),
)


def collectives_table(matches: Matches, rank_clocks: pa.Table, nodes: Mapping[int, int] | None = None) -> pa.Table:
    """Measure arrival, wait, transfer and bandwidth of every communication.

    What a rank did beside its communications is not known here: the columns on hidden and exposed parts and on the
    late rank are NULL until ``waits.charge_waits`` fills them.

    Args:
        rank_clocks: the table ``rank_clocks`` of the same matches.
        nodes: rank → number of its node, empty where unknown; by default as the ranks' devices show it.

    Returns:
        The table ``collectives``, a row for each row of the matches, in their order; unmatched ones say why.
    """
    rows = matches.rows
    judged = judge_arrivals(matches, rank_clocks)
    recorded, aligned, best = judged.recorded.arrivals, judged.aligned.arrivals, judged.best()
    # With a member missing, what looks like a transfer may be a wait for it.
    whole = matches.fault == FAULTS.index(Fault.NONE)
    last_transfer = np.where(whole, best.last_transfer_ns(matches), MISSING)
    nbytes = communication_bytes(rows)
    speed = bandwidth(nbytes, last_transfer)
    factor = bus_factor(rows.operation, np.where(matches.members == MISSING, matches.found, matches.members))
    reasons = [None if each is Refusal.NONE else each.value for each in REFUSALS]
    group = matches.grouped.group
    # Of a few ranks of an unknown group, whose order nothing confirms, it is not even known that they met.
    missing = matches.by_order_alone & (matches.fault == FAULTS.index(Fault.MEMBERS_MISSING))
    unmet = (matches.communication < 0) | (missing & (judged.aligned.refusal != REFUSALS.index(Refusal.NONE)))
    table = rows.table
    return COLLECTIVES.from_columns(
        {name: table[name] for name in ("rank", "kernel_id", "step", "dimension", "phase", "stage")}
        | {name: pa.nulls(len(rows), COLLECTIVES.schema.field(name).type) for name in _FILLED_LATER}
        | {
            "communication": pa.array(matches.communication, mask=unmet),
            "may_meet": nullable(np.where(matches.may_meet < 0, MISSING, matches.may_meet)),
            "operation": word_column(rows.operation, [each.value for each in OPERATIONS]),
            "group_name": word_column(group, [each.name for each in matches.grouped.groups]),
            "group_description": word_column(group, [each.description for each in matches.grouped.groups]),
            "members": nullable(matches.members),
            "members_found": matches.found,
            "matched_by": word_column(matches.matched_by, [each.value for each in MATCHED_BY]),
            "fault": word_column(matches.fault, [None if each is Fault.NONE else each.value for each in FAULTS]),
            "scope": _scopes(matches, nodes_of_devices(device_of_ranks(rows.table)) if nodes is None else nodes),
            "arrival_ns": rows.start_ns,
            "duration_ns": rows.end_ns - rows.start_ns,
            "wait_ns": nullable(recorded.wait_ns),
            "transfer_ns": nullable(recorded.transfer_ns(matches)),
            "last_rank": nullable(recorded.last_rank(matches)),
            "wait_aligned_ns": nullable(aligned.wait_ns),
            "transfer_aligned_ns": nullable(aligned.transfer_ns(matches)),
            "last_rank_aligned": nullable(aligned.last_rank(matches)),
            "ahead": pa.array(aligned.ahead, mask=aligned.wait_ns == MISSING),
            "wait_by_duration_ns": nullable(judged.by_duration.wait_ns),
            "last_rank_by_duration": nullable(judged.by_duration.last_rank(matches)),
            "recorded_refusal": word_column(judged.recorded.refusal, reasons),
            "aligned_refusal": word_column(judged.aligned.refusal, reasons),
            "clocks": word_column(np.where(best.wait_ns == MISSING, -1, judged.solved), [DURATIONS, SOLVED]),
            "last_transfer_ns": nullable(last_transfer),
            "bytes": nullable(nbytes),
            "algorithm_gb_per_s": pa.array(speed, mask=np.isnan(speed)),
            "bus_gb_per_s": pa.array(speed * factor, mask=np.isnan(speed)),
        }
    )


def device_of_ranks(rows: pa.Table) -> dict[int, str | None]:
    """Rank → its device; None for a rank with communications on several.

    Args:
        rows: with the columns rank and device.
    """
    code, names = labels(rows, "device")
    rank = optional_integers(rows, "rank")
    pairs = np.unique(np.stack((rank, code)), axis=1) if len(code) else np.empty((2, 0), np.int64)
    devices: dict[int, str | None] = {}
    for rank, name in pairs.T.tolist():
        devices[rank] = None if rank in devices else names[name]
    return devices


def _scopes(matches: Matches, nodes: Mapping[int, int]) -> pa.DictionaryArray:
    """Whether each matched communication stays inside a node."""
    node = np.array([nodes.get(rank, MISSING) for rank in matches.rows.ranks], dtype=np.int64)
    scope = np.full(len(matches.rows), -1)
    if len(node) and (node != MISSING).all():
        of_row = node[np.searchsorted(np.array(matches.rows.ranks), matches.rows.rank)]
        matched = np.flatnonzero(matches.communication >= 0)
        _, number = number_groups(matches.communication[matched])
        low, high = np.full(len(matched), np.iinfo(np.int64).max), np.full(len(matched), -1)
        np.minimum.at(low, number, of_row[matched])
        np.maximum.at(high, number, of_row[matched])
        apart = low[number] != high[number]
        # Members that were not read may run on other nodes.
        whole = matches.fault[matched] == FAULTS.index(Fault.NONE)
        scope[matched] = np.where(apart | whole, apart, -1)
    return word_column(scope, [INTRA_NODE, INTER_NODE])
