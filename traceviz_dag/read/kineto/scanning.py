"""Whether a file is worth the compiled scanner, which takes its time to start."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from traceviz_dag.read.kineto.communication_facts import FactValues
from traceviz_dag.read.kineto.event_decoder import EventDecoder
from traceviz_dag.read.kineto.rows import Piece

if TYPE_CHECKING:
    from traceviz_dag.read.kineto.scanned_rows import PieceScanner

_WORTH_BYTES = 4_000_000_000
"""JSON that a process has read, or reads now, from which on a scanner is compiled: 2 GB more repay its 7 seconds."""

_INFLATION = 10
"""JSON bytes of a compressed byte, about."""

_SAMPLE = b"""[
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 3.001, "dur": 4, "args": {
"External id": 5, "Input Dims": [[8, 8], []]}},
{"ph": "X", "cat": "kernel", "name": "a kernel of more than eight bytes", "pid": 0, "tid": 7, "ts": 1234567.5, "dur": 2,
"args": {"External id": 5, "stream": 7, "correlation": 12345678901, "grid": [1, 2, 3],
"Collective name": "a", "Seq": 9}}
]"""

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
    """None without numba, or where it compiles to something else.

    Compiled anew in each process: numba's cache on the disk is not checked, and a version that a full disk or a kill
    left half in it reads wrong times, or ends the process.
    """
    try:
        from traceviz_dag.read.kineto.scanned_rows import PieceScanner
    except ImportError:
        return None
    return PieceScanner if _reads_as_msgspec(PieceScanner()) else None


def _reads_as_msgspec(scanner: PieceScanner) -> bool:
    """Whether a scanner understands a few events, as other versions of numba may compile it otherwise."""
    scanned, known = scanner.piece(memoryview(_SAMPLE), msgspec.json.decode), EventDecoder().decode(memoryview(_SAMPLE))
    return scanned is not None and all(map(np.array_equal, _read(scanned), _read(known)))


def _read(piece: Piece) -> Iterator[npt.NDArray[Any]]:
    yield from (np.array(piece.decoded), piece.codes, piece.start_ns, piece.duration_us)
    yield from (piece.rows.names(defaultdict(count().__next__)), piece.rows.integers("external_id"))
    kernel = piece.rows.take(np.array([1]))
    places, facts = kernel.named(FactValues())
    yield from (kernel.integers("correlation"), kernel.triples("grid"), places, facts["sequence"])
