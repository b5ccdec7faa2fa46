"""One running trace processor: started without waiting longer than it takes, ended whatever becomes of this process."""

from __future__ import annotations

import http.client
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from traceviz_dag.errors import TracevizError
from traceviz_dag.read.perfetto.engines import Engine, EngineKind

_START_SECONDS = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.05
_END_SECONDS = 5.0
_ATTEMPTS = 3

# The shell's input, which nobody writes, ends with this process at the latest; the engine is then killed. An engine
# that ends by itself ends the shell. A background command reads a given input only through a descriptor of its own.
_WATCHED = (
    'exec 3<&0; "$@" </dev/null 3<&- & engine=$!; (cat <&3 >/dev/null; kill -9 "$engine" 2>/dev/null) & watch=$!; '
    'wait "$engine"; code=$?; kill "$watch" 2>/dev/null; exit "$code"'
)


class TraceProcessorError(TracevizError):
    """The trace processor does not start, or has ended."""


class TraceProcessorServer:
    """A trace processor that answers on ``host:port``; a context manager that ends what it started.

    Raises:
        TraceProcessorError: it does not start.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        if engine.kind is EngineKind.ADDRESS:
            self.address = engine.where
            self._await_answer()
            return
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        try:
            self.address = self._start_wasm() if engine.kind is EngineKind.WASM else self._start_native()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def process_id(self) -> int | None:
        """Of the process that was started; None for one that was already running."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """End it; nothing happens the second time, or to one that was already running."""
        self._end()

    def fault(self) -> str:
        """What a process that was started last said of itself."""
        if self._process is None:
            return f"nothing answers at {self.address}"
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        code = self._process.poll()
        state = "it runs, but does not answer" if code is None else f"it ended with {code}"
        return f"{state}: {lines[-1][:300]}" if lines else state

    def _start_wasm(self) -> str:
        relay = str(Path(__file__).with_name("relay.js"))
        process = self._spawn([str(self.engine.node), relay, self.engine.where], subprocess.PIPE)
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.isdigit():
            process.wait(_END_SECONDS)
            raise TraceProcessorError(f"the {self.engine} does not start: {self.fault()}")
        return f"127.0.0.1:{int(line)}"

    def _start_native(self) -> str:
        for attempt in range(_ATTEMPTS):
            self.address = f"127.0.0.1:{_free_port()}"
            port = self.address.rpartition(":")[2]
            self._spawn(["sh", "-c", _WATCHED, "sh", self.engine.where, "-D", "--http-port", port], self._log)
            try:
                self._await_answer()
            except TraceProcessorError:
                # Another process may have taken the port in between.
                self.close()
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                break
        return self.address

    def _spawn(self, command: list[str], output: int | IO[bytes]) -> subprocess.Popen[bytes]:
        # In a session of its own, so that Ctrl-C at a prompt ends a query's client and not the engine under it.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=self._log, start_new_session=True
        )
        self._process = process
        self._end = weakref.finalize(self, _end, process)
        return process

    def _await_answer(self) -> None:
        deadline, pause = time.monotonic() + _START_SECONDS, _FIRST_PAUSE
        while not self._answers():
            ended = self._process is not None and self._process.poll() is not None
            if ended or self._process is None or time.monotonic() > deadline:
                raise TraceProcessorError(f"the {self.engine} does not answer: {self.fault()}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(self.address, timeout=_END_SECONDS)
        try:
            connection.request("GET", "/status")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
