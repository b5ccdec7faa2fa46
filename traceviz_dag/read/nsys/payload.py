"""What NCCL says of its calls in the payload of its NVTX ranges: communicator, message size, peer."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from traceviz_dag.arrays import Int64, distinct
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.nsys.schema import NsysSchema, number, required, text

_HEADER = struct.Struct("<IIIIQQ")
_WIDTHS = {5: "<I", 18: "<Q", 22: "<Q"}
"""Types of payload entries that NCCL uses: 32-bit unsigned, 64-bit unsigned, size_t."""

_COLUMNS = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "message_bytes",
    "Peer rank": "peer",
    "No. of ranks": "communicator_size",
    "Rank": "communicator_rank",
}


@dataclass(frozen=True, slots=True)
class PayloadField:
    """One value of a binary payload: its name, how it is packed, where it is."""

    name: str
    packing: str
    offset: int


Layouts = Mapping[tuple[int, int], tuple[PayloadField, ...]]
"""(domain, schema) → the fields of its payloads."""


def payload_layouts(schema: NsysSchema) -> Layouts:
    """Read how the binary payloads of NVTX ranges are laid out; empty where the export does not say."""
    rows = schema.select(
        "NVTX_PAYLOAD_SCHEMA_ENTRIES",
        {
            "domain": number("domainId"),
            "schema": required("schemaId"),
            "type": number("type"),
            "name": text("name"),
            "offset": number("offset"),
        },
    )
    found: dict[tuple[int, int], dict[str, PayloadField]] = {}
    for row in rows.to_pylist() if rows is not None else ():
        packing = _WIDTHS.get(row["type"])
        if packing and row["name"] in _COLUMNS:
            offset = 0 if row["offset"] == MISSING else row["offset"]
            found.setdefault((row["domain"], row["schema"]), {})[row["name"]] = PayloadField(
                row["name"], packing, offset
            )
    return {key: tuple(fields.values()) for key, fields in found.items()}


def payload_columns(texts: pa.DictionaryArray, hexes: pa.DictionaryArray, layouts: Layouts) -> dict[str, pa.Array]:
    """The columns that a payload gives of the ranges, by name; a text of JSON goes before a binary payload.

    Args:
        texts, hexes: texts of JSON and binary payloads as hexadecimal digits, one entry a range, empty where it has
            none. Each distinct one is decoded once.
    """
    of_text = [_of_json(value) for value in texts.dictionary.to_pylist()]
    of_hex = [_of_binary(value, layouts) for value in hexes.dictionary.to_pylist()]
    text_codes, hex_codes = texts.indices.to_numpy(), hexes.indices.to_numpy()
    columns: dict[str, pa.Array] = {}
    for label, name in _COLUMNS.items():
        from_text = np.array([facts.get(label, MISSING) for facts in of_text], dtype=np.int64)
        from_hex = np.array([facts.get(label, MISSING) for facts in of_hex], dtype=np.int64)
        values = from_text[text_codes]
        if any(of_hex):
            values = np.where(values != MISSING, values, from_hex[hex_codes])
        columns[name] = _communicators(values) if name == "communicator" else pa.array(values)
    return columns


def numbers_of_json(value: str) -> str:
    """Of a payload as JSON what traceviz reads; empty where that is nothing."""
    found = _of_json(value)
    return msgspec.json.encode({"NCCL": None, **found}).decode() if found else ""


def numbers_of_binary(data: bytes, layouts: Layouts) -> bytes:
    """Of a binary payload what traceviz reads; everything else is zero."""
    if len(data) < _HEADER.size:
        return b""
    domain, _, schema, *_ = _HEADER.unpack_from(data)
    kept = bytearray(len(data))
    _HEADER.pack_into(kept, 0, domain, 0, schema, 0, 0, 0)
    for part in layouts.get((domain, schema), ()):
        begin = _HEADER.size + part.offset
        end = begin + struct.calcsize(part.packing)
        if end <= len(data):
            kept[begin:end] = data[begin:end]
    return bytes(kept)


def _communicators(values: Int64) -> pa.Array:
    known = distinct(values)
    which = np.searchsorted(known, values)
    names = [None if value == MISSING else f"0x{value & 0xFFFF_FFFF_FFFF_FFFF:016x}" for value in known.tolist()]
    return pa.array(names, pa.string()).dictionary_encode().take(pa.array(which))


def _of_json(value: str) -> dict[str, int]:
    if "NCCL" not in value:
        return {}
    try:
        decoded = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return {}
    # NCCL's payload may be in an object of its own inside.
    parts = [decoded] if isinstance(decoded, dict) else decoded if isinstance(decoded, list) else []
    found: dict[str, int] = {}
    for part in parts:
        for key, entry in part.items() if isinstance(part, dict) else ():
            whole = _whole(entry)
            if key in _COLUMNS and whole is not None:
                found[key] = whole
    return found


def _of_binary(value: str, layouts: Layouts) -> dict[str, int]:
    try:
        data = bytes.fromhex(value)
    except ValueError:
        return {}
    if len(data) < _HEADER.size:
        return {}
    domain, _, schema, _, _, _ = _HEADER.unpack_from(data)
    found = {}
    for part in layouts.get((domain, schema), ()):
        at = _HEADER.size + part.offset
        if at + struct.calcsize(part.packing) <= len(data):
            (whole,) = struct.unpack_from(part.packing, data, at)
            found[part.name] = _signed(whole)
    return found


def _whole(value: object) -> int | None:
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return None
    return _signed(value) if isinstance(value, int) and abs(value) < 2**64 else None


def _signed(value: int) -> int:
    """A 64-bit pattern as int64; a communicator's id uses all 64 bits."""
    return value - 2**64 if value >= 2**63 else value
