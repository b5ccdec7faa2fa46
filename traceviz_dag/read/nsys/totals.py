"""What the operations of a GPU add up to in a window; over the whole capture a profile keeps it as table ``totals``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.read.events import KERNEL
from traceviz_dag.read.nsys.profile import SCHEMAS
from traceviz_dag.read.nsys.rows import Array, Runs, integers_of
from traceviz_dag.read.nsys.store import codes_of

OF_NAMES, OF_SHORT_NAMES, OF_STREAMS, OF_GPU = range(4)
"""Codes of ``totals.of``."""

_NOTHING = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Totals:
    """Operations of one GPU in one window by a number that each has, of its name or its stream; an entry a number.

    Attributes:
        number: ascending.
        last: place of the last operation among those given.
        count: operations that start in the window.
        inside_ns: sum of the durations inside the window.
        whole_ns, least_ns, most_ns: of the whole durations of those counted; 0 where none is.
    """

    number: Int64
    last: Int64
    count: Int64
    inside_ns: Int64
    whole_ns: Int64
    least_ns: Int64
    most_ns: Int64


def totals_by(number: Array, starts: Int64, ends: Int64, window: tuple[int, int], started: Bool) -> Totals:
    """Add up the operations of a GPU by number.

    Args:
        started: which start in the window.
    """
    order, first = _grouped(number)
    starts, ends = starts[order], ends[order]
    length = ends - starts
    inside, counted = length, started[order]
    if len(starts) and (starts.min() < window[0] or ends.max() > window[1]):
        inside = np.maximum(np.minimum(ends, window[1]) - np.maximum(starts, window[0]), 0)
    if not len(first):
        return Totals(*[np.empty(0, dtype=np.int64)] * 7)
    count = np.add.reduceat(counted, first, dtype=np.int64)
    whole = length if counted.all() else np.where(counted, length, 0)
    least = length if counted.all() else np.where(counted, length, _NOTHING)
    return Totals(
        number=number[order[first]].astype(np.int64),
        last=order[np.append(first[1:], len(order)) - 1],
        count=count,
        inside_ns=np.add.reduceat(inside, first),
        whole_ns=np.add.reduceat(whole, first),
        least_ns=np.where(count > 0, np.minimum.reduceat(least, first), 0),
        most_ns=np.maximum.reduceat(whole, first),
    )


def streams_of(
    stream: Int64, starts: Int64, ends: Int64, window: tuple[int, int], started: Bool
) -> tuple[Int64, Int64, Int64]:
    """The streams of a GPU, ascending, how many operations start on each in a window, and their union in it, ns.

    Operations come by start.
    """
    order, first = _grouped(stream)
    counted = started[order]
    busy = [busy_ns(starts[order[a:b]], ends[order[a:b]], window) for a, b in pairwise([*first.tolist(), len(order)])]
    counts = np.add.reduceat(counted, first, dtype=np.int64) if len(first) else first
    return stream[order[first]], counts, np.array(busy, dtype=np.int64)


def busy_ns(starts: Int64, ends: Int64, window: tuple[int, int]) -> int:
    """How much of a window at least one operation covers; operations come by start."""
    reached = np.clip(np.maximum.accumulate(ends), *window)
    before = np.append(window[0], reached[:-1])
    return int(np.maximum(reached - np.maximum(before, starts), 0).sum())


def totals_table(operations: pa.Table) -> pa.Table:
    """Table ``totals`` of table ``operations``."""
    runs = Runs.of(integers_of(operations["device"]))
    parts = [
        _of_gpu(gpu, operations.slice(first, count))
        for gpu, first, count in zip(runs.keys.tolist(), runs.first.tolist(), runs.count.tolist(), strict=True)
    ]
    return pa.concat_tables([SCHEMAS["totals"].empty_table(), *parts])


def _of_gpu(gpu: int, operations: pa.Table) -> pa.Table:
    starts = integers_of(operations["start_ns"])
    ends = starts + integers_of(operations["duration_ns"])
    kernel = integers_of(operations["category"]) == KERNEL
    name, short = codes_of(operations["name"]), codes_of(operations["short_name"])
    window = int(starts.min()), int(ends.max())
    started = np.ones(len(starts), dtype=bool)
    names = totals_by(name, starts, ends, window, started)
    short_of = np.zeros(int(name.max()) + 1, dtype=short.dtype)
    short_of[name] = short
    # Mostly a name has one short name, so that those of names need only be added up.
    one_each = (short_of[name] == short).all()
    shorts = (
        _added(names, short_of[names.number].astype(np.int64))
        if one_each
        else totals_by(short, starts, ends, window, started)
    )
    stream, of_stream, busy = streams_of(integers_of(operations["stream"]), starts, ends, window, started)
    parts = [
        _rows(of, name=name[found.last], kernel=kernel[found.last], **_columns(found))
        for of, found in ((OF_NAMES, names), (OF_SHORT_NAMES, shorts))
    ]
    parts.append(_rows(OF_STREAMS, number=stream, count=of_stream, busy_ns=busy))
    parts.append(_rows(OF_GPU, number=[0], count=[started.sum()], busy_ns=[busy_ns(starts, ends, window)]))
    table = pa.concat_tables(parts)
    for column, value in (("device", gpu), ("window_start_ns", window[0]), ("window_end_ns", window[1])):
        values = pa.array(np.full(table.num_rows, value, dtype=np.int64))
        table = table.set_column(table.column_names.index(column), column, values)
    return table


def _added(found: Totals, number: Array) -> Totals:
    """Totals whose entries of one number are added up."""
    order, first = _grouped(number)
    count = np.add.reduceat(found.count[order], first)
    least = np.where(found.count > 0, found.least_ns, _NOTHING)
    return Totals(
        number=number[order[first]].astype(np.int64),
        last=np.maximum.reduceat(found.last[order], first),
        count=count,
        inside_ns=np.add.reduceat(found.inside_ns[order], first),
        whole_ns=np.add.reduceat(found.whole_ns[order], first),
        least_ns=np.where(count > 0, np.minimum.reduceat(least[order], first), 0),
        most_ns=np.maximum.reduceat(found.most_ns[order], first),
    )


def _columns(found: Totals) -> dict[str, Int64]:
    return {name: getattr(found, name) for name in Totals.__slots__ if name != "last"}


def _rows(of: int, **columns: npt.ArrayLike) -> pa.Table:
    """Rows of ``totals``; what is not given is 0."""
    rows = len(np.asarray(columns["number"]))
    given = {"kernel": np.zeros(rows, dtype=bool), "of": np.full(rows, of), **columns}
    schema, zero = SCHEMAS["totals"], np.zeros(rows, dtype=np.int64)
    arrays = [pa.array(np.asarray(given.get(field.name, zero)), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _grouped(number: Array) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The order by number, the former one among equals, and where in it each number begins."""
    few = len(number) and int(number.min()) >= 0 and int(number.max()) < 2**16
    # A stable sort of 16-bit integers is a radix sort.
    order = np.argsort(number.astype(np.uint16) if few else number, kind="stable")
    ordered = number[order]
    return order, np.flatnonzero(np.append(len(number) > 0, ordered[1:] != ordered[:-1])[: len(number)])
