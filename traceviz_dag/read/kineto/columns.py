"""Decoded Kineto events → columns, a piece of the file at a time."""

from __future__ import annotations

from collections import Counter, defaultdict

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
from traceviz_dag.read.kineto.communication_facts import FactRows, FactValues
from traceviz_dag.read.kineto.packing import Columns, GrowingTable
from traceviz_dag.read.kineto.rows import Codes, Piece, Rows
from traceviz_dag.read.kineto.schema import (
    DEVICE_GROUP,
    GROUP_OF_CODE,
    HOST_GROUP,
    LAUNCH_GROUP,
    SIZE_KEYS,
    SYNCHRONIZATION_CODE,
    SYNCHRONIZATION_GROUP,
    SYNCHRONIZATION_OF_NAME,
    TABLE_CODE_OF_CODE,
)
from traceviz_dag.read.kineto.stated_inputs import COMMUNICATION_OPERATOR, InputsOnce
from traceviz_dag.read.kineto.threads import ThreadTable
from traceviz_dag.read.kineto.timestamps import EXACT_BELOW, to_nanoseconds
from traceviz_dag.read.secrets import masked_words

NO_TIME = "no time stamp that is a number, or one beyond 142 years"
NO_DURATION = "no duration"
BAD_DURATION = "negative or impossible duration"
"""Reasons in ``ColumnBuilder.dropped``."""

_DEVICE_INTEGERS = (
    *("device", "stream", "correlation", "registers_per_thread", "shared_memory_bytes"),
    *("graph_id", "graph_node_id", "bytes"),
)
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
        self._communication_code = self._strings[COMMUNICATION_OPERATOR]
        self._host, self._launches = GrowingTable(HostRows, without=("input_sizes",)), GrowingTable(LaunchRows)
        self._device = GrowingTable(DeviceRows, without=("process", "collective"))
        self._synchronizations = GrowingTable(SynchronizationRows)
        self._fact_values = FactValues()
        self._device_facts, self._operator_facts = FactRows(self._fact_values), FactRows(self._fact_values)

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
            rows = rows.take(np.flatnonzero(good))
            codes, start_ns, duration = codes[good], start_ns[good], duration[good]
        if len(rows):
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
        communication_operators, operator_facts = self._operator_facts.dense(self._strings)
        device_facts = self._device_facts.spread(device_rows, self._strings)
        return TraceEvents(
            header=header,
            strings=masked_words(self._strings),
            threads=self.threads.threads(),
            host=HostRows(**host),
            launches=LaunchRows(**launches),
            device=DeviceRows(**device, collective=device_facts),
            synchronizations=SynchronizationRows(**synchronizations),
            communication_operators=communication_operators,
            operator_facts=operator_facts,
            operator_inputs=self._inputs.distinct,
            report=ReadReport(self.rows_read, dict(self.dropped)),
        )

    def _add_tables(self, rows: Rows, codes: Codes, start_ns: Int64, duration_ns: Int64) -> None:
        columns: Columns = {
            "name": rows.names(self._strings),
            "category": TABLE_CODE_OF_CODE.take(codes),
            "start_ns": start_ns,
            "duration_ns": duration_ns,
        }
        groups = GROUP_OF_CODE.take(codes)
        processes = rows.identifiers("pid", self.threads.process_ids)
        threads = rows.identifiers("tid", self.threads.thread_ids)
        near = np.flatnonzero(groups < DEVICE_GROUP)
        columns["thread"] = np.zeros(len(rows), np.int32)
        columns["thread"][near] = self.threads.indices(processes[near], threads[near])
        for group, add in ((HOST_GROUP, self._add_host), (LAUNCH_GROUP, self._add_launches)):
            places = np.flatnonzero(groups == group)
            if len(places):
                add(_part(columns, places), rows.take(places))
        places = np.flatnonzero(groups == DEVICE_GROUP)
        if len(places):
            self._add_device(_part(columns, places), rows.take(places), processes[places], threads[places])
        places = np.flatnonzero(groups == SYNCHRONIZATION_GROUP)
        if len(places):
            own = _part(columns, places)
            own |= _synchronization_columns(rows.take(places), processes[places], threads[places])
            own["kind"] = np.full(len(places), OTHER_SYNCHRONIZATION, np.int8)
            for name, kind in SYNCHRONIZATION_OF_NAME.items():
                own["kind"][own["name"] == self._strings.get(name)] = kind
            self._synchronizations.append(own)

    def _add_host(self, columns: Columns, rows: Rows) -> None:
        python = np.flatnonzero(columns["category"] == PYTHON_FUNCTION)
        others = np.flatnonzero(columns["category"] != PYTHON_FUNCTION)
        for places, attributes in (
            (python, ("python_id", "python_parent_id")),
            (others, ("external_id", "sequence_number", "forward_thread")),
        ):
            part = rows.take(places)
            columns |= {name: _scattered(len(rows), places, part.integers(name)) for name in attributes}
        operators = np.flatnonzero(columns["category"] == CPU_OP)
        columns["inputs"] = np.zeros(len(rows), np.int32)
        columns["inputs"][operators] = rows.take(operators).inputs(self._inputs)
        self._add_operator_facts(columns, rows)
        self._host.append(columns)

    def _add_operator_facts(self, columns: Columns, rows: Rows) -> None:
        values = self._fact_values
        at = np.flatnonzero((columns["category"] == CPU_OP) & (columns["name"] == self._communication_code))
        operators = rows.take(at)
        annotated_at = np.flatnonzero(columns["category"] == USER_ANNOTATION)
        annotations = rows.take(annotated_at)
        for of, (places, facts) in (
            (at, operators.named(values)),
            (at, operators.stated(values)),
            (annotated_at, annotations.annotated(values)),
        ):
            self._operator_facts.add(of[places] + self._host.rows, facts)

    def _add_launches(self, columns: Columns, rows: Rows) -> None:
        columns["correlation"] = rows.integers("correlation")
        columns["external_id"] = _external_ids(rows)
        self._launches.append(columns)

    def _add_device(self, columns: Columns, rows: Rows, devices: Int64, streams: Int64) -> None:
        columns |= _device_columns(rows)
        columns["device"] = _or_else(columns["device"], devices)
        columns["stream"] = _or_else(columns["stream"], streams)
        named, facts = rows.named(self._fact_values)
        self._device_facts.add(named + self._device.rows, facts)
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


