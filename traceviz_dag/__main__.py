"""Where the ``traceviz`` program starts, also as ``python -m traceviz_dag``: Ctrl-C meanwhile shows no traceback."""

from __future__ import annotations

import os
import signal
from types import FrameType

_INTERRUPTED = 130


def _end(_number: int, _frame: FrameType | None) -> None:
    # An exception would be shown by whichever import it meets.
    os._exit(_INTERRUPTED)


def main() -> None:
    """Import the program, and run it, which catches interrupts itself."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from traceviz_dag.commands.main import main as run

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
