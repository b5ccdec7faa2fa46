"""Processes that end with the one that started them, however that one ends: pools of workers, and programs.

A worker whose parent is killed would wait for its next task for ever, since it holds both ends of its queue.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from traceviz_dag.errors import TracevizError

Item = TypeVar("Item")
Result = TypeVar("Result")

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class WorkerDiedError(TracevizError):
    """The process that worked on an item died, twice: in company, and alone."""

    def __init__(self) -> None:
        super().__init__("a worker died, most likely for want of memory; run with fewer workers or more memory")


def spread(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int,
    *,
    start: Callable[..., object] | None = None,
    arguments: tuple[object, ...] = (),
    preload: Sequence[str] = (),
) -> Iterator[tuple[int, Result | WorkerDiedError]]:
    """Work on items side by side in processes that end with this one; results come as they are finished.

    A worker that dies takes its pool along; what was not finished by then is tried again, each item in a process of
    its own. What ``work`` raises is raised here.

    Args:
        start, arguments: called once in every worker before its first item.
        preload: modules that workers find imported, where the system can do that.

    Yields:
        The number of an item and its result, or a ``WorkerDiedError`` where its own process died, too.
    """
    left = dict(enumerate(items))
    context = _context(preload)
    for number, result in _pool(context, work, left, workers, start, arguments):
        del left[number]
        yield number, result
    for number, item in left.items():
        alone = list(_pool(context, work, {number: item}, 1, start, arguments))
        yield alone[0] if alone else (number, WorkerDiedError())


def spread_in_order(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """As :func:`spread`, in the order of the items.

    Raises:
        WorkerDiedError: the process of an item died.
    """
    finished: dict[int, Result] = {}
    following = 0
    for number, result in spread(work, items, workers):
        if isinstance(result, WorkerDiedError):
            raise result
        finished[number] = result
        while following in finished:
            yield finished.pop(following)
            following += 1


def end_with_parent() -> None:
    """Let this worker process end as soon as the one that wants its results is gone."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if _libc is not None and os.getppid() != parent.pid:
        # The parent here is the server that workers fork from, which ends with the process that started it. The
        # system's signal also reaches a worker that is busy in a library. (It is sent when the starting *thread*
        # ends, which in the server is the only one.)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="ends with its parent", daemon=True).start()


def run_program(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and keep what it says; on Linux it is killed when this process is."""
    return subprocess.run(command, capture_output=True, check=False, text=True, preexec_fn=_die_with_parent)


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _context(preload: Sequence[str]) -> multiprocessing.context.BaseContext:
    """Workers that fork from a server which has done the imports, where the system has that; never from this process,
    whose threads would not survive it."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    if preload:
        context.set_forkserver_preload(list(preload))
    return context


def _pool(
    context: multiprocessing.context.BaseContext,
    work: Callable[[Item], Result],
    items: dict[int, Item],
    workers: int,
    start: Callable[..., object] | None,
    arguments: tuple[object, ...],
) -> Iterator[tuple[int, Result]]:
    """Results in the order of completion; ends early when the pool breaks."""
    count = min(workers, len(items))
    if not count:
        return
    with ProcessPoolExecutor(count, context, _begin, (start, arguments)) as pool:
        try:
            futures: dict[Future[Result], int] = {pool.submit(work, item): number for number, item in items.items()}
            pending = set(futures)
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield futures[future], future.result()
        except BrokenProcessPool:
            return
        except BaseException:
            # What is under way cannot be called back, but what waits need not be done before the error is told.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(start: Callable[..., object] | None, arguments: tuple[object, ...]) -> None:
    end_with_parent()
    if start is not None:
        start(*arguments)
