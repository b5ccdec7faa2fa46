"""The limit of a process's address space (``ulimit -v``), reported before a library crashes on it.

Libraries reserve addresses for each thread (stacks, and 64 MB of glibc's heap each), far more than they use, and end
the process where they get none.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from traceviz_dag.errors import TracevizError
from traceviz_dag.system.control_groups import processors

_LEAST = 1_400_000 * 1024
"""Below it, loading Arrow, DuckDB and Dagster ends in a segmentation fault on some machines."""

_PLENTY = 8 << 30
_M_ARENA_MAX, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -8, -1, -3
_KEPT_FREE, _MAPPED_FROM = 1 << 28, 1 << 25
THREADS = "OMP_NUM_THREADS"
"""The variable that says how many threads Arrow, DuckDB here, and libraries of linear algebra may start."""

_CAPS = {THREADS: "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}


class TooLittleMemoryError(TracevizError):
    """The limit of the address space leaves no room for this program."""


def address_space() -> int | None:
    """The limit in bytes; None without one."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def adapt() -> None:
    """Have libraries that are loaded from now on reserve little, here and in workers, where the limit is low, and start
    no more threads than the process's control groups have processors.

    Raises:
        TooLittleMemoryError: nothing can be computed within the limit.
    """
    limit = address_space()
    if limit is not None and limit < _LEAST:
        raise TooLittleMemoryError(
            f"the limit of the address space (ulimit -v) is {limit // 1024:,} KB, and this program needs "
            f"{_LEAST // 1024:,}; raise it"
        )
    if limit is not None and limit < _PLENTY:
        for name, value in _CAPS.items():
            os.environ.setdefault(name, value)
        if sys.platform == "linux":
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    if share := processors():
        os.environ.setdefault(THREADS, str(share))


@contextmanager
def numpys_memory() -> Iterator[None]:
    """Have Arrow take memory where numpy does, for work in which arrays of both follow each other.

    By default each keeps for itself what it freed: a rank of many kernels takes a quarter more at its peak.
    """
    import pyarrow as pa

    former = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(former)


def keep_freed_memory() -> None:
    """Have glibc keep up to 256 MiB of freed memory for the next array, in processes that end soon.

    By default it returns arrays to the system, and getting their pages anew takes longer than filling them. Arrow's
    arrays come from there too.
    """
    # Imported here because most processes have no use for it.
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "mallopt"):  # musl has none
            library.mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE)
            library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)
