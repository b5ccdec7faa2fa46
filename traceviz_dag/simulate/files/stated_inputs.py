"""What simulated operators state of their inputs, as Kineto writes it: of the operators that PyTorch names.

Of compiled code and libraries only sizes are stated: as many elements of two bytes as their kernels move.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from traceviz_dag.simulate.templates import Template
from traceviz_dag.simulate.tree import Bound, Kernel

_BF16 = "c10::BFloat16"
_HEAD = 128
"""Channels of a simulated attention head."""

_Sizes = list[list[int]]


class _Moved(NamedTuple):
    """What an operator of equally large tensors states.

    Attributes:
        types: of its tensors. nbytes: that it moves per element, its result included. numbers: arguments after them.
    """

    types: tuple[str, ...]
    nbytes: int
    numbers: int = 0


_FLOAT, _ELEMENT = "float", 2
_MOVED: Mapping[str, _Moved] = {
    "aten::add": _Moved((_BF16, _BF16), 6, 1),
    "aten::add_": _Moved((_FLOAT, _FLOAT), 12, 1),
    "aten::clamp": _Moved((_FLOAT,), 8, 2),
    "aten::copy_": _Moved((_BF16, _FLOAT), 6, 1),
    "aten::div": _Moved((_FLOAT, _FLOAT), 12),
    "aten::fill_": _Moved((_FLOAT,), 4, 1),
    "aten::gelu": _Moved((_BF16,), 4, 1),
    "aten::gelu_backward": _Moved((_BF16, _BF16), 6, 1),
    "aten::mul": _Moved((_FLOAT, _FLOAT), 12),
    "aten::mul_": _Moved((_FLOAT,), 8, 1),
    # The mask has a byte per element.
    "aten::native_dropout": _Moved((_BF16,), 5, 2),
    "aten::native_dropout_backward": _Moved((_BF16, "bool"), 5, 1),
    "aten::pow": _Moved((_FLOAT,), 8, 1),
    "aten::reciprocal": _Moved((_FLOAT,), 8),
    "aten::_softmax": _Moved((_FLOAT,), 8, 2),
    "aten::_softmax_backward_data": _Moved((_FLOAT, _FLOAT), 12, 2),
    "aten::zero_": _Moved((_FLOAT,), 4),
    "ScaledUpperTriangMaskedSoftmax": _Moved((_BF16,), 4, 1),
}
"""Operator → what it states; as many bytes as its kernel moves."""


class _Given(NamedTuple):
    """One argument: sizes and type of a tensor, or the value of another."""

    sizes: tuple[int, ...] = ()
    type: str = "Scalar"
    value: str = ""


_LONG = "long int"
_ROWS: Mapping[str, Callable[[int, int, int], list[_Given]]] = {
    "aten::copy_": lambda count, width, table: [_Given((count // 8,), _LONG)] * 2 + [_Given(value="False")],
    "aten::embedding_dense_backward": lambda count, width, table: [
        *(_Given((_rows(count, width, 2), width), _BF16), _Given((_rows(count, width, 2),), _LONG)),
        *(_Given(value=str(_rows(count, width, 2))), _Given(value="-1"), _Given(value="False")),
    ],
    "aten::index_select": lambda count, width, table: [
        *(_Given((table, width), _BF16), _Given(value="0"), _Given((_rows(count, width, 2),), _LONG)),
    ],
    "aten::max": lambda count, width, table: [
        *(_Given((max(count // (4 * table), 1), table), _FLOAT), _Given(value="-1"), _Given(value="False")),
    ],
    "aten::native_layer_norm": lambda count, width, table: [
        _Given((_rows(count, width, 2), 1, width), _BF16),
        *(_Given((), "ScalarList", f"[{width}]"), *[_Given((width,), _BF16)] * 2, _Given(value="1e-05")),
    ],
    "aten::native_layer_norm_backward": lambda count, width, table: [
        *[_Given((_rows(count, width, 3), 1, width), _BF16)] * 2,
        _Given((), "ScalarList", f"[{width}]"),
        *[_Given((_rows(count, width, 3), 1, 1), _FLOAT)] * 2,
        *(*[_Given((width,), _BF16)] * 2, _Given((), "ScalarList", "[True, True, True]")),
    ],
    "aten::sum": lambda count, width, table: [_Given((max(count // 4, 1),), _FLOAT), _Given(type="")],
}
"""Operator → its arguments, from the bytes that its kernels move, the model's width, and the entries of its table."""


