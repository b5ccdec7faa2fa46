"""Whether a link is slow or its peer late: the transfers of a rank's communications against those of others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.clocks.robust import grouped_quantile
from traceviz_dag.analyze.intervals import number_groups
from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.read.events import MISSING

SLOW_TIMES = 1.5
"""A rank's links are slow if its communications take this multiple of those of others, whomever it talks to."""

LATENCY_BYTES = 65_536
"""Messages below this size take as long on a slow link as on a fast one."""


def link_speeds(collectives: pa.Table) -> pa.Table:
    """Whether the links of a rank are slow, as opposed to its peers being late: transfers against those of others.

    Transfers are compared among communications of one dimension, operation, size and scope, small ones left out. A
    group is as slow as its slowest link; so a rank's links (inside its node, or out of it) are slow where each of two
    or more dimensions that use them is.

    Returns:
        A row per rank × scope: ``dimensions`` that could be compared, ``best_ratio`` and ``worst_ratio`` of its
        transfers to the usual ones (1 is usual), ``slow``; the slowest first.
    """
    # With a member missing, what looks like a transfer may be a wait for it.
    whole = pc.and_(pc.is_valid(collectives["last_transfer_ns"]), pc.is_null(collectives["fault"]))
    rows = collectives.filter(whole)
    rank, size, transfer = (optional_integers(rows, name) for name in ("rank", "bytes", "last_transfer_ns"))
    large = np.flatnonzero(((size == MISSING) | (size >= LATENCY_BYTES)) & (transfer > 0))
    rows, rank, size, transfer = rows.take(pa.array(large)), rank[large], size[large], transfer[large]
    if not len(rank):
        return pa.table({name: pa.array([], each) for name, each in _SPEED_COLUMNS.items()})
    dimension, scope = codes(rows, "dimension")[0], codes(rows, "scope")[0]
    _, kind = number_groups(dimension, codes(rows, "operation")[0], scope, size)
    usual = grouped_quantile(transfer.astype(np.float64), kind, int(kind.max()) + 1, 0.5)
    # Against itself alone no group can stand out.
    groups = np.bincount(np.unique(np.stack((kind, _group_numbers(rows))), axis=1)[0])
    comparable = np.flatnonzero(groups[kind] > 1)
    rank, dimension, scope = rank[comparable], dimension[comparable], scope[comparable]
    ratio = transfer[comparable] / np.maximum(usual[kind[comparable]], 1)
    first, cell = number_groups(rank, scope, dimension)
    typical = grouped_quantile(ratio, cell, len(first), 0.5)
    place, number = number_groups(rank[first], scope[first])
    best, worst = np.full(len(place), np.inf), np.zeros(len(place))
    np.minimum.at(best, number, typical)
    np.maximum.at(worst, number, typical)
    counted = np.bincount(number, minlength=len(place))
    names: list[str | None] = [*codes(rows, "scope")[1], None]
    columns = (
        *(rank[first][place], [names[code] for code in scope[first][place]], counted, best, worst),
        (counted > 1) & (best >= SLOW_TIMES),
    )
    arrays = (pa.array(values, each) for values, each in zip(columns, _SPEED_COLUMNS.values(), strict=True))
    table = pa.table(dict(zip(_SPEED_COLUMNS, arrays, strict=True)))
    return table.sort_by([("slow", "descending"), ("best_ratio", "descending"), ("rank", "ascending")])


_SPEED_COLUMNS = {
    **{"rank": pa.int64(), "scope": pa.string(), "dimensions": pa.int64()},
    **{"best_ratio": pa.float64(), "worst_ratio": pa.float64(), "slow": pa.bool_()},
}


def _group_numbers(rows: pa.Table) -> npt.NDArray[np.int64]:
    """A number for each set of ranks that communicate together: a group by name, a message by its two ranks."""
    name, _ = codes(rows, "group_name")
    communication, rank = optional_integers(rows, "communication"), optional_integers(rows, "rank")
    lowest = np.full(int(communication.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(lowest, communication, rank)
    return number_groups(name, lowest[communication])[1].astype(np.int64)
