"""A trace file as a stream of bytes, inflated on the way where it is gzip."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import xxhash
from isal import isal_zlib

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.limits import LARGEST_INFLATION, SMALLEST_BOMB
from traceviz_dag.read.regular_file import open_stream
from traceviz_dag.system.stand_ins import stand_in

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
_INFLATE_ERROR: Any = isal_zlib.error
_BLOCK = 1 << 19
"""Bytes read at once, which are in a core's caches still as their digest is taken."""

_COMPRESSED_BLOCK = 1 << 15
"""Small, because what a damaged block held before the damage is lost."""


class ByteSource:
    """Bytes of a plain or gzip file, whatever its name says.

    Args:
        path: the file.

    Attributes:
        size: of the file as it is stored, in bytes.
        compressed: whether it is gzip.
        fault: what stopped the stream early; None when nothing did.

    Raises:
        BadInputError: the file is missing, a folder, unreadable or empty.
    """

    def __init__(self, path: Path) -> None:
        self.fault: str | None = None
        try:
            self._file = open_stream(path)
            magic = self._file.read(2) or b""
        except FileNotFoundError:
            raise BadInputError(path, "no such file", "check the path") from None
        except OSError as error:
            raise BadInputError(
                path, f"cannot be read ({error.strerror})", "check its permissions and its disk"
            ) from None
        if not magic:
            self._file.close()
            raise BadInputError(path, "empty file", "export the trace again, or remove the file")
        self.size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        self.compressed = magic == _GZIP_MAGIC
        self._inflater: Any = isal_zlib.decompressobj(_GZIP_WINDOW) if self.compressed else None
        self._pending = b""
        self._inflated = memoryview(b"")
        self._bytes_read = self._bytes_inflated = 0
        self._hash = xxhash.xxh3_128()
        self._is_object = stand_in(path) is not None

    @property
    def digest(self) -> str | None:
        """XXH3-128 of the file's bytes, hexadecimal; None unless all were read, and of an object of a store."""
        return None if self._is_object or self._bytes_read != self.size else self._hash.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def readinto(self, target: memoryview) -> int:
        """Fill ``target`` from its start; the number of bytes, 0 at the end or at a fault."""
        try:
            if self.compressed:
                return self._inflate_into(target)
            count = self._file.readinto(target[:_BLOCK]) or 0
            self._count(target[:count])
            return count
        except OSError as error:
            self.fault = f"the file cannot be read to its end ({error.strerror})"
            return 0

    def _inflate_into(self, target: memoryview) -> int:
        while not self._inflated:
            if self.fault is not None:
                return 0
            if self._inflater.eof and not self._start_member():
                return 0
            if self._is_bomb():
                self.fault = f"the gzip stream becomes more than {LARGEST_INFLATION} times its size, as no trace does"
                return 0
            block = self._pending or self._next_block()
            self._pending = b""
            if not block:
                self.fault = "the gzip stream ends early"
                return 0
            try:
                self._inflated = memoryview(self._inflater.decompress(block))
                self._bytes_inflated += len(self._inflated)
            except _INFLATE_ERROR:
                self.fault = "the gzip stream is damaged"
                return 0
        count = min(len(target), len(self._inflated))
        target[:count] = self._inflated[:count]
        self._inflated = self._inflated[count:]
        return count

    def _next_block(self) -> bytes:
        block = self._file.read(_COMPRESSED_BLOCK) or b""
        self._count(block)
        return block

    def _count(self, block: bytes | memoryview) -> None:
        self._bytes_read += len(block)
        self._hash.update(block)

    def _is_bomb(self) -> bool:
        return self._bytes_inflated > max(SMALLEST_BOMB, LARGEST_INFLATION * self._bytes_read)

    def _start_member(self) -> bool:
        """Go on with a further gzip member; False where there is none (padding after the end is not an error)."""
        rest = self._inflater.unused_data.lstrip(b"\0")
        while len(rest) < len(_GZIP_MAGIC):
            block = self._next_block()
            if not block:
                return False
            rest = (rest + block).lstrip(b"\0")
        if not rest.startswith(_GZIP_MAGIC):
            return False
        self._inflater = isal_zlib.decompressobj(_GZIP_WINDOW)
        self._pending = rest
        return True
