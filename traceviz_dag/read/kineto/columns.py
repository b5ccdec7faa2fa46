"""Decoded Kineto events → columns, a piece of the file at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int32, Int64
from traceviz_dag.read.events import (
    CPU_OP,
    MISSING,
    OTHER_SYNCHRONIZATION,
    PYTHON_FUNCTION,
    UNRESOLVED,
    USER_ANNOTATION,
    DeviceRows,
    HostRows,
    LaunchRows,
    ReadReport,
    SynchronizationRows,
    TraceEvents,
    TraceHeader,
)
from traceviz_dag.read.kineto import packing
from traceviz_dag.read.kineto.communication_facts import FactRows
from traceviz_dag.read.kineto.event_decoder import Codes, Piece
from traceviz_dag.read.kineto.packing import Columns, GrowingTable, integers, triples
from traceviz_dag.read.kineto.schema import (
    DEVICE_GROUP,
    GROUP_OF_CODE,
    HOST_GROUP,
    LAUNCH_GROUP,
    SYNCHRONIZATION_CODE,
    SYNCHRONIZATION_GROUP,
    SYNCHRONIZATION_OF_NAME,
    TABLE_CODE_OF_CODE,
)
from traceviz_dag.read.kineto.stated_inputs import InputsOnce, annotated_communication, stated_communication
from traceviz_dag.read.kineto.threads import ThreadTable
from traceviz_dag.read.kineto.timestamps import EXACT_BELOW, to_nanoseconds
from traceviz_dag.read.secrets import masked_words

NO_TIME = "no time stamp that is a number"
NO_DURATION = "no duration"
BAD_DURATION = "negative or impossible duration"
"""Reasons in ``ColumnBuilder.dropped``."""

_COMMUNICATION_OPERATOR = "record_param_comms"
_UNTOLD_PROCESS = -1
_STREAM_ROW_OFFSET = 1_000_000
"""Kineto may put a synchronisation of stream N on row N + 1,000,000, beside the stream's own row."""
_UNSIGNED_NONE = 2**32 - 1


