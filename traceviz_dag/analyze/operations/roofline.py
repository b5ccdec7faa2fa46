"""What a perfect kernel would take: the roofline of S. Williams et al., "Roofline" (2009), in whole nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

from traceviz_dag.analyze.operations.work import Work
from traceviz_dag.analyze.peaks import GpuPeaks
from traceviz_dag.vocabulary import MATRIX, Bound, OperationClass

MOST_OF_PEAK = 1.1
"""How much faster than its stated peak a GPU may compute, whose clock is higher at times; of more, a number is wrong.
Memory has no such bound: caches serve what was read before."""

_NS_PER_SECOND = 10**9
_LONGEST_NS = 2**53
"""About a hundred days: sums of so long times still fit a column."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time of some equal calls.

    Attributes:
        roofline_ns: None where it is not known.
        bound: what it is limited by; None where the time is not known.
        peak_flops_per_s: the peak that was used; None where none is needed or known.
        reason: why roofline_ns is None; None where it is not.
    """

    roofline_ns: int | None = None
    bound: Bound | None = None
    peak_flops_per_s: int | None = None
    reason: str | None = None


def roofline(
    work: Work,
    operation_class: OperationClass,
    calls: int,
    kernel_ns: int,
    peaks: GpuPeaks | None,
    device: str | None,
) -> Roofline:
    """The longer of operations over the peak of their number format, and bytes over the memory's bandwidth.

    Only products, attention and convolutions are held against a peak; all else is limited by memory.

    Args:
        kernel_ns: what the calls took.
        peaks: of the GPU; None where they are not known. device: its name, as the trace has it.
    """
    matrix = operation_class in MATRIX
    if work.bytes is None or (matrix and work.flops is None):
        return Roofline(reason=work.reason)
    if peaks is None:
        named = f"no peaks are known of {device}: add them to the settings of the home"
        return Roofline(reason=named if device else "the trace names no GPU")
    bandwidth = peaks.memory_bytes_per_s
    peak = peaks.flops_per_s.get(work.number_format or "") if matrix else None
    if bandwidth is None or (matrix and peak is None):
        missing = "memory bandwidth" if bandwidth is None else f"{work.number_format or 'integer'} peak"
        return Roofline(None, None, peak, f"no {missing} of {device} is known")
    moving = _whole(work.bytes * calls * _NS_PER_SECOND, bandwidth)
    computing = _whole((work.flops or 0) * calls * _NS_PER_SECOND, peak) if peak is not None else 0
    if max(moving, computing) > _LONGEST_NS:
        return Roofline(None, None, peak, "its sizes are larger than any tensor is")
    if computing > kernel_ns * MOST_OF_PEAK:
        return Roofline(None, None, peak, f"computing it takes {device} longer than it took: sizes or peak are wrong")
    return Roofline(max(moving, computing), Bound.COMPUTE if computing > moving else Bound.MEMORY, peak)


def _whole(total: int, per_second: int) -> int:
    """The quotient, rounded to the nearest whole number."""
    return (total + per_second // 2) // per_second
