"""Whether a file is worth the compiled scanner, which takes its time to start."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pickle import UnpicklingError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceviz_dag.read.kineto.scanned_rows import PieceScanner

_WORTH_BYTES = 400_000_000
"""JSON to read in a process from which on the scanner repays its start twice: 0.4 processor seconds, 115 MB."""

_INFLATION = 10
"""JSON bytes of a compressed byte, about."""

_OF_DAMAGED_PICKLES = (UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError)

_told: Counter[str] = Counter()


def scanner_for(size: int, *, compressed: bool) -> PieceScanner | None:
    """A scanner for a file of ``size`` bytes if this process reads enough to repay it and it can be had, else None."""
    _told["bytes"] += size * (_INFLATION if compressed else 1)
    # Uncompiled, as with this variable, it takes a hundred times as long.
    is_worth = _told["bytes"] >= _WORTH_BYTES and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
    return new_scanner() if is_worth else None


def new_scanner() -> PieceScanner | None:
    """A scanner; None where it cannot be had."""
    kind = _scanner()
    return kind() if kind is not None else None


@cache
def _scanner() -> type[PieceScanner] | None:
    """None without numba, where numba finds no folder for what it compiles, or where what it kept there is damaged."""
    try:
        from traceviz_dag.read.kineto.scanned_rows import PieceScanner

        # What was compiled before is loaded here, else compiled, which takes 7 processor seconds.
        PieceScanner().piece(memoryview(b"[{}]"), list)
    except (ImportError, RuntimeError, OSError, *_OF_DAMAGED_PICKLES):
        return None
    return PieceScanner