def _synchronization_columns(rows: Rows, devices: Int64, streams: Int64) -> Columns:
    streams = np.where(streams >= _STREAM_ROW_OFFSET, streams - _STREAM_ROW_OFFSET, streams)
    stream = _signed(_or_else(rows.integers("stream"), streams))
    return {
        "device": _or_else(rows.integers("device"), devices),
        "stream": np.where(stream < 0, MISSING, stream),
        "correlation": rows.integers("correlation"),
        "wait_on_stream": _signed(rows.integers("wait_on_stream")),
        "wait_on_device": np.full(len(rows), MISSING, np.int64),
        "record_correlation": _signed(rows.integers("record_correlation")),
        "event": _or_else(rows.integers("event"), rows.integers("recorded_event")),
    }


def _signed(values: Int64) -> Int64:
    """What older versions write as an unsigned 32-bit integer, -1 above all."""
    return np.where(values == _UNSIGNED_NONE, UNRESOLVED, values)


def _device_columns(rows: Rows) -> Columns:
    columns = {name: rows.integers(name) for name in _DEVICE_INTEGERS}
    columns["external_id"] = _external_ids(rows)
    for name in SIZE_KEYS:
        columns |= zip((f"{name}_{axis}" for axis in "xyz"), rows.triples(name).T, strict=True)
    return columns


def _external_ids(rows: Rows) -> Int64:
    """External ids, under the key that Kineto gives them today or the one of 2021."""
    today = rows.integers("external_id")
    if (today != MISSING).all():
        return today
    return _or_else(today, rows.integers("old_external_id"))


def _part(columns: Columns, places: Int64) -> Columns:
    return {name: values.take(places) for name, values in columns.items()}


def _scattered(count: int, places: Int64, values: Int64) -> Int64:
    if len(places) == count:
        return values
    column = np.full(count, MISSING, np.int64)
    column[places] = values
    return column


def _or_else(values: Int64, others: Int64) -> Int64:
    return np.where(values == MISSING, others, values)
