"""Which iterations are being analysed, and which were left half renewed: a mark beside the list of their inputs.

The process that renews an iteration holds a shared lock on the mark. A mark that nobody holds was left by a process
that was killed or interrupted: tables of ranks may be newer than what was made of them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traceviz_dag.lake.inputs import FOLDER


@contextmanager
def under_way(home: Path, key: str) -> Iterator[None]:
    """Mark an iteration while its tables are renewed; the mark stays where that does not come to its end."""
    path = _mark(home, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
        if _is_free(descriptor):
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def was_left_half_renewed(home: Path, key: str) -> bool:
    """Whether the last analysis of an iteration did not come to its end, and none is under way."""
    try:
        descriptor = os.open(_mark(home, key), os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return _is_free(descriptor)
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    """Whether nobody else holds the mark."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _mark(home: Path, key: str) -> Path:
    return home / FOLDER / f"{key}.under_way"