class ColumnBuilder:
    """Collects the columns of one trace file.

    Attributes:
        rows_read: events seen, of all categories.
        dropped: reason → number of events left out.
        threads: the host threads.
    """

    def __init__(self) -> None:
        self.rows_read = 0
        self.dropped: Counter[str] = Counter()
        self.threads = ThreadTable()
        self._strings: defaultdict[str, int] = defaultdict()
        self._strings.default_factory = self._strings.__len__
        self._strings[""] = 0
        self._inputs = InputsOnce()
        self._communication_code = self._strings[_COMMUNICATION_OPERATOR]
        self._host, self._launches = GrowingTable(HostRows, without=("input_sizes",)), GrowingTable(LaunchRows)
        self._device = GrowingTable(DeviceRows, without=("process", "collective"))
        self._synchronizations = GrowingTable(SynchronizationRows)
        self._device_facts, self._operator_facts = FactRows(), FactRows()

    @property
    def rows_kept(self) -> int:
        """Events that are rows of a table."""
        return self._host.rows + self._launches.rows + self._device.rows + self._synchronizations.rows

    def add(self, piece: Piece) -> None:
        """Append the events of a piece, in file order."""
        self.rows_read += piece.decoded
        self.dropped.update(piece.dropped)
        for named in piece.thread_names:
            self.threads.name(*named)
        rows, codes, start_ns = piece.rows, piece.codes, piece.start_ns
        duration = piece.duration_us
        good = (duration >= 0) & (duration < EXACT_BELOW) & (start_ns != MISSING)
        if not good.all():
            # The host call shows when a synchronisation was: of its own row the times are not needed.
            untimed = (codes == SYNCHRONIZATION_CODE) & ~good
            start_ns = np.where(untimed, np.where(start_ns == MISSING, 0, start_ns), start_ns)
            duration, good = np.where(untimed, 0.0, duration), good | untimed
            self._count_bad(duration, start_ns)
            rows = list(compress(rows, good.tobytes()))
            codes, start_ns, duration = codes[good], start_ns[good], duration[good]
        if rows:
            self._add_tables(rows, codes, start_ns, to_nanoseconds(duration))

    def finish(self, header: TraceHeader) -> TraceEvents:
        """Everything that was collected; the builder is spent."""
        device_rows = self._device.rows
        host = self._host.whole()
        host["input_sizes"] = self._inputs.sizes_of(host["inputs"], self._strings)
        launches, device, synchronizations = (
            table.whole() for table in (self._launches, self._device, self._synchronizations)
        )
        for columns in (host, launches, device, synchronizations):
            columns["start_ns"] += header.base_time_ns
        device["process"] = self._device_processes(device["correlation"], launches)
        operator_facts = self._operator_facts.dense(self._strings)
        device_facts = self._device_facts.spread(device_rows, self._strings)
        return TraceEvents(
            header=header,
            strings=masked_words(self._strings),
            threads=self.threads.threads(),
            host=HostRows(**host),
            launches=LaunchRows(**launches),
            device=DeviceRows(**device, collective=device_facts),
            synchronizations=SynchronizationRows(**synchronizations),
            communication_operators=self._operator_facts.rows(),
            operator_facts=operator_facts,
            operator_inputs=self._inputs.distinct,
            report=ReadReport(self.rows_read, dict(self.dropped)),
        )

    def _add_tables(self, rows: list[Any], codes: Codes, start_ns: Int64, duration_ns: Int64) -> None:
        columns: Columns = {
            "name": packing.codes(map(self._strings.__getitem__, [row.name for row in rows]), len(rows)),
            "category": TABLE_CODE_OF_CODE[codes],
            "start_ns": start_ns,
            "duration_ns": duration_ns,
        }
        groups = GROUP_OF_CODE[codes]
        processes = self.threads.process_ids.of([row.pid for row in rows])
        threads = self.threads.thread_ids.of([row.tid for row in rows])
        near = np.flatnonzero(groups < DEVICE_GROUP)
        columns["thread"] = np.zeros(len(rows), np.int32)
        columns["thread"][near] = self.threads.indices(processes[near], threads[near])
        for group, add in ((HOST_GROUP, self._add_host), (LAUNCH_GROUP, self._add_launches)):
            places = np.flatnonzero(groups == group)
            if len(places):
                add(_part(columns, places), _take(rows, places))
        places = np.flatnonzero(groups == DEVICE_GROUP)
        if len(places):
            self._add_device(_part(columns, places), _take(rows, places), processes[places], threads[places])
        places = np.flatnonzero(groups == SYNCHRONIZATION_GROUP)
        if len(places):
            own = {name: columns[name][places] for name in ("start_ns", "duration_ns")}
            self._synchronizations.append(
                own | _synchronization_columns(_take(rows, places), processes[places], threads[places])
            )

    def _add_host(self, columns: Columns, rows: list[Any]) -> None:
        python = np.flatnonzero(columns["category"] == PYTHON_FUNCTION)
        others = np.flatnonzero(columns["category"] != PYTHON_FUNCTION)
        functions = [rows[place].args for place in python.tolist()]
        operators = [rows[place].args for place in others.tolist()]
        count = len(rows)
        columns["python_id"] = _scattered(count, python, [row.python_id for row in functions])
        columns["python_parent_id"] = _scattered(count, python, [row.python_parent_id for row in functions])
        columns["external_id"] = _scattered(count, others, [row.external_id for row in operators])
        columns["sequence_number"] = _scattered(count, others, [row.sequence_number for row in operators])
        columns["forward_thread"] = _scattered(count, others, [row.forward_thread for row in operators])
        is_operator = columns["category"] == CPU_OP
        columns["inputs"] = np.zeros(count, np.int32)
        columns["inputs"][is_operator] = self._inputs.numbers(
            [rows[row] for row in np.flatnonzero(is_operator).tolist()]
        )
        stated = {
            row: stated_communication(rows[row].args)
            for row in np.flatnonzero((columns["name"] == self._communication_code) & is_operator).tolist()
        }
        for row in np.flatnonzero(columns["category"] == USER_ANNOTATION).tolist():
            if rows[row].name.startswith("nccl:") and (told := annotated_communication(rows[row].name, rows[row].args)):
                stated[row] = told
        if stated:
            at = sorted(stated)
            self._operator_facts.add(np.array(at, np.int64) + self._host.rows, [stated[row] for row in at])
        self._host.append(columns)

    def _add_launches(self, columns: Columns, rows: list[Any]) -> None:
        arguments = [row.args for row in rows]
        columns["correlation"] = integers([row.correlation for row in arguments])
        columns["external_id"] = _external_ids(arguments)
        self._launches.append(columns)

    def _add_device(self, columns: Columns, rows: list[Any], devices: Int64, streams: Int64) -> None:
        arguments = [row.args for row in rows]
        columns |= _device_columns(arguments)
        columns["device"] = _or_else(columns["device"], devices)
        columns["stream"] = _or_else(columns["stream"], streams)
        self._device_facts.add(np.arange(len(rows)) + self._device.rows, arguments)
        self._device.append(columns)

    def _count_bad(self, duration: npt.NDArray[np.float64], start_ns: Int64) -> None:
        timed = start_ns != MISSING
        reasons = {
            NO_TIME: ~timed,
            NO_DURATION: timed & np.isnan(duration),
            BAD_DURATION: timed & ((duration < 0) | (duration >= EXACT_BELOW)),
        }
        self.dropped.update({reason: int(bad.sum()) for reason, bad in reasons.items() if bad.any()})

    def _device_processes(self, correlation: Int64, launches: Columns) -> Int32:
        """Per device row the process whose launch has its correlation; -1 where none or several have."""
        process = self.threads.process_of_thread()
        if not process.any():
            return np.zeros(len(correlation), np.int32)
        owner = process[launches["thread"]]
        order = np.lexsort((owner, launches["correlation"]))
        launched, owner = launches["correlation"][order], owner[order]
        first = np.searchsorted(launched, correlation, "left")
        last = np.searchsorted(launched, correlation, "right") - 1
        told = np.full(len(correlation), _UNTOLD_PROCESS, np.int32)
        found = np.flatnonzero((last >= first) & (correlation != MISSING))
        agreed = found[owner[first[found]] == owner[last[found]]]
        told[agreed] = owner[first[agreed]]
        return told


