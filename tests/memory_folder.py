"""Where tests write: into memory where there is plenty, since SQLite and Parquet wait for the disk at each commit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PREFIX = "traceviz-tests-"
_CONTROL_GROUP = Path("/sys/fs/cgroup")
_NEEDED = 10 << 30
"""What must be free: all tests together write a third of it."""


def folder_in_memory() -> Path | None:
    """A folder of this process in memory, not created yet; None where there is too little of it.

    Those of processes that were killed are removed.
    """
    if not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK):
        return None
    for former in _MEMORY.glob(f"{_PREFIX}*"):
        if not Path("/proc", former.name.removeprefix(_PREFIX)).exists():
            shutil.rmtree(former, ignore_errors=True)
    if min(shutil.disk_usage(_MEMORY).free, *_free_bytes()) < _NEEDED:
        return None
    return _MEMORY / f"{_PREFIX}{os.getpid()}"


def _free_bytes() -> list[int]:
    """What the machine has free, and what the container leaves of it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")] or [0]
    limit, used = _CONTROL_GROUP / "memory.max", _CONTROL_GROUP / "memory.current"
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        found.append(int(limit.read_text()) - int(used.read_text()))
    return found
