"""What one call of an operation computes and moves, or why that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from traceviz_dag.analyze.operations.tensors import NUMBER_FORMATS, Tensor, UnknownWorkError


class Work(NamedTuple):
    """The work of one call.

    Attributes:
        flops: floating-point operations; None where unknown.
        bytes: what it has to read and write at least, each operand and each result once; None where unknown.
        number_format: in which it computes: bf16, fp16, fp8, fp4, fp32 or fp64; None where unknown, or no float.
        reason: why flops or bytes is None; None where neither is.
    """

    flops: int | None = None
    bytes: int | None = None
    number_format: str | None = None
    reason: str | None = None


def counted(flops: int, moved: Iterable[Tensor], computed_in: Tensor | str | None) -> Work:
    """The work of an operation whose operands and results, all of them moved once, are known.

    Args:
        computed_in: an operand, or the element type in which it computes.
    """
    kind = computed_in.type if isinstance(computed_in, Tensor) else computed_in or ""
    number_format = NUMBER_FORMATS.get(kind)
    try:
        return Work(flops, sum(tensor.bytes for tensor in moved), number_format)
    except UnknownWorkError as error:
        return Work(flops, None, number_format, str(error))
