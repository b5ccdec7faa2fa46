"""Files in memory as far as they are looked at, without holding them open.

Python's own maps keep a descriptor for each file until 3.13, and a job has more ranks than a process may have
descriptors (often 1,024).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_PROT_READ = 1
_MAP_SHARED = 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_longlong if ctypes.sizeof(ctypes.c_void_p) == 8 else ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def mapped_bytes(path: Path) -> npt.NDArray[np.uint8]:
    """The bytes of a file, which cannot be written; they stay as they are when another file takes its name.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # Nothing cannot be mapped.
        return np.asarray(_Mapped(path, file.fileno(), size)) if size else np.empty(0, np.uint8)


class _Mapped:
    """A map that lives for as long as an array over it does."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self._size = 0
        self._address = _libc.mmap(None, size, _PROT_READ, _MAP_SHARED, descriptor, 0)
        if self._address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        self._size = size

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self._size,), "typestr": "|u1", "data": (self._address, True)}

    def __del__(self) -> None:
        if self._size:
            _libc.munmap(self._address, self._size)