def _rows(nbytes: int, width: int, tensors: int) -> int:
    """How many rows of this width so many tensors have that have these bytes together."""
    return max(nbytes // (tensors * width * _ELEMENT), 1)


def stated_inputs(template: Template, width: int, table: int) -> dict[int, str]:
    """Row of an operator → the part of its arguments that is about its inputs.

    Args:
        width: hidden size of the model. table: entries of its vocabulary.
    """
    kernels: dict[int, list[Kernel]] = {}
    called: dict[int, list[Kernel]] = {}
    for row in template.rows:
        if row.kernel >= 0 and row.owner >= 0:
            kernel = template.kernels[row.kernel]
            kernels.setdefault(row.owner, []).append(kernel)
            around = row.owner
            while around >= 0:
                called.setdefault(around, []).append(kernel)
                around = template.rows[around].owner
    found = {}
    for index, row in enumerate(template.rows):
        mine = kernels.get(index, [])
        formed = _FORMS.get(row.name)
        # The forward pass of a Megatron linear layer calls its product, all others launch theirs themselves.
        source = called.get(index, []) if row.name in _CALLING else mine
        work = [kernel for kernel in source if kernel.bound in (Bound.PRODUCT, Bound.ATTENTION)]
        sizes = formed(work) if formed is not None and work else None
        moved = _MOVED.get(row.name)
        if sizes is not None:
            shards = _shards(called[index])
            sizes = [[size[0] // shards, *size[1:]] if len(size) == _ACTIVATION else size for size in sizes]
            found[index] = _text(sizes, [_BF16] * len(sizes), _VALUES.get(row.name, ()))
        elif moved is not None and len(mine) == 1 and mine[0].sizes:
            ((elements,),) = mine[0].sizes
            size = max(elements * _ELEMENT // moved.nbytes, 1)
            found[index] = _text([[size] for _ in moved.types], moved.types, ("1",) * moved.numbers)
        elif row.name in _ROWS and mine:
            moves = sum(kernel.nbytes or _ELEMENT * sum(map(prod, kernel.sizes)) for kernel in mine)
            given = _ROWS[row.name](moves, width, table)
            found[index] = _stated(given)
        else:
            read = [list(size) for kernel in mine for size in kernel.sizes]
            found[index] = f'"Input Dims": {json.dumps(read)}'
    return found


def _shards(called: Sequence[Kernel]) -> int:
    """How many ranks' shards a linear layer gathers before it multiplies; it states its own.

    Where it scatters, too, it gathers its activation for the gradient of the weight: it states the whole gradient.
    """
    messages = {each.collective.operation: each.collective for each in called if each.collective is not None}
    if "_allgather_base" not in messages or "_reduce_scatter_base" in messages:
        return 1
    gathered = messages["_allgather_base"]
    return gathered.out_elements // gathered.in_elements


_ACTIVATION = 3
"""Dimensions of the activation of a linear layer: tokens, batch, channels."""
_CALLING = frozenset({"LinearWithGradAccumulationAndAsyncCommunication"})
_SCALE = "0.088388347648318447"
_VALUES: Mapping[str, tuple[str, ...]] = {"FlashAttnFunc": ("0.", _SCALE, "True"), "aten::baddbmm": ("0.", _SCALE)}
"""Of attention dropout, scale, and whether the mask is causal; of its product beta and alpha."""


def _text(sizes: _Sizes, types: Sequence[str], values: Sequence[str]) -> str:
    tensors = [_Given(tuple(size), kind) for size, kind in zip(sizes, types, strict=True)]
    return _stated([*tensors, *(_Given(value=value) for value in values)])


def _stated(given: Sequence[_Given]) -> str:
    stated = {
        "Input type": [each.type for each in given],
        "Input Dims": [each.sizes for each in given],
        "Concrete Inputs": [each.value for each in given],
    }
    return ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in stated.items())


def _matrices(work: Sequence[Kernel]) -> _Sizes | None:
    return [list(size) for size in work[0].sizes] if len(work) == 1 else None


def _added_product(work: Sequence[Kernel]) -> _Sizes | None:
    """Of each batch what is added (with beta 0 a buffer), and the two matrices."""
    found = _matrices(work)
    return found and [[*found[0][:2], found[1][2]], *found]


def _linear(work: Sequence[Kernel]) -> _Sizes | None:
    """Transformer Engine: weight, activation."""
    if len(work) != 1:
        return None
    (rows, inner), (_, columns) = work[0].sizes
    return [[columns, inner], [rows, 1, inner]]


def _norm_and_linear(work: Sequence[Kernel]) -> _Sizes | None:
    """Transformer Engine: activation, weight of the norm, weight."""
    if len(work) != 1:
        return None
    (rows, inner), (_, columns) = work[0].sizes
    return [[rows, 1, inner], [inner], [columns, inner]]


def _megatron_linear(work: Sequence[Kernel]) -> _Sizes | None:
    """Megatron: activation, weight."""
    if len(work) != 1:
        return None
    (rows, inner), (_, columns) = work[0].sizes
    return [[rows, 1, inner], [columns, inner]]


def _grouped_linear(work: Sequence[Kernel]) -> _Sizes | None:
    """Transformer Engine: the activation of all experts, and a weight of each."""
    shapes = {(kernel.sizes[0][1], kernel.sizes[1][1]) for kernel in work}
    if len(shapes) != 1:
        return None
    ((inner, columns),) = shapes
    return [[sum(kernel.sizes[0][0] for kernel in work), inner], *([columns, inner] for _ in work)]


def _gradient(work: Sequence[Kernel]) -> _Sizes | None:
    """Of a linear layer: the gradient of its result, which its first product reads."""
    rows, columns = work[0].sizes[0]
    return [[rows, 1, columns]]


def _gradient_of_group(work: Sequence[Kernel]) -> _Sizes | None:
    """The same of all experts, whose products come in pairs: for the gradients of the activation and of the weight."""
    first = [kernel.sizes[0] for kernel in work[::2]]
    return [[sum(rows for rows, _ in first), first[0][1]]]


def _gradient_of_weight(work: Sequence[Kernel]) -> _Sizes | None:
    """The same where the first product is that for the gradient of the weight, which reads it transposed."""
    columns, rows = work[0].sizes[0]
    return [[rows, 1, columns]]


def _attention(work: Sequence[Kernel]) -> _Sizes | None:
    """Queries, keys and values: batch, length, heads, channels."""
    if len(work) != 1:
        return None
    (tokens, width), (context, _) = work[0].sizes
    channels = _HEAD if width % _HEAD == 0 else width
    batch = tokens // context if context and tokens % context == 0 else 1
    queries = [batch, tokens // batch, width // channels, channels]
    keys = [batch, context, width // channels, channels]
    return [queries, keys, keys]


def _gradient_of_attention(work: Sequence[Kernel]) -> _Sizes | None:
    return (_attention(work) or [])[:1] or None


_FORMS: Mapping[str, Callable[[Sequence[Kernel]], _Sizes | None]] = {
    "aten::mm": _matrices,
    "aten::bmm": _matrices,
    "aten::baddbmm": _added_product,
    "_Linear": _linear,
    "_LayerNormLinear": _norm_and_linear,
    "_GroupedLinear": _grouped_linear,
    "LinearWithGradAccumulationAndAsyncCommunication": _megatron_linear,
    "_LinearBackward": _gradient,
    "_LayerNormLinearBackward": _gradient,
    "_GroupedLinearBackward": _gradient_of_group,
    "LinearWithGradAccumulationAndAsyncCommunicationBackward": _gradient_of_weight,
    "FlashAttnFunc": _attention,
    "FlashAttnFuncBackward": _gradient_of_attention,
}
"""Operator → the sizes of its inputs, by the products or the attention that it launches."""
