"""Opens files that are files: a FIFO, socket or device would block a reader or never end."""

from __future__ import annotations

import os
import stat
from io import FileIO, RawIOBase
from pathlib import Path

from traceviz_dag.errors import BadInputError
from traceviz_dag.system.stand_ins import open_object, stand_in

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_stream(path: Path) -> RawIOBase:
    """As :func:`open_regular`; of a path that stands in for an object of a store, the object, which has no descriptor.

    Raises:
        StoreError: reading it does, where the store cannot be asked.
    """
    one = stand_in(path)
    return open_object(path, one) if one is not None else open_regular(path)


def open_regular(path: Path) -> FileIO:
    """Open a regular file for reading, unbuffered; opening never blocks.

    Raises:
        BadInputError: it is a FIFO, a socket, a device or a folder, or its name holds a NUL.
        OSError: it cannot be opened.
    """
    try:
        kind = kind_of(path)
    except ValueError:
        raise BadInputError(path, "no such file", "check the path") from None
    if kind is not None:
        raise BadInputError(path, f"{kind}, not a file", "name a file")
    # Not blocking, for what takes the file's place in between.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)


def seems_file(path: Path) -> bool:
    """Whether a path is a regular file; False for one that may not be looked at, whose reader says so."""
    try:
        return path.is_file()
    except OSError:
        return False


def seems_folder(path: Path) -> bool:
    """Whether a path is a folder; False for one that may not be looked at."""
    try:
        return path.is_dir()
    except OSError:
        return False


def kind_of(path: Path) -> str | None:
    """What a path is, in words; None for a regular file.

    Raises:
        OSError: there is nothing, or a link leads nowhere.
        ValueError: no path holds a NUL.
    """
    return _KINDS.get(stat.S_IFMT(path.stat().st_mode))
