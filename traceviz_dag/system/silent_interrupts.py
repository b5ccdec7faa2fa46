"""Imported for its effect, in the server that workers fork from: an interrupt ends it without a traceback.

It reaches all processes of a terminal, and the one that starts workers reports it; Python would also show which import
it came in.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)
# It was started with interrupts blocked: one that came meanwhile ends it here.
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
