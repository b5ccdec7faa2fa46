"""Floating-point operations of matrix products, from the sizes that PyTorch appends to the names of NVTX ranges."""

from __future__ import annotations

import math
import re

import msgspec

_MOST = 1 << 62
_SIZES = re.compile(r"^(?P<name>[\w:]+), sizes = (?P<sizes>\[[\[\]\d, ]*\])")
_OPERANDS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
"""The innermost operators that multiply matrices → which of their arguments they multiply."""


def product_flops(text: str) -> int | None:
    """2 x M x N x K, times the batch; plus M x N where a bias is added.

    Args:
        text: of a range, without sequence number and operator id: ``aten::mm, sizes = [[64, 32], [32, 16]]``.

    Returns:
        None where the text names no matrix product or its sizes do not fit together.
    """
    match = _SIZES.match(text)
    if match is None or match["name"] not in _OPERANDS:
        return None
    try:
        sizes = msgspec.json.decode(match["sizes"], type=list[list[int]])
    except msgspec.DecodeError:
        return None
    first, second = _OPERANDS[match["name"]]
    if len(sizes) <= second:
        return None
    left, right = sizes[first], sizes[second]
    if len(left) < 2 or len(left) != len(right) or left[-1] != right[-2] or left[:-2] != right[:-2]:
        return None
    made = math.prod(left[:-1]) * right[-1]
    flops = made * (2 * left[-1] + first)
    return flops if 0 <= flops < _MOST else None
