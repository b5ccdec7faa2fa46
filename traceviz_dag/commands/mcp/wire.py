"""What comes in over standard input: lines that are no message get an answer, too, which the SDK leaves out."""

from __future__ import annotations

import json
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError
from pydantic import ValidationError

_PARSE_ERROR, _INVALID_REQUEST = -32700, -32600


class Answered:
    """A stream of messages, in which a line that is none is answered instead of passed on.

    Args:
        read, write: the streams of the SDK.
    """

    def __init__(self, read: Any, write: Any) -> None:
        self._read, self._write = read, write

    @property
    def last_context(self) -> Any:
        """The sender's context, which the SDK asks for."""
        return self._read.last_context

    async def receive(self) -> SessionMessage:
        """The next message."""
        while True:
            item = await self._read.receive()
            if isinstance(item, SessionMessage):
                return item
            refusal = _refusal(item)
            if refusal is not None:
                await self._write.send(SessionMessage(refusal))

    async def aclose(self) -> None:
        """Close the stream."""
        await self._read.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        from anyio import EndOfStream

        try:
            return await self.receive()
        except EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.aclose()


def _refusal(fault: Exception) -> JSONRPCError | None:
    """The answer to a line that is no message; None to an empty one."""
    first: Any = fault.errors()[0] if isinstance(fault, ValidationError) else {"type": "", "input": None}
    line, is_json = first["input"], first["type"] != "json_invalid"
    if isinstance(line, str) and not is_json:
        if not line.strip():
            return None
        # A text that is no valid Unicode, by which the SDK refuses the line, hides no number from this reader.
        with suppress(ValueError):
            line = json.loads(line)
    number = line.get("id") if isinstance(line, dict) else None
    is_number = isinstance(number, int | str) and not isinstance(number, bool)
    if isinstance(number, str):
        is_number = number.isascii()
    what = "the line is no request of JSON-RPC" if is_json else "the line is no JSON, or holds text that is no Unicode"
    error = ErrorData(code=_INVALID_REQUEST if is_json else _PARSE_ERROR, message=f"{what}; send it again")
    return JSONRPCError(jsonrpc="2.0", id=number if is_number else None, error=error)
