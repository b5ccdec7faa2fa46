"""One Nsight Systems profile in columns: what every command and the classification start from.

Times are int64 nanoseconds of the capture's clock, as the export gives them; ``facts.utc_start_ns`` makes them UTC.
A process is ``globalPid >> 24``, a thread a whole ``globalTid``: both are unique over all nodes of a report. An integer
that is not given is ``MISSING``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa

from traceviz_dag.read.nsys.rows import Array, Rows, Runs, Words

PUSH_POP, START_END, MARK = 0, 1, 2
"""Codes of ``ranges.kind``."""

PROCESS_BITS = 24
"""A globalTid or globalPid shifted right by so many bits is the process."""

NO_NAME = "(no name)"

_TEXT = pa.dictionary(pa.int32(), pa.string())
_INTEGER, _CODE = pa.int64(), pa.int8()

SCHEMAS = {
    "operations": pa.schema(
        [
            ("name", _TEXT),
            ("short_name", _TEXT),
            ("category", _CODE),
            *[(name, _INTEGER) for name in ("start_ns", "duration_ns", "device", "context", "stream", "process")],
            *[(name, _INTEGER) for name in ("correlation", "launch", "grid_x", "grid_y", "grid_z")],
            *[(name, _INTEGER) for name in ("block_x", "block_y", "block_z", "registers_per_thread")],
            *[(name, _INTEGER) for name in ("shared_memory_bytes", "graph_id", "graph_node_id", "bytes")],
            *[(name, _INTEGER) for name in ("source_memory", "destination_memory")],
        ]
    ),
    "totals": pa.schema(
        [
            ("device", _INTEGER),
            ("of", _CODE),
            *[(name, _INTEGER) for name in ("number", "name")],
            ("kernel", pa.bool_()),
            *[(name, _INTEGER) for name in ("count", "inside_ns", "whole_ns", "least_ns", "most_ns", "busy_ns")],
            *[(name, _INTEGER) for name in ("window_start_ns", "window_end_ns")],
        ]
    ),
    "calls": pa.schema(
        [("name", _TEXT), *[(name, _INTEGER) for name in ("start_ns", "duration_ns", "thread", "correlation")]]
    ),
    "system_calls": pa.schema([("name", _TEXT), *[(name, _INTEGER) for name in ("start_ns", "duration_ns", "thread")]]),
    "synchronizations": pa.schema(
        [
            ("kind", _CODE),
            *[(name, _INTEGER) for name in ("start_ns", "duration_ns", "process", "device", "stream", "correlation")],
            *[(name, _INTEGER) for name in ("wait_on_stream", "wait_on_device", "record_correlation")],
        ]
    ),
    "ranges": pa.schema(
        [
            ("name", _TEXT),
            ("kind", _CODE),
            *[(name, _INTEGER) for name in ("start_ns", "end_ns", "thread", "end_thread", "domain")],
            ("domain_name", _TEXT),
            ("open", pa.bool_()),
            ("operator", pa.bool_()),
            ("sequence", _INTEGER),
            ("communicator", _TEXT),
            *[(name, _INTEGER) for name in ("message_bytes", "peer", "communicator_size", "communicator_rank")],
            *[(name, _INTEGER) for name in ("flops", "parent", "path")],
        ]
    ),
    "paths": pa.schema([("name", _INTEGER), ("parent", _INTEGER), ("depth", _INTEGER)]),
    "launch_ranges": pa.schema([("range", _INTEGER)]),
    "memory": pa.schema(
        [
            *[(name, _INTEGER) for name in ("time_ns", "process", "device", "address", "bytes", "stream")],
            ("released", _CODE),
        ]
    ),
    "threads": pa.schema([("thread", _INTEGER), ("name", _TEXT)]),
    "samples": pa.schema([("time_ns", _INTEGER), ("thread", _INTEGER), ("cycles", _INTEGER)]),
    "metrics": pa.schema([("time_ns", _INTEGER), ("device", _INTEGER), ("metric", _TEXT), ("value", _INTEGER)]),
}
"""The tables of a profile.

``operations``: kernels, memory copies and sets by GPU and start; category as in ``DeviceRows``; ``launch`` is the row
of ``calls`` that launched it, or -1. ``launch_ranges``: for each of them the row of ``ranges`` that was innermost on
the thread at that call, or -1; ``source_memory`` and ``destination_memory`` are CUDA's codes of the kinds of memory
that a copy reads and writes. ``calls``: runtime and driver calls by process and start. ``system_calls``: calls of the
operating system's libraries (OSRT), likewise.

