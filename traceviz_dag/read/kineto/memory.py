"""What the allocator of each device holds over time, from the memory events of a Kineto trace.

They are in traces that were recorded with ``profile_memory``; most are not, and are not decoded for them.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.kineto.boundaries import NotATraceError
from traceviz_dag.read.kineto.chunks import EventArray
from traceviz_dag.read.kineto.header import decode_header
from traceviz_dag.read.sources import ByteSource

MEMORY = pa.schema(
    [
        *(("time_ns", pa.int64()), ("device", pa.string())),
        *(("allocated_bytes", pa.int64()), ("reserved_bytes", pa.int64())),
        *(("action", pa.string()), ("address", pa.int64()), ("bytes", pa.int64()), ("stream", pa.int64())),
    ]
)
"""A row per allocation or release: what is allocated, and reserved from the driver, from then on; then what was done,
as column ``action`` of table ``memory_events`` says, where, and of how many bytes. What is unknown is NULL."""

_NAME = "[memory]"
_CHUNK_BYTES = 1 << 20
_HOST = 0
"""Code of the host among PyTorch's types of devices; GPUs are 1 (CUDA) and 6 (ROCm)."""

_LAST_ADDRESS = (1 << 63) - 1


class _Arguments(msgspec.Struct, rename={"allocated": "Total Allocated", "reserved": "Total Reserved"}):
    allocated: int | None = None
    reserved: int | None = None
    address: int | None = msgspec.field(name="Addr", default=None)
    bytes: int | None = msgspec.field(name="Bytes", default=None)
    device_id: int | None = msgspec.field(default=None, name="Device Id")
    device_type: int | None = msgspec.field(default=None, name="Device Type")


class _Event(msgspec.Struct):
    name: str | int | None = None
    ts: msgspec.Raw = msgspec.Raw(b"0")
    args: msgspec.Raw = msgspec.Raw(b"{}")


_EVENTS = msgspec.json.Decoder(list[_Event])
_ARGUMENTS = msgspec.json.Decoder(_Arguments)


def read_memory(path: Path) -> pa.Table:
    """The memory events of a trace, in the order of time; no rows where it has none.

    Returns:
        Columns of ``MEMORY``; devices are ``gpu:N``, or ``cpu``. An event without totals is left out. Bytes are
        those of the block, which may be more than was requested.

    Raises:
        BadInputError: the file is missing, empty or no trace.
    """
    found: list[tuple[Decimal, _Arguments]] = []
    base_ns = 0
    if _mentioned(path):
        with ByteSource(path) as source:
            array: EventArray[list[_Event]] = EventArray(source, _EVENTS.decode, _CHUNK_BYTES)
            try:
                array.feed(lambda piece: _collect(piece, found))
            except NotATraceError as error:
                raise BadInputError(path, str(error), "give a Kineto trace as torch.profiler exports it") from None
            base_ns = decode_header(array.before, array.after)[0].base_time_ns or 0
    found.sort(key=lambda row: row[0])
    rows = [
        {
            "time_ns": base_ns + int((microseconds * 1000).to_integral_value()),
            "device": "cpu" if one.device_type == _HOST else f"gpu:{one.device_id or 0}",
            "allocated_bytes": one.allocated,
            "reserved_bytes": one.reserved,
            "action": None if not one.bytes else "alloc" if one.bytes > 0 else "free_requested",
            "address": one.address,
            "bytes": None if one.bytes is None else abs(one.bytes),
        }
        for microseconds, one in found
    ]
    return pa.Table.from_pylist(rows, schema=MEMORY)


def _mentioned(path: Path) -> bool:
    """Whether the file names such an event anywhere: searched as text, many times faster than decoding."""
    word, tail = f'"{_NAME}"'.encode(), b""
    with ByteSource(path) as source:
        buffer = bytearray(_CHUNK_BYTES)
        while count := source.readinto(memoryview(buffer)):
            if word in tail + buffer[:count]:
                return True
            tail = bytes(buffer[max(count - len(word), 0) : count])
    return False


def _collect(events: list[_Event], found: list[tuple[Decimal, _Arguments]]) -> None:
    for event in events:
        if event.name != _NAME:
            continue
        try:
            arguments = _ARGUMENTS.decode(event.args)
        except msgspec.DecodeError:
            continue
        numbers = (arguments.allocated, arguments.reserved, arguments.address, arguments.bytes)
        if arguments.allocated is not None and all(abs(number or 0) <= _LAST_ADDRESS for number in numbers):
            found.append((Decimal(bytes(event.ts).decode().strip('"')), arguments))
