"""Matrix products of linear layers, and which of them give gradients of weights, by the names of kernels.

A linear layer's backward step has two products. That of the weights sums over the tokens, so BLAS runs it with operands
(N, T), which the name of its kernel states; that of the inputs has (N, N), or (T, N) where weights are kept transposed.
In FP8 all have (T, N), and names of persistent kernels may state none: then nothing tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from traceviz_dag.arrays import Int32, Int64

PRODUCT, OF_WEIGHTS = 1, 2
"""Codes of products, and of those with operands (N, T)."""

_PRODUCT = re.compile(r"gemm|nvjet|\bcijk_", re.I)
_NO_LINEAR = re.compile(r"flash|fmha|attention|attn|splitk_?reduce", re.I)
_OF_WEIGHTS = re.compile(r"^nvjet\w*_NT[NT]?(?:_|$)|gemm\w*_nt(?![a-z0-9])|^Cijk_Ailk_Bjlk")
_BATCHED = ("aten::bmm", "aten::baddbmm")
"""Operators of unfused attention, whose products sum over tokens too."""


def products(name: Int32, names: Sequence[str], operator: Int32, operators: Sequence[str]) -> Int64:
    """The code of each kernel, by its name and its operator; 0 for what is no product of a linear layer."""
    of_name = [_code(each) for each in names]
    batched = [each in _BATCHED for each in operators]
    return np.where(np.array([*batched, False])[operator], 0, np.array([*of_name, 0])[name]).astype(np.int64)


@lru_cache(maxsize=1 << 14)  # The ranks of a job have the same names.
def _code(name: str) -> int:
    if not _PRODUCT.search(name) or _NO_LINEAR.search(name):
        return 0
    return OF_WEIGHTS if _OF_WEIGHTS.search(name) else PRODUCT
