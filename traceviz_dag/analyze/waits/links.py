"""Whether a link is slow or its peer late: the transfers of a rank's communications against those of others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.clocks.robust import grouped_quantile
from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.matching.operations import Operation
from traceviz_dag.analyze.medians import lower_medians
from traceviz_dag.arrays import Bool, Int64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.spans import spanned
from traceviz_dag.tables import LINK_GROUPS

SLOW_TIMES = 1.5
"""A rank's links are slow if its communications take this multiple of those of others, whomever it talks to."""

SINGLE_TIMES = 2.0
"""The same of a group of which a single transfer could be compared."""

LATENCY_BYTES = 65_536
"""Messages below this size take as long on a slow link as on a fast one."""


def link_speeds(collectives: pa.Table) -> pa.Table:
    """Whether the links of a rank are slow, as opposed to its peers being late: transfers against those of others.

    Transfers are compared among communications of one dimension, operation, size and scope, small ones left out. A
    group is as slow as its slowest link; so a rank's links (inside its node, or out of it) are slow where each of two
    or more dimensions that use them is. Where another such rank is in all groups that could be compared, it may be the
    slow one: it is, where it is slow in groups without this rank, too, or in the other scope, where this rank is fast;
    else nothing shows which of them is.

    Returns:
        A row per rank × scope: ``dimensions`` that could be compared, ``best_ratio`` and ``worst_ratio`` of its
        transfers to the usual ones (1 is usual), ``slow`` (NULL where it cannot be separated from ``or_of``, the other
        ranks whose links may be the slow ones instead); the slowest first.
    """
    compared = _compared(collectives)
    if not len(compared.rank):
        return pa.table({name: pa.array([], each) for name, each in _SPEED_COLUMNS.items()})
    rank, scope, dimension = compared.rank, compared.scope, compared.dimension
    group, ratio, scopes = compared.group, compared.ratio, compared.scopes
    first, cell = number_groups(rank, scope, dimension)
    typical = grouped_quantile(ratio, cell, len(first), 0.5)
    place, number = number_groups(rank[first], scope[first])
    best, worst = np.full(len(place), np.inf), np.zeros(len(place))
    np.minimum.at(best, number, typical)
    np.maximum.at(worst, number, typical)
    counted = np.bincount(number, minlength=len(place))
    looks = list(zip(rank[first][place].tolist(), scope[first][place].tolist(), strict=True))
    slow = {look for look, each in zip(looks, (counted > 1) & (best >= SLOW_TIMES), strict=True) if each}
    others = _always_together(rank, scope.astype(np.int64), group, slow)
    elsewhere = {look for look, each in zip(looks, best, strict=True) if each >= SLOW_TIMES}
    is_slow = {look: _is_slow(look, slow, others, elsewhere) for look in looks}
    columns = (
        *(rank[first][place], [scopes[code] for code in scope[first][place]], counted, best, worst),
        [is_slow[look] for look in looks],
        [others[look] if is_slow[look] is None else [] for look in looks],
    )
    arrays = (pa.array(values, each) for values, each in zip(columns, _SPEED_COLUMNS.values(), strict=True))
    table = pa.table(dict(zip(_SPEED_COLUMNS, arrays, strict=True)))
    return table.sort_by([("slow", "descending"), ("best_ratio", "descending"), ("rank", "ascending")])


@dataclass(frozen=True, slots=True)
class _Compared:
    """A rank's part in each communication that others could be compared with.

    Attributes:
        ratio: its transfer to the usual one of its kind. group: number of the set of ranks that communicates.
        scope, dimension: codes into ``scopes`` and ``dimensions``, of which the last is None.
    """

    rank: Int64
    scope: Int64
    dimension: Int64
    group: Int64
    ratio: npt.NDArray[np.float64]
    scopes: list[str | None]
    dimensions: list[str | None]


