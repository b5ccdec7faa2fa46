"""Protobuf messages encoded side by side: a field is an array with a value a message.

Each field becomes a narrow matrix of bytes with a mask of those that count; the masked bytes of all fields, row after
row, are the encoded messages. The wire format is that of the Protocol Buffers encoding guide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Bool

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[np.integer]

_VARINT, _FIXED64, _LENGTH = 0, 1, 2


class Messages:
    """``count`` messages of one type, whose fields are added in the order in which they are written.

    Attributes:
        count: how many messages.
        sizes: encoded bytes of each so far.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.sizes: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        self._parts: list[tuple[Bytes, Bool]] = []

    def varint(self, number: int, values: Values | int, present: Bool | None = None) -> None:
        """Add an integer field (int64, uint64, bool or enum).

        Args:
            values: one per message, or one for all; negative ones are encoded as protobuf's int64.
            present: the messages that have the field; all where None.
        """
        self._tag(number, _VARINT, present)
        if isinstance(values, int):
            self._constant(encode_varint(values), present)
        else:
            self._add(*_varints(values), present)

    def fixed64(self, number: int, values: Values, present: Bool | None = None) -> None:
        """Add a fixed64 field, one value a message."""
        self._tag(number, _FIXED64, present)
        matrix = values.astype("<u8").view(np.uint8).reshape(self.count, 8)
        self._add(matrix, np.broadcast_to(np.True_, matrix.shape), 8, present)

    def double(self, number: int, values: npt.NDArray[np.float64], present: Bool | None = None) -> None:
        """Add a double field, one value a message."""
        self.fixed64(number, values.astype("<f8").view("<u8"), present)

    def messages(self, number: int, children: Messages, present: Bool | None = None) -> None:
        """Add a field that holds a message: child i in message i."""
        self._tag(number, _LENGTH, present)
        self._add(*_varints(children.sizes), present)
        for matrix, mask in children._parts:
            self._parts.append((matrix, mask if present is None else mask & present[:, None]))
        self.sizes += children.sizes if present is None else children.sizes * present

    def encode(self) -> bytes:
        """The messages one after the other, without anything between them."""
        if not self._parts or not self.count:
            return b""
        width = sum(matrix.shape[1] for matrix, _ in self._parts)
        whole = np.empty((self.count, width), np.uint8)
        keep = np.empty((self.count, width), np.bool_)
        at = 0
        for matrix, mask in self._parts:
            end = at + matrix.shape[1]
            whole[:, at:end] = matrix
            keep[:, at:end] = mask
            at = end
        return whole[keep].tobytes()

    def _tag(self, number: int, wire: int, present: Bool | None) -> None:
        self._constant(encode_varint(number << 3 | wire), present)

    def _constant(self, encoded: bytes, present: Bool | None) -> None:
        row = np.frombuffer(encoded, np.uint8)
        matrix = np.broadcast_to(row, (self.count, len(row)))
        self._add(matrix, np.broadcast_to(np.True_, matrix.shape), len(row), present)

    def _add(self, matrix: Bytes, mask: Bool, sizes: npt.NDArray[np.int64] | int, present: Bool | None) -> None:
        self._parts.append((matrix, mask if present is None else mask & present[:, None]))
        self.sizes += sizes if present is None else sizes * present


def encode_varint(value: int) -> bytes:
    """One integer as a varint; a negative one in two's complement of 64 bits."""
    rest = value & 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def encode_field(number: int, value: int | str | bytes | Sequence[bytes]) -> bytes:
    """One field of a single message: an integer, a text, an encoded message, or a repeated one of these."""
    if isinstance(value, int):
        return encode_varint(number << 3 | _VARINT) + encode_varint(value)
    if isinstance(value, str | bytes):
        content = value.encode() if isinstance(value, str) else value
        return encode_varint(number << 3 | _LENGTH) + encode_varint(len(content)) + content
    return b"".join(encode_field(number, each) for each in value)


def _varints(values: Values) -> tuple[Bytes, Bool, npt.NDArray[np.int64]]:
    """Each value's varint, left-aligned, which bytes of it count, and how many these are."""
    rest = values.astype(np.int64, copy=False).view(np.uint64) if values.dtype != np.uint64 else values
    width = len(encode_varint(int(rest.max()))) if len(rest) else 1
    matrix = np.empty((len(rest), width), np.uint8)
    mask = np.empty((len(rest), width), np.bool_)
    sizes = np.zeros(len(rest), np.int64)
    for place in range(width):
        counts = rest != 0 if place else np.ones(len(rest), np.bool_)
        mask[:, place] = counts
        sizes += counts
        low = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        matrix[:, place] = low | ((rest != 0).astype(np.uint8) << 7)
    return matrix, mask, sizes
