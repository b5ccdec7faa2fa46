"""Which processes of this machine are alive, and since when, as the system shows it."""

from __future__ import annotations

import os
from pathlib import Path

_START = 19
_START_TOLERANCE_SECONDS = 5.0


def status_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the state comes first, the start in clock ticks is number 19.

    Raises:
        OSError: there is no such process, or no such file on this system.
    """
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def start_ticks(pid: int) -> str | None:
    """When a process started, in clock ticks since the boot; None where none of that number is shown."""
    try:
        return status_of(pid)[_START]
    except (OSError, IndexError):
        return None


def is_alive(pid: int, since: float) -> bool:
    """Whether the process that bore this number at a time (seconds since the epoch) is still there.

    A number that another process bears by now does not count, where the system shows when that one started.
    """
    if not _exists(pid):
        return False
    started = _start_of(pid)
    return started is None or started <= since + _START_TOLERANCE_SECONDS


def _start_of(pid: int) -> float | None:
    """When a process started, seconds since the epoch; None where /proc does not show. A zombie started never."""
    try:
        status = status_of(pid)
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    except (OSError, StopIteration):
        return None
    if status[0] == "Z":
        return float("inf")
    return float(boot.split()[1]) + int(status[_START]) / os.sysconf("SC_CLK_TCK")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
