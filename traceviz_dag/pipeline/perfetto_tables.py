"""Our tables beside a trace in Perfetto's trace processor: categories and micro-batches, joined to its slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.arrays import Int64
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import rank_traces, read_topology
from traceviz_dag.pipeline.ranks import analyse_rank
from traceviz_dag.read.kineto.peek import peek
from traceviz_dag.read.perfetto.session import TraceSession

KERNELS, MICROBATCHES = "traceviz_kernels", "traceviz_microbatches"
TABLE_NAMES = (KERNELS, MICROBATCHES)

KERNEL_COLUMNS = (
    *("kernel_id", "kind", "phase", "phase_evidence", "dimension", "dimension_evidence", "category", "role", "stage"),
    *("chunk", "microbatch", "step", "module", "layer", "operator", "device", "stream", "correlation"),
    *("collective", "group_name", "group_description", "dtype", "in_elements", "bytes"),
)
MICROBATCH_COLUMNS = (
    *("device", "step", "stage", "chunk", "microbatch", "phase", "dimension", "compute_ns", "communication_ns"),
    *("hidden_ns", "exposed_ns", "memory_ns", "busy_ns", "idle_ns"),
)

_INSERTED_BYTES = 400_000
_DEVICE_SLICES = """
SELECT id, ts, dur, name, extract_arg(arg_set_id, 'args.correlation') AS correlation
FROM slice WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset')
"""
# By an argument: Perfetto's filter for an unequal category drops slices of other categories, too.
_NOT_OF_PATH = "extract_arg({}, 'debug.segment') IS NULL"
_OWN_EXPORT = "SELECT count(*) AS found FROM args WHERE flat_key = 'debug.kernel_id'"


@dataclass(frozen=True, slots=True)
class Joined:
    """What came of joining.

    Attributes:
        kernels: rows of ``traceviz_kernels``.
        without_slice: those whose slice Perfetto does not have; their ``slice_id`` is NULL.
    """

    kernels: int
    without_slice: int


def add_tables(session: TraceSession) -> Joined:
    """Make ``traceviz_kernels`` and ``traceviz_microbatches`` in a session; times are those of its slices.

    A Kineto trace is classified as ``traceviz classify`` does it; a trace that ``traceviz perfetto export`` wrote holds
    the rows itself.

    Raises:
        UsageError: the trace is neither.
        BadInputError: the trace cannot be classified.
    """
    if session.query(_OWN_EXPORT)["found"][0].as_py():
        return _from_own_export(session)
    try:
        inputs = inputs_below([session.path])[0]
        trace = replace(rank_traces(inputs, {entry.rank for entry in inputs.ranks})[0], step=None)
    except (BadInputError, IndexError) as error:
        raise UsageError(f"{session.path} is no Kineto trace and no export: it has no tables {KERNELS}") from error
    tables = analyse_rank(trace, read_topology(inputs), load_rules(None))
    shift = peek(session.path).header.base_time_ns + session.base_ns
    kernels = tables["kernels"]
    slice_id = _slices_of(kernels, session.query(_DEVICE_SLICES), shift)
    _create(session, KERNELS, _moved(kernels, KERNEL_COLUMNS, "start_ns", "duration_ns", shift, slice_id))
    microbatches = tables["microbatches"]
    length = pc.subtract(microbatches["span_end_ns"], microbatches["span_start_ns"])
    microbatches = microbatches.append_column("span_ns", length)
    _create(session, MICROBATCHES, _moved(microbatches, MICROBATCH_COLUMNS, "span_start_ns", "span_ns", shift, None))
    session.query(f"CREATE PERFETTO INDEX traceviz_kernels_slice ON {KERNELS}(slice_id)")
    return Joined(kernels.num_rows, slice_id.null_count)


def _slices_of(kernels: pa.Table, slices: pa.Table, shift_ns: int) -> pa.Array:
    """The slice of each kernel: of one start, duration, correlation and name; NULL where there is none."""
    names = {name: code for code, name in enumerate(pc.unique(kernels["name"].cast(pa.string())).to_pylist())}
    here = _keys(kernels["start_ns"], kernels["duration_ns"], kernels["correlation"], kernels["name"], names, shift_ns)
    there = _keys(slices["ts"], slices["dur"], slices["correlation"], slices["name"], names, 0) if len(slices) else None
    if there is None:
        return pa.nulls(len(kernels), pa.int64())
    _, inverse = np.unique(np.concatenate((here, there)), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    own, other = inverse[: len(here)], inverse[len(here) :]
    # Twins, equal in every key, are taken in order.
    place = np.full(len(here), -1, np.int64)
    queue = np.argsort(other, kind="stable")
    first = np.searchsorted(other[queue], own)
    turn = _turns(own)
    at = first + turn
    found = (at < len(queue)) & (other[queue[np.minimum(at, len(queue) - 1)]] == own)
    identities = np.asarray(slices["id"], np.int64)
    place[found] = identities[queue[at[found]]]
    return pa.array(place, mask=~found)


def _turns(values: Int64) -> Int64:
    """How many equal values are before each."""
    order = np.argsort(values, kind="stable")
    first = np.searchsorted(values[order], values[order])
    turns = np.empty(len(values), np.int64)
    turns[order] = np.arange(len(values)) - first
    return turns


def _keys(
    start: pa.ChunkedArray,
    duration: pa.ChunkedArray,
    correlation: pa.ChunkedArray,
    name: pa.ChunkedArray,
    names: dict[str, int],
    shift_ns: int,
) -> Int64:
    codes = [names.get(each, -1) for each in name.cast(pa.string()).to_pylist()]
    known = correlation.cast(pa.int64()).fill_null(-1)
    columns = (np.asarray(start, np.int64) - shift_ns, np.asarray(duration, np.int64), np.asarray(known, np.int64))
    return np.stack((*columns, np.array(codes, np.int64)), axis=1)


def _moved(
    table: pa.Table, columns: Sequence[str], start: str, length: str, shift_ns: int, slice_id: pa.Array | None
) -> pa.Table:
    """The chosen columns behind the time, as the session has it."""
    found = {"slice_id": slice_id} if slice_id is not None else {}
    found |= {"ts": pc.subtract(table[start], shift_ns), "dur": table[length]}
    return pa.table(found | {name: table[name] for name in columns})


def _create(session: TraceSession, name: str, table: pa.Table) -> None:
    """Make a table in the trace processor, through an intermediate one that takes rows."""
    typed = ", ".join(f"{column.name} {_sql_type(column.type)}" for column in table.schema)
    session.query(f"CREATE TABLE {name}_rows ({typed})")
    for values in _value_lists(table):
        session.query(f"INSERT INTO {name}_rows VALUES {values}")
    session.query(f"CREATE PERFETTO TABLE {name} AS SELECT * FROM {name}_rows; DROP TABLE {name}_rows")


def _value_lists(table: pa.Table) -> Iterator[str]:
    columns = [[_literal(value) for value in column.to_pylist()] for column in table.columns]
    pending: list[str] = []
    size = 0
    for row in zip(*columns, strict=True):
        text = f"({','.join(row)})"
        pending.append(text)
        size += len(text)
        if size > _INSERTED_BYTES:
            yield ",".join(pending)
            pending, size = [], 0
    if pending:
        yield ",".join(pending)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int | float) else "'" + str(value).replace("'", "''") + "'"


def _sql_type(kind: pa.DataType) -> str:
    return "INTEGER" if pa.types.is_integer(kind) else "REAL" if pa.types.is_floating(kind) else "TEXT"


def _from_own_export(session: TraceSession) -> Joined:
    kept = (
        column for column in (*KERNEL_COLUMNS, "rank", "wait_ns", "last_rank") if column not in ("category", "kind")
    )
    facts = ", ".join(f"extract_arg(arg_set_id, 'debug.{column}') AS {column}" for column in kept)
    session.query(
        f"CREATE PERFETTO TABLE {KERNELS} AS SELECT id AS slice_id, ts, dur, category, {facts} FROM slice "
        f"WHERE extract_arg(arg_set_id, 'debug.kernel_id') IS NOT NULL AND {_NOT_OF_PATH.format('arg_set_id')}"
    )
    session.query(
        f"CREATE PERFETTO TABLE {MICROBATCHES} AS SELECT s.id AS slice_id, ts, dur, s.name, t.name AS track, "
        "extract_arg(s.arg_set_id, 'debug.phase') AS phase, extract_arg(s.arg_set_id, 'debug.chunk') AS chunk, "
        "extract_arg(s.arg_set_id, 'debug.microbatch') AS microbatch FROM slice s JOIN track t ON s.track_id = t.id "
        "WHERE extract_arg(s.arg_set_id, 'debug.microbatch') IS NOT NULL "
        f"AND extract_arg(s.arg_set_id, 'debug.kernel_id') IS NULL AND {_NOT_OF_PATH.format('s.arg_set_id')}"
    )
    session.query(f"CREATE PERFETTO INDEX traceviz_kernels_slice ON {KERNELS}(slice_id)")
    rows = session.query(f"SELECT count(*) AS n FROM {KERNELS}")["n"][0].as_py()
    return Joined(rows, 0)


def add_tables_where_named(session: TraceSession, sql: str) -> Joined | None:
    """Make the tables when a statement names one for the first time; None where nothing was made."""
    if not any(name in sql for name in TABLE_NAMES):
        return None
    there = session.query(f"SELECT count(*) AS n FROM sqlite_master WHERE name = '{KERNELS}'")["n"][0].as_py()
    return None if there else add_tables(session)
