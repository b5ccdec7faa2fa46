"""Which iterations are being analysed, and which were left half renewed: marks beside the list of their inputs.

A process that renews an iteration holds a lock on a mark of its own. A mark that nobody holds was left by a process
that was killed or interrupted: tables of ranks may be newer than what was made of them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from traceviz_dag.lake.inputs import FOLDER
from traceviz_dag.system.whole_files import NO_LOCKS_HERE, locked

_SUFFIX = ".under_way"


@contextmanager
def under_way(home: Path, key: str) -> Iterator[None]:
    """Mark an iteration while its tables are renewed; the mark stays where that does not come to its end.

    What others left before goes at the end, too: the iteration is whole again.
    """
    folder = home / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    left = [mark for mark in _marks(home, key) if not _is_held(mark)]
    mark = folder / f"{key}.{os.urandom(4).hex()}{_SUFFIX}"
    descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with locked(mark, descriptor):
            # Until it holds a byte, a mark says nothing: its process may not hold it yet, and has renewed nothing.
            os.write(descriptor, b"\n")
            yield
            for ended in (mark, *left):
                ended.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def is_under_way(home: Path, key: str) -> bool:
    """Whether a process that is alive renews an iteration."""
    return any(_is_held(mark) for mark in _marks(home, key))


def was_left_half_renewed(home: Path, key: str) -> bool:
    """Whether an analysis of an iteration did not come to its end, and none did since."""
    return any(not _is_held(mark) for mark in _marks(home, key))


@dataclass(frozen=True, slots=True)
class Analysis:
    """An analysis that did not come to its end, or not yet.

    Attributes:
        key: of its iteration.
        since_ns: when it began, ns since the epoch.
        cut_off: whether the process that did it is gone.
    """

    key: str
    since_ns: int
    cut_off: bool


def analyses(home: Path) -> list[Analysis]:
    """What is being analysed in a home, and what was cut off and not done since; one entry an iteration, by key."""
    found: dict[str, Analysis] = {}
    for mark in _marks(home, ""):
        # The key ends before the mark's own number and its suffix.
        key = mark.name.removesuffix(_SUFFIX).rpartition(".")[0]
        with suppress(FileNotFoundError):
            one = Analysis(key, mark.stat().st_mtime_ns, not _is_held(mark))
            before = found.get(key)
            if before is None or (before.cut_off, -before.since_ns) > (one.cut_off, -one.since_ns):
                found[key] = one
    return [found[key] for key in sorted(found)]


def _marks(home: Path, key: str) -> list[Path]:
    """The marks of an iteration that say something; without a key those of all."""
    found = []
    with suppress(FileNotFoundError), os.scandir(home / FOLDER) as entries:
        for entry in entries:
            if entry.name.startswith(f"{key}." if key else "") and entry.name.endswith(_SUFFIX):
                with suppress(FileNotFoundError):
                    if entry.stat().st_size:
                        found.append(Path(entry.path))
    return found


def _is_held(mark: Path) -> bool:
    """Whether a process that is alive renews the iteration under this mark; one that is gone says so, too."""
    try:
        descriptor = os.open(mark, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        # Without locks nobody knows: it counts as cut off, which the next analysis ends.
        if error.errno not in NO_LOCKS_HERE:
            raise
    finally:
        os.close(descriptor)
    # Ended between the two calls: the mark of an analysis that came to its end is gone.
    return not mark.exists()
