"""The second reader of Kineto traces: Perfetto parses the file, PerfettoSQL hands out its events."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from traceviz_dag.read.columns import ColumnBuilder
from traceviz_dag.read.event_decoder import Piece
from traceviz_dag.read.events import ReadReport, TraceEvents
from traceviz_dag.read.kineto_schema import GROUP_OF_CODE, REST_GROUP, Arguments, Event, category_code
from traceviz_dag.read.peek import peek
from traceviz_dag.read.perfetto.engines import Engine
from traceviz_dag.read.perfetto.session import TraceSession, open_trace

_EVENTS_SQL = "SELECT ts, dur, name, category, arg_set_id, pid, tid FROM traceviz_events ORDER BY slice_id"
_THREADS_SQL = "SELECT p.pid, t.tid, t.name FROM thread t LEFT JOIN process p USING (upid) WHERE t.name IS NOT NULL"
_PREFIX = "args."


@cache
def kineto_sql() -> str:
    """The SQL package that gives Kineto events, launches, ancestors and steps."""
    return Path(__file__).with_name("sql").joinpath("kineto.sql").read_text()


def read_with_perfetto(path: Path, engine: Engine | None = None) -> TraceEvents:
    """Read a Kineto trace by way of Perfetto's trace processor.

    What its importer drops is missing, and ``report`` counts it. Facts of the header are read from the file itself:
    Perfetto does not keep them.

    Raises:
        BadInputError: the file cannot be read.
        UsageError: there is no trace processor.
    """
    with open_trace(path, engine) as session:
        return read_session(session)


def read_session(session: TraceSession) -> TraceEvents:
    """The events of a loaded Kineto trace, by start."""
    session.query(kineto_sql())
    rows = session.query(_EVENTS_SQL)
    header = peek(session.path).header
    builder = ColumnBuilder()
    builder.add(_piece(session, rows))
    tables = builder.finish(header.base_time_ns)
    lost = {problem.name: problem.count for problem in session.problems}
    return TraceEvents(
        header=header,
        strings=tables.strings,
        threads=builder.threads.threads(),
        host=tables.host,
        launches=tables.launches,
        device=tables.device,
        communication_operators=tables.communication_operators,
        operator_facts=tables.operator_facts,
        report=ReadReport(rows.num_rows, dict(builder.dropped + Counter(lost)), session.read_fault),
    )


def _piece(session: TraceSession, rows: pa.Table) -> Piece:
    """The rows as our own decoder hands them out."""
    categories = rows["category"].to_pylist()
    code_of = {text: category_code(text) for text in set(categories)}
    codes = np.array([code_of[text] for text in categories], np.uint8)
    kept = np.flatnonzero(GROUP_OF_CODE[codes] < REST_GROUP)
    chosen = rows.take(pa.array(kept))
    arguments = _arguments(session)
    nothing: dict[str, Any] = {}
    events = [
        Event(category, name or "", pid, tid, 0.0, duration / 1000, _converted(arguments.get(number, nothing)))
        for category, name, pid, tid, duration, number in zip(
            *(chosen[column].to_pylist() for column in ("category", "name", "pid", "tid", "dur", "arg_set_id")),
            strict=True,
        )
    ]
    starts = np.asarray(chosen["ts"], np.int64) + session.base_ns if len(chosen) else np.empty(0, np.int64)
    threads = session.query(_THREADS_SQL).to_pylist()
    names = [(row["pid"] or 0, row["tid"], row["name"]) for row in threads]
    return Piece(rows.num_rows, events, codes[kept], starts, names, Counter())


def _converted(arguments: dict[str, Any]) -> Any:
    return msgspec.convert(arguments, Arguments)


def _arguments(session: TraceSession) -> dict[int, dict[str, Any]]:
    """Argument set → the arguments that our columns hold; arrays come as one row an element."""
    wanted = [field.encode_name for field in msgspec.structs.fields(Arguments)]
    plain = ", ".join(f"'{_PREFIX}{name}'" for name in wanted)
    rows = session.query(
        "SELECT arg_set_id, flat_key, key, int_value, string_value, real_value FROM args "
        f"WHERE flat_key IN ({plain}) ORDER BY arg_set_id, id"
    )
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    columns = (
        rows[name].to_pylist() for name in ("arg_set_id", "flat_key", "key", "int_value", "string_value", "real_value")
    )
    for number, flat, key, integer, text, real in zip(*columns, strict=True):
        value = integer if integer is not None else text if text is not None else real
        name = flat[len(_PREFIX) :]
        if key == flat:
            found[number][name] = value
        else:
            found[number].setdefault(name, []).append(value)
    return found
