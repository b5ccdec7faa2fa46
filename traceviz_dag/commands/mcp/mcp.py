"""``traceviz mcp``: serve the answers of one home or folder to a program, over standard input and output."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.errors import TracevizError, UsageError
from traceviz_dag.lake.catalogue import LAKE_FOLDER
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.whole_files import remove_own_scratch

if TYPE_CHECKING:
    from traceviz_dag.api.job import Job


def mcp(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[HOME|FOLDER]", help="A home, or traces, which are analysed into a folder that is removed."
        ),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Serve findings, measures, waits, predictions and SQL of one home or folder to agents (MCP, over stdio).

    Every tool only reads; nothing is written into the home or folder, and no port is opened. It ends when the program
    that started it closes its end. Needs the extra mcp of the package.
    """
    try:
        from traceviz_dag.commands.mcp.server import server
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("mcp", "anyio")):
            raise
        raise UsageError("traceviz mcp needs the extra mcp: pip install 'traceviz-dag[mcp]'") from error
    if sys.stdin is None or sys.stdout is None:
        raise UsageError("traceviz mcp speaks over standard input and output, and one is closed; an agent starts it")
    folder = real_path(path or home)
    held = _Home(folder) if path is None or (folder / LAKE_FOLDER).is_dir() else _Traces(folder)
    for number in _ENDING:
        # Not as Ctrl-C: the SDK's loop would wait for the next line of standard input before it ends.
        signal.signal(number, lambda *_: _leave(held))
    try:
        held.start()
        server(held.job).run("stdio")
    finally:
        _tidy(held)
    _leave(held)


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _leave(held: _Home | _Traces) -> NoReturn:
    """End this process, whatever its threads do: an analysis, and queries that nobody waits for any more."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    _tidy(held)
    # Folders of multiprocessing, which it removes when a program ends by itself.
    getattr(util, "_run_finalizers", lambda: None)()
    os._exit(0)


def _tidy(held: _Home | _Traces) -> None:
    held.close()
    remove_own_scratch()


class _Home:
    """A home, opened anew for each question: it may be analysed meanwhile."""

    def __init__(self, folder: Path) -> None:
        from traceviz_dag.api.job import Job

        self.job: Callable[[], Job] = lambda: Job(folder)
        self.job()

    def start(self) -> None:
        """Nothing is computed before a question."""

    def close(self) -> None:
        """Nothing is kept open."""


class _Traces:
    """Traces, analysed in the background."""

    def __init__(self, folder: Path) -> None:
        from traceviz_dag.pipeline.discovery import inputs_below

        inputs_below([folder])
        self._folder = folder
        self._opened = ExitStack()
        self._ended = threading.Event()
        self._job: Job | None = None
        self._error: TracevizError | None = None

    def start(self) -> None:
        """Start the analysis."""
        threading.Thread(target=self._analyse, daemon=True).start()

    def job(self) -> Job:
        """The job, once it is analysed.

        Raises:
            TracevizError: it could not be.
        """
        self._ended.wait()
        if self._job is None:
            raise self._error or UsageError(f"{self._folder} could not be analysed")
        return self._job

    def close(self) -> None:
        """Give up an analysis under way; its folder is removed with the others of this process."""
        for worker in multiprocessing.active_children():
            worker.terminate()

    def _analyse(self) -> None:
        from traceviz_dag.api.job import open_traces

        try:
            self._job = open_traces(self._folder, self._opened)
        except TracevizError as error:
            self._error = error
        finally:
            self._ended.set()