``totals``: what ``operations`` add up to by GPU, in the window of its kernels (``totals.py``); ``of`` says what is
added up by, and ``number`` is the code of a name or short name, a stream, or 0 for the GPU as a whole, whose ``count``
is that of its kernels; then the name of the last operation, whether that is a kernel, and measures as ``Totals`` has
them; ``busy_ns`` is 0 by name.

``synchronizations``: by process and start; kind as in ``SynchronizationRows``; with the stream, GPU and call of the
record of the event waited for, where the export has it.

``ranges``: NVTX ranges and marks by process and start, the longer one first; names without the sequence numbers,
operator ids and sizes that PyTorch appends; ``open``: still open when the capture ended; ``operator``: pushed by
PyTorch for an operator; then NCCL's payload; ``flops``: of a matrix product whose sizes PyTorch appended;
``parent``: the row of the range around it on its thread, or -1;
``path``: row of ``paths``, or -1 for marks and for ranges that end on another thread, which hold nothing.

``memory``: by process and time; what the driver allocated on a GPU, or (``released``) got back.

``paths``: distinct paths of names of nested ranges, outermost first, by (parent, name); ``name`` is the place of the
innermost range's name among the words of ``ranges.name``. ``metrics``: GPU metrics, one row a sample.

``samples``: of processors, with the thread that ran and its cycles since the sample before."""

RANGE_TABLES = ("ranges", "paths", "launch_ranges")
"""The tables of NVTX ranges, which take longest to read and are read when one of them is asked for."""

KEYS = {
    "operations": "device",
    "launch_ranges": "device",
    "totals": "device",
    "calls": "process",
    "system_calls": "process",
    "synchronizations": "process",
    "ranges": "process",
    "memory": "process",
}
"""What the rows of a table are grouped by; the process of a call or range is that of its thread."""


_MADE_OF_IT = {"operations": ("totals",), "calls": ("launch_ranges",), "ranges": ("launch_ranges",)}
"""Table → others that are made of its rows."""


class Gpu(msgspec.Struct, frozen=True):
    """One GPU of the report; all but its number are None where the export does not say.

    Attributes:
        multiprocessors: how many it has. memory_bytes: how much memory. memory_bytes_per_s: that memory's bandwidth.
        clock_hz: the highest clock. bus: its address on the PCI bus.
    """

    device: int
    name: str | None
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    memory_bytes_per_s: int | None = None
    clock_hz: int | None = None
    compute_capability: str | None = None
    bus: str | None = None


class RowFault(msgspec.Struct, frozen=True):
    """Rows of an export that cannot be used and were left out, or kernels or calls without names.

    Attributes:
        table: of the profile, which lacks them. source: the export's table.
        rows: how many. nameless: whether they are there, and lack their name.
        process, device: whose they are; None where the rows do not say, or name nobody who did something.
    """

    table: str
    source: str
    rows: int
    process: int | None
    device: int | None
    nameless: bool = False


class NsysFacts(msgspec.Struct, frozen=True):
    """What is known of a profile as a whole.

    Attributes:
        schema_version, product_version: of the export and of the nsys that wrote it; None where not stated.
        driver_version, driver_release: newest CUDA that the driver serves, and its own number; None where not stated.
        utc_start_ns: UTC at which the capture's clock read 0; None where not stated.
        duration_ns: length of the capture; None where not stated.
        first_ns, last_ns: first start and last end of all operations, calls and ranges: what the export covers; None
            where it holds none.
        gpus: by device.
        tables: table of the export → its rows, of those that were read.
        columns: every table of the export but those that can hold secrets → its columns; only names that are words.
        missing: what the export lacks and what cannot be said for that.
        faults: which rows cannot be used, of whom.
    """

    schema_version: str | None = None
    product_version: str | None = None
    driver_version: str | None = None
    driver_release: str | None = None
    utc_start_ns: int | None = None
    duration_ns: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None
    gpus: tuple[Gpu, ...] = ()
    tables: dict[str, int] = {}
    columns: dict[str, tuple[str, ...]] = {}
    missing: tuple[str, ...] = ()
    faults: tuple[RowFault, ...] = ()


class Store(Protocol):
    """Where the tables of a profile are."""

    @property
    def facts(self) -> NsysFacts:
        """What is known of the profile as a whole."""

    @property
    def facts_so_far(self) -> NsysFacts:
        """What is known without reading more."""

    def table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Some columns of a table."""

    def rows(self, name: str, columns: Sequence[str], runs: Runs) -> Rows:
        """Some columns of the rows of some runs."""

    def runs(self, name: str) -> Runs:
        """Where the keys of a table begin; a table without keys is one run."""

    def words(self, name: str, column: str) -> Words:
        """What the codes of a text column represent."""

    def row(self, name: str, columns: Sequence[str], row: int) -> dict[str, int]:
        """Some columns of one row; a text is its place in the column's words, NULL comes after the last."""