def _compared(collectives: pa.Table) -> _Compared:
    """Hold large transfers against those of like groups: of one dimension, operation, size and scope."""
    # With a member missing, what looks like a transfer may be a wait for it.
    whole = pc.and_(pc.is_valid(collectives["last_transfer_ns"]), pc.is_null(collectives["fault"]))
    # Between nodes a transfer takes longer than inside of one: where nodes are unknown, no two groups are alike.
    rows = collectives.filter(pc.and_(whole, pc.is_valid(collectives["scope"])))
    rows = rows.filter(pa.array(~_was_there_before(rows)))
    rank, size = (optional_integers(rows, name) for name in ("rank", "bytes"))
    transfer = _transfers(rows)
    large = np.flatnonzero(((size == MISSING) | (size >= LATENCY_BYTES)) & (transfer > 0))
    rows, rank, size, transfer = rows.take(pa.array(large)), rank[large], size[large], transfer[large]
    dimension, scope = codes(rows, "dimension"), codes(rows, "scope")
    words: tuple[list[str | None], list[str | None]] = [*scope[1], None], [*dimension[1], None]
    if not len(rank):
        none = np.empty(0, np.int64)
        return _Compared(none, none, none, none, none.astype(np.float64), *words)
    _, kind = number_groups(dimension[0], codes(rows, "operation")[0], scope[0], size)
    # Against itself alone no group can be an outlier.
    group = _group_numbers(rows)
    of_group, member = number_groups(kind, group)
    groups = np.bincount(kind[of_group])
    # The lower median of the groups: with one of two slow, the middle between them is usual for neither.
    usual = lower_medians(
        kind[of_group].astype(np.int64), lower_medians(member.astype(np.int64), transfer, len(of_group)), len(groups)
    )
    found = np.flatnonzero(groups[kind] > 1)
    ratio = transfer[found] / np.maximum(usual[kind[found]], 1)
    scopes, dimensions = scope[0][found].astype(np.int64), dimension[0][found].astype(np.int64)
    return _Compared(rank[found], scopes, dimensions, group[found], ratio, *words)


def _transfers(rows: pa.Table) -> Int64:
    """How long each communication took once its last member was there; a message as long as its slower end, for one
    that sends into buffers ends before what it sends has passed."""
    transfer = optional_integers(rows, "last_transfer_ns")
    if "transfer_aligned_ns" not in rows.column_names or not rows.num_rows:
        return transfer
    messages = pa.array([Operation.SEND, Operation.RECEIVE, Operation.SEND_RECEIVE], pa.string())
    is_message = np.asarray(pc.is_in(rows["operation"].cast(pa.string()), messages))
    communication, own = optional_integers(rows, "communication"), optional_integers(rows, "transfer_aligned_ns")
    slower = np.zeros(int(communication.max()) + 1, np.int64)
    np.maximum.at(slower, communication, np.where(is_message, own, 0))
    return np.maximum(transfer, slower[communication])


def _was_there_before(rows: pa.Table) -> Bool:
    """Mark what was all there when its receiver came, as it was sent ahead: its transfer is a copy alone."""
    if "ahead" not in rows.column_names or not rows.num_rows:
        return np.zeros(rows.num_rows, dtype=bool)
    ahead = np.asarray(pc.fill_null(rows["ahead"], False).to_numpy(zero_copy_only=False), dtype=bool)
    rank, communication = optional_integers(rows, "rank"), optional_integers(rows, "communication")
    last = optional_integers(rows, "last_rank_aligned")
    is_sent_ahead = np.isin(communication, communication[ahead])
    return is_sent_ahead & np.isin(communication, communication[~ahead & is_sent_ahead & (rank == last)])


