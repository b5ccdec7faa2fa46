"""Reads the requests of our web servers: what is too long, or does not come to its end, is not waited for."""

from __future__ import annotations

import asyncio
import re

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LONGEST_HEAD = 256 << 10
"""Bytes of a request's first line and headers; a question about 64 lanes is the longest of ours."""

MOST_SECONDS = 30.0
"""For a whole head, and between two parts of a body."""

_END_OF_HEAD = re.compile(rb"\n\r?\n")
_LONGEST_END = 3


class BoundedReader(H11Protocol):
    """uvicorn's reader, whose own bound on a head is looked at between two reads of a socket alone, and which waits for
    the rest of a request for ever."""

    most_seconds = MOST_SECONDS

    _head: bytearray
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._head = bytearray()
        self._wait_on()

    def data_received(self, data: bytes) -> None:
        """Read on, unless the head is too long."""
        reads_head = self.conn.their_state is h11.IDLE
        if reads_head:
            if not self._head:
                self._wait_on()
            searched = max(0, len(self._head) - _LONGEST_END)
            self._head += data
            end = _END_OF_HEAD.search(self._head, searched)
            if (end.end() if end else len(self._head)) > LONGEST_HEAD:
                self._stop_waiting()
                self.send_400_response("The head of the request is too long.")
                return
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._wait_on()
        elif state is not h11.IDLE or not reads_head:
            self._stop_waiting()
        if state is not h11.IDLE:
            self._head.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_on(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(self.most_seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self.flow.read_paused:
            self._wait_on()  # the application has to take what was sent first
        elif not self.transport.is_closing():
            self.transport.close()
