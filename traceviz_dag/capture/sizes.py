"""How large a capture becomes and how long writing it holds the job up, from sizes measured on CPU runs."""

from __future__ import annotations

from dataclasses import dataclass

_BYTES_STACKS = 720_000
_BYTES_PLAIN = 170_000
"""Raw JSON of a transformer layer and micro-batch, forward and backward, with stacks and shapes, and without.

Measured on Megatron-core 0.16.1 with torch 2.13 on CPU: one layer, eight micro-batches a rank, 5.8 and 1.4 MB.
"""
_COMPRESSED_SHARE = 0.1
_BYTES_PER_SECOND = 37e6
"""Stopping the profiler and exporting 107 MB took 2.9 s on one core; the other ranks wait for that long."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A capture's size.

    Attributes:
        bytes_raw, bytes_compressed: of all ranks and iterations together.
        bytes_rank: raw, of one rank and iteration.
        seconds: for which the job pauses in all, all ranks writing at once.
    """

    bytes_raw: int
    bytes_compressed: int
    bytes_rank: int
    seconds: float


def estimate(*, layers: int, microbatches: int, iterations: int, ranks: int, stacks: bool) -> Estimate:
    """Size of a PyTorch Profiler capture.

    The rows of a GPU (launches and kernels) come on top of what was measured, and layers of other kinds differ: take it
    as an order of magnitude, and record one iteration of one rank for a better one.

    Args:
        layers: on one rank.
        microbatches: of one iteration.
        iterations: recorded.
        ranks: that record.
        stacks: with call stacks and shapes.
    """
    one = layers * microbatches * (_BYTES_STACKS if stacks else _BYTES_PLAIN)
    raw = one * iterations * ranks
    return Estimate(raw, round(raw * _COMPRESSED_SHARE), one, one * iterations / _BYTES_PER_SECOND)


def readable_bytes(count: int) -> str:
    """Bytes for people, in powers of 1000."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def readable_seconds(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
