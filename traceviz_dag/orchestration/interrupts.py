"""No interrupt is lost on its way through Dagster and SQLAlchemy, and none is told twice.

Dagster raises an interrupt wherever Python happens to be when it comes. In a finaliser or a weak reference's callback
Python prints such an error and goes on as if nothing had happened; where Dagster holds interrupts back to store its
events, one that comes late is forgotten; SQLAlchemy logs it with its traceback while it closes a connection.

Dagster also treats a request to end (SIGTERM) as an interrupt, and goes on doing so: where interrupts are ignored, as
in a job in the background, nobody could end the process after its first run.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

import dagster as dg

_INTERRUPTS = (KeyboardInterrupt, dg.DagsterExecutionInterruptedError)
_AGAIN_SECONDS = 0.02


@contextmanager
def interrupts_arrive() -> Iterator[None]:
    """Whatever happens to an interrupt inside, KeyboardInterrupt leaves the block, at its end at the latest.

    SIGTERM counts as an interrupt inside; behind the block it does what it did before. In another thread than the main
    one, which gets no interrupts, this does nothing.

    Raises:
        KeyboardInterrupt: the user interrupted it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, hearing = socket.socketpair()
    with heard, hearing, _swallowed_interrupts_come_again(), _interrupts_are_not_logged():
        heard.setblocking(False)
        hearing.setblocking(False)
        # Python writes the number of every signal there, whoever handles it.
        former = signal.set_wakeup_fd(hearing.fileno(), warn_on_full_buffer=False)
        ended_by = signal.getsignal(signal.SIGTERM)
        try:
            yield
        except dg.DagsterExecutionInterruptedError:
            raise KeyboardInterrupt from None
        finally:
            signal.signal(signal.SIGTERM, ended_by)
            signal.set_wakeup_fd(former)
        if {signal.SIGINT, signal.SIGTERM}.intersection(_read(heard)):
            raise KeyboardInterrupt


def _read(heard: socket.socket) -> bytes:
    try:
        return heard.recv(1 << 16)
    except BlockingIOError:
        return b""


@contextmanager
def _swallowed_interrupts_come_again() -> Iterator[None]:
    former = sys.unraisablehook
    main = threading.get_ident()
    told, ended = threading.Lock(), threading.Event()

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, _INTERRUPTS):
            threading.Thread(target=interrupt_again, name="interrupts again", daemon=True).start()
        else:
            former(unraisable)

    def interrupt_again() -> None:
        # A moment later, when the main thread has left the place that swallows it: this hook swallows it, too.
        while not ended.wait(_AGAIN_SECONDS):
            if not _is_inside(hook.__code__, sys._current_frames().get(main)):
                break
        with told:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = former
        # What was swallowed at the very end is told by the end of the block, and must not strike behind it.
        with told:
            ended.set()


def _is_inside(code: CodeType, frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


@contextmanager
def _interrupts_are_not_logged() -> Iterator[None]:
    """Keep the log lines of libraries that an interrupt passes through off the terminal.

    Nothing has set up logging: Python's handler of last resort prints them.
    """
    handler = logging.lastResort
    if handler is None:
        yield
        return
    handler.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        handler.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, _INTERRUPTS)
