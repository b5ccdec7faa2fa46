"""One Nsight Systems profile in columns: what every command and the classification start from.

Times are int64 nanoseconds of the capture's clock, as the export gives them; ``facts.utc_start_ns`` makes them UTC.
A process is ``globalPid >> 24``, a thread a whole ``globalTid``: both are unique over all nodes of a report. An integer
that is not given is ``MISSING``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

PUSH_POP, START_END, MARK = 0, 1, 2
"""Codes of ``ranges.kind``."""

PROCESS_BITS = 24
"""A globalTid or globalPid shifted right by so many bits is the process."""

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
        ]
    ),
    "calls": pa.schema(
        [("name", _TEXT), *[(name, _INTEGER) for name in ("start_ns", "duration_ns", "thread", "correlation")]]
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
        ]
    ),
    "threads": pa.schema([("thread", _INTEGER), ("name", _TEXT)]),
    "metrics": pa.schema([("time_ns", _INTEGER), ("device", _INTEGER), ("metric", _TEXT), ("value", _INTEGER)]),
}
"""The tables of a profile. ``operations``: kernels, memory copies and sets by start; category as in ``DeviceRows``;
``launch`` is the row of ``calls`` that launched it, or -1. ``calls``: runtime and driver calls by start. ``ranges``:
NVTX ranges and marks by start, names without the sequence numbers, operator ids and sizes that PyTorch appends;
``open``: still open when the capture ended; ``operator``: pushed by PyTorch for an operator; the last columns: NCCL's
payload.
``metrics``: GPU metrics, one row a sample."""


class Gpu(msgspec.Struct, frozen=True):
    """One GPU of the report; ``name`` is None where the export does not say."""

    device: int
    name: str | None


class NsysFacts(msgspec.Struct, frozen=True):
    """What is known of a profile as a whole.

    Attributes:
        schema_version, product_version: of the export and of the nsys that wrote it; None where not stated.
        utc_start_ns: UTC at which the capture's clock read 0; None where not stated.
        duration_ns: length of the capture; None where not stated.
        gpus: by device.
        tables: table of the export → its rows, of those that were read.
        missing: what the export lacks and what cannot be said for that.
    """

    schema_version: str | None = None
    product_version: str | None = None
    utc_start_ns: int | None = None
    duration_ns: int | None = None
    gpus: tuple[Gpu, ...] = ()
    tables: dict[str, int] = {}
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class NsysProfile:
    """A profile whose tables are loaded when they are asked for.

    Args:
        path: the export, for messages.
        facts: what is known of it as a whole.
        load: gives a table by name, or some of its columns.
    """

    path: Path
    facts: NsysFacts
    load: Callable[[str, tuple[str, ...] | None], pa.Table]
    _kept: dict[tuple[str, tuple[str, ...] | None], pa.Table] = field(default_factory=dict)

    def table(self, name: str, *columns: str) -> pa.Table:
        """One of ``SCHEMAS``, or some of its columns."""
        key = (name, columns or None)
        if key not in self._kept:
            self._kept[key] = self.load(*key)
        return self._kept[key]

    @classmethod
    def of_tables(cls, path: Path, facts: NsysFacts, tables: dict[str, pa.Table]) -> NsysProfile:
        """A profile whose tables are all in memory."""

        def load(name: str, columns: tuple[str, ...] | None) -> pa.Table:
            return tables[name] if columns is None else tables[name].select(columns)

        return cls(path, facts, load)
