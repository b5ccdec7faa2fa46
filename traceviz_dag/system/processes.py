"""Processes that end with the one that started them, however that one ends: pools of workers, and programs.

A worker whose parent is killed would wait for its next task for ever, since it holds both ends of its queue.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, TypeVar

from traceviz_dag.errors import OutputError, TracevizError
from traceviz_dag.system.semaphores import SHARED_MEMORY, keep_sockets_in_scratch_folder, name_semaphores

Item = TypeVar("Item")
Result = TypeVar("Result")

_PR_SET_PDEATHSIG = 1
_FAMILY_VARIABLE = "TRACEVIZ_FAMILY"
_SAFE_PATH = "PYTHONSAFEPATH"
_GRACE_SECONDS = 2.0
_SERVER_ENDS_SECONDS = 0.2
"""So long multiprocessing may take a server that was killed for one that runs."""

_LOOK_SECONDS = 1.0
_BEHIND = 3
"""How far a worker stands back for others, as ``nice`` counts: two together have the share of one that does not."""

_SILENT_INTERRUPTS = "traceviz_dag.system.silent_interrupts"
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class WorkerDiedError(TracevizError):
    """The process that worked on an item died, twice: in company, and alone."""

    def __init__(
        self, told: str = "a worker died, most likely for want of memory; run with fewer workers or more memory"
    ) -> None:
        super().__init__(told)


def spread(
    work: Callable[..., Result],
    items: Sequence[Item],
    workers: int,
    *,
    arguments: tuple[object, ...] = (),
    preload: Sequence[str] = (),
) -> Iterator[tuple[int, Result | WorkerDiedError]]:
    """Work on items side by side in processes that end with this one; results come as they are finished.

    A worker that dies takes its pool along; what was not finished by then is tried again, each item in a process of
    its own. What ``work`` raises is raised here.

    Args:
        work: takes an item, and ``arguments``, which are sent to each worker once.
        preload: modules that workers find imported, where the system can do that.

    Yields:
        The number of an item and its result, or a ``WorkerDiedError`` where its own process died, too.
    """
    left = dict(enumerate(items))
    context = _context(preload)
    for number, result in _pool(context, work, left, workers, arguments):
        del left[number]
        yield number, result
    for number, item in left.items():
        alone = list(_pool(context, work, {number: item}, 1, arguments))
        yield alone[0] if alone else (number, WorkerDiedError())


def spread_in_order(
    work: Callable[..., Result],
    items: Sequence[Item],
    workers: int,
    preload: Sequence[str] = (),
    arguments: tuple[object, ...] = (),
) -> Generator[Result, None, None]:
    """As :func:`spread`, in the order of the items.

    Raises:
        WorkerDiedError: the process of an item died.
    """
    finished: dict[int, Result] = {}
    following = 0
    for number, result in spread(work, items, workers, arguments=arguments, preload=preload):
        if isinstance(result, WorkerDiedError):
            raise result
        finished[number] = result
        while following in finished:
            yield finished.pop(following)
            following += 1


def start_ahead(preload: Sequence[str]) -> None:
    """Start what workers fork from, where the system can do that: its imports run beside what this process does until
    it spreads work with the same ``preload``."""
    context = _context(preload)
    keep_sockets_in_scratch_folder()
    with nothing_from_the_current_folder(), without_main_script(None):
        _start_server(context)


def _start_server(context: multiprocessing.context.BaseContext) -> None:
    """Start what workers fork from, unless it runs: ``silent_interrupts`` unblocks there what is blocked here."""
    if context.get_start_method() == "forkserver":
        from multiprocessing import forkserver, resource_tracker

        # Starting it unblocks interrupts.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stand_back() -> None:
    """Let this worker process work where others, first of all the one that wants its results, leave a core idle."""
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), _BEHIND))


def end_with_parent() -> None:
    """Let this worker process end as soon as the one that wants its results is gone."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    # A job in the background ignores interrupts; Dagster then also ignores SIGTERM, and workers inherit that: a broken
    # pool would wait forever for workers that it has asked to stop.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(OSError):
        _end_on_end_of_file(parent.sentinel)

    def watch(seconds: float | None = None) -> None:
        if multiprocessing.connection.wait([parent.sentinel], seconds):
            os.kill(os.getpid(), signal.SIGKILL)

    # It may have gone before its end was watched.
    watch(0)
    threading.Thread(target=watch, name="ends with its parent", daemon=True).start()


