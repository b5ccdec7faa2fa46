"""A trace file as bytes that Perfetto reads without loss: JSON with its time stamps rebased, all else as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.perfetto.rebase import UnfitTimesError, base_for, rebase
from traceviz_dag.read.sources import ByteSource

_CHUNK = 8 << 20
_LONGEST_HEAD = 1 << 20


class ExactBytes:
    """The bytes of a trace, part by part; a context manager.

    Attributes:
        base_ns: what is subtracted from every time stamp; 0 where nothing is.
        read_fault: what kept the file from being read to its end, known once all parts were taken.

    Raises:
        BadInputError: the file is missing, a folder, unreadable or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_fault: str | None = None
        self._source = ByteSource(path)
        self._head = self._read(_LONGEST_HEAD)
        self._json = self._head.lstrip(b" \t\r\n\xef\xbb\xbf").startswith((b"{", b"["))
        self._base_us = base_for(self._head) if self._json else 0
        self.base_ns = self._base_us * 1000

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.__exit__(kind, error, trace)

    def parts(self) -> Iterator[bytes]:
        """The bytes, once; inflated where a JSON trace is gzip, while Perfetto inflates all else itself.

        Raises:
            BadInputError: a time stamp lies so early that the trace cannot be moved as one.
        """
        if not self._json:
            with self.path.open("rb") as file:
                while part := file.read(_CHUNK):
                    yield part
            return
        pending: bytearray = self._head
        while True:
            cut = pending.rfind(b",") + 1
            yield self._moved(pending[:cut])
            pending = pending[cut:]
            more = self._read(_CHUNK)
            if not more:
                break
            pending += more
        self.read_fault = self._source.fault
        # Behind its last closing brace, a file that breaks off may end inside a number.
        last = pending.rfind(b"}") + 1
        yield self._moved(pending[:last]) + bytes(pending[last:])

    def _moved(self, part: bytearray) -> bytes:
        try:
            if self._base_us:
                rebase(part, self._base_us)
        except UnfitTimesError as error:
            remedy = "sort the trace by time, or split it: its events lie more than an hour before its first one"
            raise BadInputError(self.path, f"{error}, so that it cannot be loaded exactly", remedy) from None
        return bytes(part)

    def _read(self, size: int) -> bytearray:
        buffer = bytearray(size)
        filled = 0
        while filled < size and (count := self._source.readinto(memoryview(buffer)[filled:])):
            filled += count
        return buffer[:filled]
