"""Convolutions: 2 operations per element of the result, weight of its group and input channel; each tensor once.

The backward pass has one product for each of the two gradients (of the input, of the weight) that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from traceviz_dag.analyze.operations.tensors import Inputs, Tensor, UnknownWorkError
from traceviz_dag.analyze.operations.work import Work, counted

_SETTINGS = "strides, padding or dilation"


def forward(
    *, stride: int, padding: int, dilation: int, bias: int | None = None, transposed: int | None = None
) -> Callable[[Inputs], Work]:
    """The work of an operator whose first inputs are input [N, C, ...] and weight; the rest are positions of arguments.

    A transposed convolution scatters each element of its input, where others gather each of their result.
    """

    def work(inputs: Inputs) -> Work:
        given, weight = inputs.tensor(0), inputs.tensor(1)
        _check_together(given, weight)
        if transposed is not None and inputs.flag(transposed, "whether it is transposed"):
            # The size of its result has further settings; its operations have not.
            flops = 2 * given.elements * weight.elements // weight.sizes[0]
            return Work(flops, reason="the size of a transposed convolution is not computed")
        result = _result(inputs, given, weight, stride, padding, dilation)
        added = inputs.optional(bias) if bias is not None else None
        flops = 2 * result.elements * prod(weight.sizes[1:])
        moved = [given, weight, result]
        if added is not None:
            flops += result.elements
            moved.append(added)
        return counted(flops, moved, given)

    return work


def backward(inputs: Inputs) -> Work:
    """``convolution_backward(gradient, input, weight, bias sizes, ..., transposed, ..., groups, mask)``."""
    gradient, given, weight = (inputs.tensor(place) for place in range(3))
    _check_together(gradient, given, weight)
    mask = inputs.value(10).replace(" ", "").strip("[]").lower().split(",")
    if len(mask) != 3 or not set(mask) <= {"true", "false"}:
        raise UnknownWorkError("not recorded: which gradients are asked for")
    of_input, of_weight, of_bias = (each == "true" for each in mask)
    moves = given if inputs.flag(7, "whether it is transposed") else gradient
    each = 2 * moves.elements * prod(weight.sizes[1:])
    moved: list[Tensor] = []
    if of_input:
        moved += [gradient, weight, given]
    if of_weight:
        moved += [gradient, given, weight]
    flops = each * (of_input + of_weight)
    if of_bias:
        flops += gradient.elements
        moved.append(gradient.shaped(gradient.sizes[1]))
    return counted(flops, moved, gradient)


def _check_together(*tensors: Tensor) -> None:
    """Refuse tensors of different numbers of dimensions, or of none that are convolved, and weights without a channel.

    Raises:
        UnknownWorkError: they are such.
    """
    if len({len(each.sizes) for each in tensors}) > 1 or len(tensors[-1].sizes) < 3 or not tensors[-1].sizes[0]:
        raise UnknownWorkError("the sizes of its inputs do not go together")


def _result(inputs: Inputs, given: Tensor, weight: Tensor, stride: int, padding: int, dilation: int) -> Tensor:
    spatial = len(given.sizes) - 2
    settings = [inputs.integers(place, _SETTINGS) for place in (stride, padding, dilation)]
    steps, pads, spread = (each * spatial if len(each) == 1 else each for each in settings)
    if not len(steps) == len(pads) == len(spread) == spatial or min(steps) < 1:
        raise UnknownWorkError(f"not recorded: {_SETTINGS}")
    sizes = [
        (size + 2 * pad - gap * (width - 1) - 1) // step + 1
        for size, pad, gap, width, step in zip(given.sizes[2:], pads, spread, weight.sizes[2:], steps, strict=True)
    ]
    if min(sizes) < 0:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    return given.shaped(given.sizes[0], weight.sizes[0], *sizes)