def _end_on_end_of_file(pipe: int) -> None:
    """Have the system kill this process when the other end of a pipe is closed, also while Python cannot run a thread.

    The parent's death alone would not do: a worker's parent is the server that it forked from, which lives on for as
    long as any of its workers does.
    """
    if sys.platform == "linux":
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def end_children_with_me() -> None:
    """Have every process that this one starts from now on, and theirs, ended once this one is gone, if it is killed.

    Where nothing of this package runs in them, only their environment shows whose they are: it names the family, and a
    small process in a session of its own reads a pipe whose other end this process holds, also after an ``exec``. It
    gives them two seconds to end by themselves. Linux only; elsewhere nothing happens.
    """
    if _libc is None:
        return
    os.environ[_FAMILY_VARIABLE] = family = os.urandom(16).hex()
    end, mine = os.pipe()
    os.set_inheritable(mine, True)
    environment = {name: value for name, value in os.environ.items() if name != _FAMILY_VARIABLE}
    subprocess.Popen(
        [sys.executable, "-P", "-c", _WATCHER, family],
        stdin=end,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    os.close(end)


def kill_family(family: str) -> None:
    """Kill the processes whose environment names a family, until none is left."""
    wanted = f"{_FAMILY_VARIABLE}={family}".encode()
    for _ in range(10):
        members = [int(place.name) for place in Path("/proc").iterdir() if _is_member(place, wanted)]
        if not members:
            return
        for member in members:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(member, signal.SIGKILL)
        time.sleep(0.05)


def _is_member(place: Path, wanted: bytes) -> bool:
    try:
        return place.name.isdigit() and wanted in (place / "environ").read_bytes().split(b"\0")
    except OSError:
        # It has ended, or belongs to another user.
        return False


_WATCHER = f"""
import sys, time
sys.stdin.buffer.read()
time.sleep({_GRACE_SECONDS})
from traceviz_dag.system.processes import kill_family
kill_family(sys.argv[1])
"""


def run_program(
    command: Sequence[str], environment: Mapping[str, str] | None = None, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and keep what it says; on Linux it is killed when this process is.

    Args:
        environment: None takes this process's. given: on its standard input; None gives it this process's.
    """
    return subprocess.run(
        command, capture_output=True, check=False, text=True, preexec_fn=_die_with_parent, env=environment, input=given
    )


def run_reader(command: Sequence[str], file: IO[bytes]) -> subprocess.CompletedProcess[bytes]:
    """Run a program that reads an open file on its standard input, and keep the bytes that it writes.

    It says nothing on this process's standard error, and on Linux is killed when this process is.
    """
    return subprocess.run(
        command,
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        preexec_fn=_die_with_parent,
    )


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def without_main_script(work: object) -> Iterator[None]:
    """Let workers that start meanwhile not run the script of this program again, which may be anybody's.

    One without ``if __name__ == "__main__"`` would start workers in the workers, and end them. Nothing of ours needs
    it; work that is defined there does.
    """
    main = vars(sys.modules["__main__"])
    names = () if getattr(work, "__module__", None) == "__main__" else ("__file__", "__spec__")
    before = {name: main.pop(name) for name in names if name in main}
    main.setdefault("__spec__", None)
    try:
        yield
    finally:
        main.update(before)


@contextmanager
def nothing_from_the_current_folder() -> Iterator[None]:
    """Let Python processes that start meanwhile import nothing from the folder that they start in.

    That folder may hold anybody's files: beside traces that somebody downloaded, a ``random.py`` would be run.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _context(preload: Sequence[str]) -> multiprocessing.context.BaseContext:
    """Workers that fork from a server which has done the imports, where the system has that; never from this process,
    whose threads would not survive it."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_SILENT_INTERRUPTS, *preload])
    return context


def _pool(
    context: multiprocessing.context.BaseContext,
    work: Callable[..., Result],
    items: dict[int, Item],
    workers: int,
    arguments: tuple[object, ...],
) -> Iterator[tuple[int, Result]]:
    """Results in the order of completion; ends early when the pool breaks.

    After an error what others have under way is yielded, what waits is not begun, and the error is raised.
    """
    fault: BaseException | None = None
    count = min(workers, len(items))
    if not count:
        return
    keep_sockets_in_scratch_folder()
    with nothing_from_the_current_folder():
        name_semaphores()
        executor = _executor(count, context, arguments)
    with executor as pool, _ended_on_interrupt(pool):
        try:
            with nothing_from_the_current_folder(), without_main_script(work):
                _start_server(context)
                futures: dict[Future[Result], int] = {
                    pool.submit(_work, work, item): number for number, item in items.items()
                }
        except (EOFError, ConnectionError):
            # The server that workers fork from was killed: the next pool starts another one.
            _terminate(pool)
            time.sleep(_SERVER_ENDS_SECONDS)
            return
        pending = set(futures)
        while pending:
            done, pending = first_done(pool, pending)
            if not done and not _is_managed(pool):
                _terminate(pool)
                return
            for future in done:
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    time.sleep(_SERVER_ENDS_SECONDS)
                    return
                if error is None:
                    yield futures[future], future.result()
                    continue
                fault = fault or error
                pending = {one for one in pending if not one.cancel()}
    if fault is not None:
        raise fault


def _executor(
    count: int, context: multiprocessing.context.BaseContext, arguments: tuple[object, ...]
) -> ProcessPoolExecutor:
    try:
        return ProcessPoolExecutor(count, context, _begin, arguments)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # The system's error names no place.
        fault = f"worker processes cannot share anything there ({error.strerror})"
        raise OutputError(SHARED_MEMORY, fault, "free space there and run it again", error.errno) from error


def _is_managed(pool: ProcessPoolExecutor) -> bool:
    """Whether the thread that hands tasks to workers is alive; where it could not start one itself, nobody says so."""
    manager = getattr(pool, "_executor_manager_thread", None)
    return not isinstance(manager, threading.Thread) or manager.is_alive()


def first_done(
    pool: ProcessPoolExecutor, futures: Iterable[Future[Result]]
) -> tuple[set[Future[Result]], set[Future[Result]]]:
    """Wait a second for the first of some futures; those that are done, and the others.

    A worker that dies breaks its pool, so that all are done. If it dies while it sends a result, the pool's own thread
    would wait for the rest of that for ever: the pool is broken here.
    """
    done, pending = wait(futures, _LOOK_SECONDS, FIRST_COMPLETED)
    if not done and multiprocessing.connection.wait([process.sentinel for process in _processes_of(pool)], 0):
        _terminate(pool)
        _end_of_results(pool)
    return done, pending


def _processes_of(pool: ProcessPoolExecutor) -> list[BaseProcess]:
    return list((getattr(pool, "_processes", None) or {}).values())


def _terminate(pool: ProcessPoolExecutor) -> None:
    for process in _processes_of(pool):
        process.terminate()


def _end_of_results(pool: ProcessPoolExecutor) -> None:
    """Let nobody wait for the rest of a result that a worker was sending: that is waited for as long as anybody holds
    the end that writes."""
    with suppress(AttributeError, OSError):
        pool._result_queue._writer.close()  # type: ignore[attr-defined]


@contextmanager
def _ended_on_interrupt(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Workers are not waited for when the user interrupts, or nobody wants further results: what they have not finished
    is done another time."""
    before = set(multiprocessing.active_children())
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            _kill_server()
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        _end_of_results(pool)
        raise


def _kill_server() -> None:
    """Let no worker start that was asked for before an interrupt: the semaphores that it looks for go now. The next
    pool starts another server."""
    from multiprocessing import forkserver

    server = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    if server is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


_ARGUMENTS: list[object] = []
"""What the work of this worker process takes beside an item; set once when it starts."""


def _begin(*arguments: object) -> None:
    end_with_parent()
    # Ctrl-C reaches the whole group: the process that fans out ends its workers, and says so once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _ARGUMENTS[:] = arguments


def _work(work: Callable[..., Result], item: Item) -> Result:
    return work(item, *_ARGUMENTS)
