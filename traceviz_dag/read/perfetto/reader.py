"""The second reader of Kineto traces: Perfetto parses the file, PerfettoSQL hands out its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from traceviz_dag.read.events import MISSING, PYTHON_FUNCTION, TraceEvents
from traceviz_dag.read.kineto.columns import ColumnBuilder
from traceviz_dag.read.kineto.packing import floats
from traceviz_dag.read.kineto.peek import peek
from traceviz_dag.read.kineto.rows import Piece, StructRows
from traceviz_dag.read.kineto.schema import (
    GROUP_OF_CODE,
    HOST_GROUP,
    LAUNCH_GROUP,
    REST_GROUP,
    SYNCHRONIZATION_GROUP,
    Arguments,
    Event,
    category_code,
)
from traceviz_dag.read.perfetto.engines import Engine
from traceviz_dag.read.perfetto.session import TraceSession, open_trace

_THREADS_SQL = "SELECT p.pid, t.tid, t.name FROM thread t LEFT JOIN process p USING (upid) WHERE t.name IS NOT NULL"
_COMMUNICATION_OPERATOR = "record_param_comms"
_SIZES = ("grid", "block")

_KEYS: dict[str, str] = {part.name: part.encode_name for part in msgspec.structs.fields(Arguments)}
"""Attribute of an event's arguments → its key in the file."""

_PYTHON = ("python_id", "python_parent_id")
_OPERATOR = ("external_id", "sequence_number", "forward_thread")
_LAUNCH = ("external_id", "correlation", "old_external_id")
_COMMUNICATION = (
    *("collective", "in_elements", "out_elements", "group_size", "dtype", "in_split", "out_split", "group_name"),
    *("group_description", "group_ranks", "sequence", "source_rank", "destination_rank"),
)
_DEVICE = (
    *("external_id", "device", "stream", "correlation", "registers_per_thread", "shared_memory_bytes", "grid", "block"),
    *("bytes", "graph_id", "graph_node_id", "old_external_id"),
)
_SYNCHRONIZATION = (
    "wait_on_stream",
    "record_correlation",
    "event",
    "recorded_event",
    "stream",
    "correlation",
    "device",
)


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
    builder = ColumnBuilder()
    builder.add(_piece(session))
    builder.dropped += Counter({problem.name: problem.count for problem in session.problems})
    events = builder.finish(peek(session.path).header)
    return replace(events, report=replace(events.report, fault=session.read_fault))


def _piece(session: TraceSession) -> Piece:
    """All events of the categories that have a table, as our own decoder hands them out, by start."""
    texts = session.query("SELECT DISTINCT category FROM traceviz_events")
    code_of = {text: category_code(text) for text in texts.column("category").to_pylist()}
    by_group: dict[tuple[str, ...], list[str]] = {
        attributes: [] for attributes in (_PYTHON, _OPERATOR, _LAUNCH, _DEVICE, _SYNCHRONIZATION)
    }
    for text, code in code_of.items():
        if GROUP_OF_CODE[code] < REST_GROUP:
            by_group[_arguments_of(code)].append(text)
    communicates = f"name = '{_COMMUNICATION_OPERATOR}'"
    rows = [
        *_rows(session, by_group[_PYTHON], _PYTHON),
        *_rows(session, by_group[_OPERATOR], _OPERATOR, f"NOT {communicates}"),
        *_rows(session, by_group[_OPERATOR], (*_OPERATOR, *_COMMUNICATION), communicates),
        *_rows(session, by_group[_LAUNCH], _LAUNCH),
        *_rows(session, by_group[_DEVICE], (*_DEVICE, *_COMMUNICATION)),
        *_rows(session, by_group[_SYNCHRONIZATION], _SYNCHRONIZATION),
    ]
    rows.sort(key=lambda row: row[0])
    events = [event for _, _, event in rows]
    codes = np.array([code_of[event.cat] for event in events], np.uint8)
    starts = np.array([start for _, start, _ in rows], np.int64) + session.base_ns
    names = [(row["pid"] or 0, row["tid"], row["name"]) for row in session.query(_THREADS_SQL).to_pylist()]
    durations = floats([event.dur for event in events])
    return Piece(len(events), StructRows(events), codes, starts, durations, names, Counter())


def _arguments_of(code: int) -> tuple[str, ...]:
    group = GROUP_OF_CODE[code]
    if group == HOST_GROUP:
        return _PYTHON if code == PYTHON_FUNCTION else _OPERATOR
    if group == SYNCHRONIZATION_GROUP:
        return _SYNCHRONIZATION
    return _LAUNCH if group == LAUNCH_GROUP else _DEVICE


def _rows(
    session: TraceSession, categories: Sequence[str], attributes: Sequence[str], condition: str = "TRUE"
) -> list[tuple[int, int, Event]]:
    """(slice, start, event) of all events of some categories, with the arguments that their table holds."""
    if not categories:
        return []
    columns = [column for attribute in attributes for column in _argument_sql(attribute)]
    quoted = ", ".join("'" + text.replace("'", "''") + "'" for text in categories)
    table = session.query(
        f"SELECT slice_id, ts, category, name, pid, tid, dur{''.join(f', {column}' for column in columns)} "
        f"FROM traceviz_events WHERE category IN ({quoted}) AND {condition}"
    )
    lists = [column.to_pylist() for column in table.columns]
    known = lists[:7]
    arguments = _arguments(attributes, lists[7:], table.num_rows)
    return [
        (number, start, Event(category, name or "", pid, tid, 0.0, duration / 1000, told))
        for number, start, category, name, pid, tid, duration, told in zip(*known, arguments, strict=True)
    ]


def _argument_sql(attribute: str) -> list[str]:
    key = "args." + _KEYS[attribute].replace("'", "''")
    keys = [f"{key}[{axis}]" for axis in range(3)] if attribute in _SIZES else [key]
    return [f"extract_arg(arg_set_id, '{each}')" for each in keys]


def _arguments(attributes: Sequence[str], lists: list[list[Any]], count: int) -> list[Any]:
    columns = iter(lists)
    filled: list[list[Any]] = []
    for attribute in attributes:
        if attribute in _SIZES:
            axes = [next(columns) for _ in range(3)]
            filled.append([tuple(MISSING if part is None else part for part in row) for row in zip(*axes, strict=True)])
        else:
            filled.append([MISSING if value is None else value for value in next(columns)])
    rows = zip(*filled, strict=True) if filled else iter([()] * count)
    return [Arguments(**dict(zip(attributes, row, strict=True))) for row in rows]
