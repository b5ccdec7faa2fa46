"""Another try within the tick where Dagster's SQLite storage is busy: somebody else writes to it at this moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import OperationalError

Seen = TypeVar("Seen")

_ATTEMPTS = 4
_FIRST_PAUSE_SECONDS = 0.25


def once_free(look: Callable[[], Seen], pause: Callable[[float], None] = time.sleep) -> Seen:
    """What a look at the storage gives; one that finds it locked is repeated, three times at most.

    SQLite itself waits five seconds before it gives up, so that a tick lasts 22 s at most on account of it.

    Args:
        look: reads only, or does nothing that must not be done twice.
        pause: waits so many seconds.

    Raises:
        OperationalError: the storage stays locked, or has another fault.
    """
    seconds = _FIRST_PAUSE_SECONDS
    for _ in range(_ATTEMPTS - 1):
        try:
            return look()
        except OperationalError as error:
            if "database is locked" not in str(error) and "database table is locked" not in str(error):
                raise
        pause(seconds)
        seconds *= 2
    return look()
