"""Imported for its effect, in the server that workers fork from: an interrupt ends it, and them, without a traceback.

It reaches all processes of a terminal, and the one that starts workers reports it; Python would also show which import
it came in, or what a worker lacked that was just forked.
"""

from __future__ import annotations

import signal
import sys
from types import TracebackType


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    # What a worker is to do, and the semaphores that it names, are gone with who was interrupted while starting it.
    if not issubclass(kind, EOFError | FileNotFoundError):
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = _show
signal.signal(signal.SIGINT, signal.SIG_DFL)
# It was started with interrupts blocked: one that came meanwhile ends it here.
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