@dataclass(slots=True)
class NsysProfile:
    """A profile whose tables are loaded when they are asked for.

    Args:
        path: the export, for messages.
        store: where its tables are.
    """

    path: Path
    store: Store
    _tables: dict[tuple[str, ...], pa.Table] = field(default_factory=dict)
    _rows: dict[str, tuple[tuple[int, ...] | None, Rows]] = field(default_factory=dict)
    _asked: dict[str, set[int]] = field(default_factory=dict)

    @property
    def facts(self) -> NsysFacts:
        """What is known of it as a whole."""
        return self.store.facts

    def table(self, name: str, *columns: str) -> pa.Table:
        """One of ``SCHEMAS``, or some of its columns."""
        key = (name, *columns)
        if key not in self._tables:
            self._tables[key] = self.store.table(name, columns or SCHEMAS[name].names)
            self._ask(name, self.store.runs(name))
        return self._tables[key]

    def rows(self, name: str, *columns: str, of: Iterable[int] | None = None) -> Rows:
        """Some columns of one of ``SCHEMAS`` as arrays.

        Args:
            of: only the rows of these processes or GPUs, whichever ``KEYS`` says; None takes all.
        """
        chosen = None if of is None else tuple(of)
        # Only the last are kept: whoever goes through the GPUs asks for the same rows several times, and never again.
        before, kept = self._rows.get(name, (None, None))
        if kept is None or before != chosen:
            kept = Rows({}, self.store.runs(name).take(chosen))
            self._ask(name, kept.runs)
        wanted = [column for column in columns if column not in kept.values]
        if wanted:
            found = self.store.rows(name, wanted, kept.runs)
            kept = Rows({**kept.values, **found.values}, kept.runs)
        self._rows[name] = chosen, kept
        return Rows({column: kept.values[column] for column in columns}, kept.runs)

    def part(self, name: str, key: int, *columns: str) -> tuple[pa.Table, int]:
        """The rows of one process or GPU, whichever ``KEYS`` says, and the number of their first row in the table."""
        rows = self.rows(name, *columns, of=[key])
        schema = pa.schema([SCHEMAS[name].field(column) for column in columns])
        arrays = [
            self.texts(name, field.name, rows[field.name])
            if pa.types.is_dictionary(field.type)
            else pa.array(rows[field.name], type=field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema), int(rows.runs.first[0]) if len(rows.runs.first) else 0

    def row(self, name: str, row: int, *columns: str) -> dict[str, int | str | None]:
        """One row of one of ``SCHEMAS``, or some of its columns, texts as texts."""
        chosen = columns or tuple(SCHEMAS[name].names)
        found: dict[str, int | str | None] = {}
        for column, value in self.store.row(name, chosen, row).items():
            words = self.store.words(name, column) if pa.types.is_dictionary(SCHEMAS[name].field(column).type) else None
            found[column] = value if words is None else words[value] if 0 <= value < len(words) else None
        return found

    def count(self, name: str) -> int:
        """How many rows a table has."""
        runs = self.store.runs(name)
        self._ask(name, runs)
        return int(runs.count.sum())

    def faults(self) -> list[RowFault]:
        """The faults of what was asked for so far: rows that an answer lacks."""
        return [fault for fault in self.store.facts_so_far.faults if self._concerns(fault)]

    def _ask(self, name: str, runs: Runs) -> None:
        self._asked.setdefault(name, set()).update(runs.keys.tolist())

    def _concerns(self, fault: RowFault) -> bool:
        for name in (fault.table, *_MADE_OF_IT.get(fault.table, ())):
            owner = fault.device if KEYS.get(name) == "device" else fault.process
            if name in self._asked and (owner is None or name not in KEYS or owner in self._asked[name]):
                return True
        return False

    def keys(self, name: str) -> list[int]:
        """The processes or GPUs that a table has rows of, ascending."""
        return self.store.runs(name).keys.tolist()

    def names(self, name: str, column: str) -> tuple[str, ...]:
        """What the codes of a text column represent; the last one represents NULL: "(no name)"."""
        return (*(word if word is not None else NO_NAME for word in self.store.words(name, column)), NO_NAME)

    def texts(self, name: str, column: str, codes: Array) -> pa.DictionaryArray:
        """Codes of a text column as a dictionary column; NULL for the code of NULL and for NONE."""
        words = self.store.words(name, column)
        absent = (codes < 0) | (codes >= len(words))
        return pa.DictionaryArray.from_arrays(
            pa.array(codes.astype(np.int32, copy=False), mask=absent), pa.array(words, pa.string())
        )
