"""The child process that reads a snapshot: it may take little memory and time, and hands columns of numbers back.

It reads the file on standard input and writes to standard output: a line of JSON, then the columns one after the
other. Only the standard library is imported here, so that it starts in milliseconds.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from typing import Any

from traceviz_dag.read.memory.extraction import Extraction, NotASnapshotError
from traceviz_dag.read.memory.plain_pickle import NotPlainError, read_plain

BASE_BYTES, PER_BYTE = 1 << 30, 6
"""Address space that the child may take: so much, and so many times the file."""

_BASE_SECONDS, _BYTES_PER_SECOND = 5, 1 << 22
_NO_MEMORY = "it asks for more memory than a snapshot of its size needs"


def main() -> None:
    """Read standard input, and leave without tidying up: the containers may be nested without end."""
    size = os.fstat(0).st_size
    _limit(resource.RLIMIT_AS, BASE_BYTES + PER_BYTE * size)
    _limit(resource.RLIMIT_CPU, _BASE_SECONDS + size // _BYTES_PER_SECOND)
    _limit(resource.RLIMIT_CORE, 0)
    gc.disable()
    # Made before the memory is short.
    no_memory = _header({"fault": _NO_MEMORY})
    try:
        try:
            # It stays until the process has ended: to free it would take a tenth of all.
            value = read_plain(sys.stdin.buffer)
            parts = encoded(value, size)
        except (NotPlainError, NotASnapshotError) as error:
            parts = [_header({"fault": str(error)})]
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
    except (MemoryError, RecursionError):
        # What fills the memory is still there.
        os.write(1, no_memory)
    os._exit(0)


def encoded(value: Any, size: int) -> list[Any]:
    """The header and the columns of a snapshot, as bytes-like objects.

    Args:
        value, size: as of :class:`Extraction`.

    Raises:
        NotASnapshotError: it is none.
    """
    extraction = Extraction(value, size)
    columns = [(table, name, column) for table, each in extraction.columns.items() for name, column in each.items()]
    described = [(table, name, column.typecode, len(column)) for table, name, column in columns]
    header = _header({"columns": described, **extraction.facts()})
    return [header, *(column for _, _, column in columns)]


def _header(value: dict[str, Any]) -> bytes:
    # Surrogates stay escapes.
    return json.dumps(value).encode("ascii") + b"\n"


def _limit(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(what, (most, hard))
