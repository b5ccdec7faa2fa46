"""``traceviz mcp``: serve the answers of one home or folder to a program, over standard input and output."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceviz_dag.commands.common.ending import end_on
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.errors import TracevizError, UsageError
from traceviz_dag.lake.catalogue import LAKE_FOLDER
from traceviz_dag.system.paths import real_path

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
    for number in (signal.SIGTERM, signal.SIGHUP):
        end_on(number)
    try:
        server(held.job).run("stdio")
    except KeyboardInterrupt:
        pass
    finally:
        held.close()
    # Folders of multiprocessing, which it removes when a program ends by itself.
    getattr(util, "_run_finalizers", lambda: None)()
    # Threads and workers of questions that nobody waits for any more must not keep this process.
    os._exit(0)


class _Home:
    """A home, opened anew for each question: it may be analysed meanwhile."""

    def __init__(self, folder: Path) -> None:
        from traceviz_dag.api.job import Job

        self.job: Callable[[], Job] = lambda: Job(folder)
        self.job()

    def close(self) -> None:
        """Nothing is kept open."""


class _Traces:
    """Traces, analysed in the background from the start on."""

    def __init__(self, folder: Path) -> None:
        from traceviz_dag.pipeline.discovery import inputs_below

        inputs_below([folder])
        self._folder = folder
        self._opened = ExitStack()
        self._ended = threading.Event()
        self._job: Job | None = None
        self._error: TracevizError | None = None
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
        """Remove what was analysed; an analysis under way is given up."""
        for worker in multiprocessing.active_children():
            worker.terminate()
        with suppress(OSError):
            self._opened.close()

    def _analyse(self) -> None:
        from traceviz_dag.api.job import open_traces

        try:
            self._job = open_traces(self._folder, self._opened)
        except TracevizError as error:
            self._error = error
        finally:
            self._ended.set()
