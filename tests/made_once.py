"""What several tests start from, made once a run of the tests, whichever of its processes asks first."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path

_VARIABLE = "TRACEVIZ_TESTS_MADE"


@cache
def _folder() -> Path:
    """Workers of pytest-xdist inherit the folder of the process that started them, which removes it in the end."""
    if _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="traceviz_made_")
        Finalize(None, shutil.rmtree, (os.environ[_VARIABLE], True), exitpriority=-100)
    return Path(os.environ[_VARIABLE])


def begin() -> None:
    """Choose the folder, before other processes are started."""
    _folder()


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of a name, filled by the first who asks; nobody may change what is in it.

    Args:
        make: fills the folder, which is there.
    """
    place, mark = _folder() / name, _folder() / f"{name}.made"
    with (_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            make(place)
            mark.touch()
    return place
