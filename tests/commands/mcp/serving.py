"""A program at the other end of ``traceviz mcp``, by the protocol's own SDK over real pipes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

Call = Callable[..., Any]


class Asking:
    """A connected client, asked from a test that is not asynchronous."""

    def __init__(self, run: Callable[..., Any], client: Client) -> None:
        self._run, self.client = run, client

    def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a tool, which must not be an error."""
        text, is_error = self.text(tool, **arguments)
        assert not is_error, text
        return json.loads(text)

    def text(self, tool: str, **arguments: Any) -> tuple[str, bool]:
        """What a tool says, and whether it is an error."""
        result = self._run(self.client.call_tool, tool, arguments)
        [content] = result.content
        return content.text, bool(result.is_error)

    def do(self, method: str, *given: Any) -> Any:
        """What another method of the client gives."""
        return self._run(getattr(self.client, method), *given)


def parameters(*words: str | Path) -> StdioServerParameters:
    """How the server is started."""
    # Imported here: every worker of the tests collects this file.
    from mcp.client.stdio import StdioServerParameters

    code = "from traceviz_dag.commands.main import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != "TRACEVIZ_HOME"}
    return StdioServerParameters(command=sys.executable, args=["-c", code, "mcp", *map(str, words)], env=environment)


@contextmanager
def asking(*words: str | Path) -> Iterator[Asking]:
    """A client of a server that is started with these words, and ends with the block."""
    from anyio.from_thread import start_blocking_portal
    from mcp import Client
    from mcp.client.stdio import stdio_client

    with start_blocking_portal() as portal:
        connect = portal.wrap_async_context_manager
        with connect(Client(stdio_client(parameters(*words)))) as client:
            yield Asking(lambda call, *given: portal.call(partial(call, *given)), client)
