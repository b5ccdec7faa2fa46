"""Ending by a signal as by Ctrl-C."""

from __future__ import annotations

import signal


def end_on(number: signal.Signals) -> None:
    """Let a signal end this process as Ctrl-C does, so that it tidies up first."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(number, end)
