"""What the driver gives to a process of a simulated job and gets back: segments of PyTorch, and of other code."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from traceviz_dag.system.whole_files import whole_file

DRIVER_SCHEMA = pa.schema(
    [
        ("rank", pa.int64()),
        ("time_ns", pa.int64()),
        ("released", pa.bool_()),
        ("address", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""The truth: memory of the GPU alone, in the order of time; times of the epoch on the rank's clock."""

PINNED, DEVICE, STATIC = 1, 2, 5
"""Kinds of memory as Nsight Systems numbers them: of the host and page-locked, of the GPU, of a module on the GPU."""

_RELEASES = {"segment_alloc": False, "segment_free": True}
_ELSEWHERE = 0x7E00_0000_0000
_MODULE_BYTES = 3 << 20
_STAGING_BYTES = 64 << 20
_COLLECTIVES_BYTES = 48 << 20


@dataclass(frozen=True, slots=True)
class DriverEvent:
    """An allocation or its release; ``kind`` is that of the memory."""

    time_ns: int
    released: bool
    address: int
    bytes: int
    kind: int = DEVICE


def driver_events_of(path: Path) -> list[DriverEvent]:
    """What the driver does for the process of a simulated snapshot, in the order of time.

    Beside the segments of the snapshot: a module's variables and a page-locked buffer of the host, which stay, and a
    buffer of the communication library, which is given back at last.

    Args:
        path: a file that this program wrote: a pickle of others would run what it asks for.
    """
    rows = [event for trace in pickle.loads(path.read_bytes())["device_traces"] for event in trace]
    found = [
        DriverEvent(row["time_us"] * 1000, _RELEASES[row["action"]], row["addr"], row["size"])
        for row in rows
        if row["action"] in _RELEASES
    ]
    first, last = rows[0]["time_us"] * 1000, rows[-1]["time_us"] * 1000
    found += [
        DriverEvent(first - 300, False, _ELSEWHERE, _MODULE_BYTES, STATIC),
        DriverEvent(first - 200, False, _ELSEWHERE + (1 << 30), _STAGING_BYTES, PINNED),
        DriverEvent(first - 100, False, _ELSEWHERE + (2 << 30), _COLLECTIVES_BYTES),
        DriverEvent(last + 100, True, _ELSEWHERE + (2 << 30), _COLLECTIVES_BYTES),
    ]
    return sorted(found, key=lambda event: event.time_ns)


def write_driver_truth(snapshots: Mapping[int, Path], path: Path) -> None:
    """Write what the driver does of memory on the GPUs, by rank and time.

    Args:
        snapshots: rank → a file that this program wrote.
    """
    rows = [
        {"rank": rank, **{name: getattr(event, name) for name in DRIVER_SCHEMA.names if name != "rank"}}
        for rank, snapshot in sorted(snapshots.items())
        for event in driver_events_of(snapshot)
        if event.kind != PINNED
    ]
    with whole_file(path) as file:
        pq.write_table(pa.Table.from_pylist(rows, DRIVER_SCHEMA), file)