def link_groups(collectives: pa.Table, speeds: pa.Table) -> pa.Table:
    """Groups whose transfers are slow though no rank's links are said to be: in one dimension, or with all its ranks.

    A group is slow where nearly all of its transfers take ``SLOW_TIMES`` those of like groups, a single one twice that
    of like groups. The slow link is of one of its ranks that no other group shows to be fast, and that is in all slow
    groups of the other scope; where that is one rank alone, it is named.

    Args:
        speeds: as ``link_speeds`` gives it; what its ranks explain is no group's.

    Returns:
        The table ``link_groups``, the slowest first.
    """
    compared = _compared(collectives)
    told = {row["rank"] for row in speeds.to_pylist() if row["slow"] is not False}
    first, number = number_groups(compared.scope, compared.group)
    low = grouped_quantile(compared.ratio, number, len(first), _NEARLY_ALL)
    middle = grouped_quantile(compared.ratio, number, len(first), 0.5)
    count = np.bincount(number, minlength=len(first))
    members = [sorted(set(compared.rank[number == group].tolist())) for group in range(len(first))]
    scopes = [compared.scopes[code] for code in compared.scope[first]]
    fast = {
        (rank, scopes[group]) for group in range(len(first)) if middle[group] < SLOW_TIMES for rank in members[group]
    }
    slow: dict[int, list[int]] = {}
    for group in range(len(first)):
        # Of two transfers of each member one may be a chance, and one alone where it is not far slower.
        least = SLOW_TIMES if count[group] // len(members[group]) > 1 else SINGLE_TIMES
        if low[group] >= least and told.isdisjoint(members[group]):
            slow[group] = [rank for rank in members[group] if (rank, scopes[group]) not in fast] or members[group]
    rows = []
    for group, own in slow.items():
        # One fault explains slow groups inside and outside of a node where one rank is in both.
        others = [each for other, each in slow.items() if scopes[other] != scopes[group]]
        both = sorted(set(own).intersection(*others)) if others else []
        suspects = both if len(both) == 1 else own
        rows.append(
            {
                "dimension": compared.dimensions[compared.dimension[first[group]]],
                "scope": scopes[group],
                "ranks": spanned(suspects),
                "members": suspects,
                "rank": suspects[0] if len(suspects) == 1 else None,
                "of_ranks": len(members[group]),
                "transfers": int(count[group]) // len(members[group]),
                "ratio": float(middle[group]),
            }
        )
    alone = {row["rank"] for row in rows if row["rank"] is not None}
    kept: dict[tuple[object, object], dict[str, object]] = {}
    for row in sorted(rows, key=lambda each: -each["ratio"]):
        if row["rank"] is not None or not alone & set(row["members"]):
            kept.setdefault((row["ranks"], row["scope"]), row)
    return pa.Table.from_pylist(list(kept.values()), schema=LINK_GROUPS.schema)


_NEARLY_ALL = 0.2
"""Quantile of a slow group's transfers that is slow, too."""

_SPEED_COLUMNS = {
    **{"rank": pa.int64(), "scope": pa.string(), "dimensions": pa.int64()},
    **{"best_ratio": pa.float64(), "worst_ratio": pa.float64(), "slow": pa.bool_()},
    "or_of": pa.list_(pa.int64()),
}

Look = tuple[int, int]
"""A rank and the scope of its links."""


def _always_together(
    rank: npt.NDArray[np.int64], scope: npt.NDArray[np.int64], group: npt.NDArray[np.int64], slow: set[Look]
) -> dict[Look, list[int]]:
    """For each rank whose links look slow, the others of them that are in all its groups of that scope."""
    groups: dict[Look, set[int]] = {}
    members: dict[int, set[int]] = {}
    for one, of_scope, number in np.unique(np.stack((rank, scope, group)), axis=1).T.tolist():
        if (one, of_scope) in slow:
            groups.setdefault((one, of_scope), set()).add(number)
            members.setdefault(number, set()).add(one)
    return {
        (one, of_scope): sorted(set.intersection(*(members[number] for number in numbers)) - {one})
        for (one, of_scope), numbers in groups.items()
    }


def _is_slow(look: Look, slow: set[Look], others: dict[Look, list[int]], high: set[Look]) -> bool | None:
    """Whether the links are slow; None where they cannot be separated from those of the others.

    Args:
        slow: whose links look slow. others: see ``_always_together``. high: whose transfers take long, of all scopes.
    """
    if look not in slow:
        return False
    rank, scope = look
    # Another that is slow in groups without this one, too, explains all that is slow of it.
    if any(rank not in others[other, scope] for other in others[look]):
        return False
    both = {one for one, of_scope in high if of_scope != scope} & {rank, *others[look]}
    if not others[look] or both == {rank}:
        return True
    return False if both and rank not in both else None


def _group_numbers(rows: pa.Table) -> npt.NDArray[np.int64]:
    """A number for each set of ranks that communicate together: a group by name, a message by its two ranks."""
    name, _ = codes(rows, "group_name")
    communication, rank = optional_integers(rows, "communication"), optional_integers(rows, "rank")
    lowest = np.full(int(communication.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(lowest, communication, rank)
    return number_groups(name, lowest[communication])[1]