def _synchronization_columns(rows: list[Any], devices: Int64, streams: Int64) -> Columns:
    arguments = [row.args for row in rows]
    kind = np.array([SYNCHRONIZATION_OF_NAME.get(row.name, OTHER_SYNCHRONIZATION) for row in rows], np.int8)
    streams = np.where(streams >= _STREAM_ROW_OFFSET, streams - _STREAM_ROW_OFFSET, streams)
    given = integers([row.stream for row in arguments])
    stream = _signed(_or_else(given, streams))
    return {
        "kind": kind,
        "device": _or_else(integers([row.device for row in arguments]), devices),
        "stream": np.where(stream < 0, MISSING, stream),
        "correlation": integers([row.correlation for row in arguments]),
        "wait_on_stream": _signed(integers([row.wait_on_stream for row in arguments])),
        "wait_on_device": np.full(len(rows), MISSING, np.int64),
        "record_correlation": _signed(integers([row.record_correlation for row in arguments])),
        "event": _or_else(
            integers([row.event for row in arguments]), integers([row.recorded_event for row in arguments])
        ),
    }


def _signed(values: Int64) -> Int64:
    """What older versions write as an unsigned 32-bit integer, -1 above all."""
    return np.where(values == _UNSIGNED_NONE, UNRESOLVED, values)


def _device_columns(arguments: list[Any]) -> Columns:
    columns: Columns = {
        "external_id": _external_ids(arguments),
        "device": integers([row.device for row in arguments]),
        "stream": integers([row.stream for row in arguments]),
        "correlation": integers([row.correlation for row in arguments]),
        "registers_per_thread": integers([row.registers_per_thread for row in arguments]),
        "shared_memory_bytes": integers([row.shared_memory_bytes for row in arguments]),
        "graph_id": integers([row.graph_id for row in arguments]),
        "graph_node_id": integers([row.graph_node_id for row in arguments]),
        "bytes": integers([row.bytes for row in arguments]),
    }
    for name, sizes in (("grid", [row.grid for row in arguments]), ("block", [row.block for row in arguments])):
        by_axis = triples(sizes)
        columns |= {f"{name}_{axis}": by_axis[:, place] for place, axis in enumerate("xyz")}
    return columns


def _external_ids(arguments: list[Any]) -> Int64:
    """External ids, under the key that Kineto gives them today or the one of 2021."""
    today = integers([row.external_id for row in arguments])
    if (today != MISSING).all():
        return today
    return _or_else(today, integers([row.old_external_id for row in arguments]))


def _part(columns: Columns, places: Int64) -> Columns:
    return {name: values[places] for name, values in columns.items()}


def _take(values: list[Any], places: Int64) -> list[Any]:
    """The values at ascending, distinct ``places``."""
    return values if len(places) == len(values) else [values[place] for place in places.tolist()]


def _scattered(count: int, places: Int64, values: list[Any]) -> Int64:
    if len(places) == count:
        return integers(values)
    column = np.full(count, MISSING, np.int64)
    column[places] = integers(values)
    return column


def _or_else(values: Int64, others: Int64) -> Int64:
    return np.where(values == MISSING, others, values)
