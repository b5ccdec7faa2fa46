"""Operations that memory limits: each operand and each result moves once; FLOPs follow conventions, see below.

An elementwise operation, conversions and copies included, counts one per element of its result, a reduction one per
element of its input. Per element of the input, a norm counts 5 (mean, variance, difference, product, sum), an RMS norm
4, their backward passes 9; softmax counts 5 (maximum, difference, exponential, sum, quotient) and 4 backward. None of
them reaches the time that its bytes take.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from traceviz_dag.analyze.operations.tensors import WHOLE_TYPES, Inputs, Tensor, UnknownWorkError, broadcast, promoted
from traceviz_dag.analyze.operations.work import Work, counted

_NORM, _RMS, _NORM_BACKWARD, _SOFTMAX, _SOFTMAX_BACKWARD = 5, 4, 9, 5, 4
"""FLOPs per element."""

Formula = Callable[[Inputs], Work]


def elementwise(
    operands: int, *, in_place: bool, result: str = "", only_written: bool = False, floats: bool = False
) -> Formula:
    """A result of the sizes that the operands broadcast to.

    Args:
        operands: arguments that may be tensors; a tensor behind them is where the result is written.
        in_place: the first operand is the result. only_written: and is not read.
        result: its element type; by default that of PyTorch's type promotion. floats: of whole numbers, a float.
    """

    def work(inputs: Inputs) -> Work:
        given = inputs.arguments[:operands]
        read = [each for each in given if isinstance(each, Tensor)]
        if not read:
            raise UnknownWorkError("the sizes of its inputs are not recorded")
        kind = result or promoted(read)
        if floats and kind in WHOLE_TYPES:
            kind = "float"
        written = inputs.tensor(0) if in_place else Tensor(broadcast(read), kind)
        if kind in WHOLE_TYPES and not (in_place or result) and len(read) < len(given):
            return Work(written.elements, reason="not recorded: the number beside it, which decides the result's type")
        moved = [*(read[1:] if only_written else read), written]
        return counted(written.elements, moved, _computed_in(written, read))

    return work


def copied(inputs: Inputs) -> Work:
    """``copy_(to, from)``: the second is read and broadcast to the first, which is written."""
    return elementwise(2, in_place=True, only_written=True)(inputs)


def filled(inputs: Inputs) -> Work:
    """``fill_`` and ``zero_``: the first is written."""
    written = inputs.tensor(0)
    return counted(0, (written,), written)


def joined(inputs: Inputs) -> Work:
    """``cat`` and ``stack``: each tensor of a list is read, and written."""
    parts = inputs.arguments[0] if inputs.arguments else None
    if not isinstance(parts, tuple) or not parts:
        raise UnknownWorkError("the sizes of the tensors in its list are not recorded")
    if not all(part.type for part in parts):
        raise UnknownWorkError("the types of the tensors in its list are not recorded")
    return counted(0, (*parts, *parts), parts[0])


def reduced(
    dimensions: int | None, *, result: str = "", type_at: int | None = None, beside: str = "", widened: bool = False
) -> Formula:
    """A reduction of the first input over dimensions.

    Args:
        dimensions: position of the argument that lists them; None reduces all.
        result: its element type, by default the input's. type_at: position of the argument that may name another.
        beside: element type of a second result (places). widened: of whole numbers and truth values, a long one.
    """

    def work(inputs: Inputs) -> Work:
        given = inputs.tensor(0)
        kind = inputs.type_of_code(type_at) if type_at is not None else None
        try:
            over = _reduced_dimensions(inputs, dimensions, given)
        except UnknownWorkError as error:
            return Work(given.elements, reason=str(error))
        sizes = [size for place, size in enumerate(given.sizes) if place not in over]
        wide = "long int" if widened and given.type in WHOLE_TYPES else None
        written = given.shaped(*sizes, type=kind or result or wide)
        moved = [given, written, *([given.shaped(*sizes, type=beside)] if beside and over != _ALL else [])]
        return counted(given.elements, moved, given)

    return work


_ALL: frozenset[int] = frozenset(range(64))
"""More dimensions than any tensor has."""


def _reduced_dimensions(inputs: Inputs, place: int | None, given: Tensor) -> frozenset[int]:
    if place is None or len(inputs.arguments) <= place:
        return _ALL
    if place >= len(inputs.values):
        raise UnknownWorkError("not recorded: the dimensions that it reduces")
    if inputs.value(place) in ("", "[]", "None"):
        return _ALL
    numbers = inputs.integers(place, "the dimensions that it reduces")
    return frozenset(number % len(given.sizes) for number in numbers) if given.sizes else _ALL


def softmax(inputs: Inputs) -> Work:
    """``_softmax(x, dimension, half_to_float)``."""
    given = inputs.tensor(0)
    written = given.shaped(*given.sizes, type="float" if inputs.value(2) == "True" else None)
    return counted(_SOFTMAX * given.elements, (given, written), given)


def fused_softmax(inputs: Inputs) -> Work:
    """Megatron's, with scale and mask; a mask that is a tensor is read, too."""
    given = inputs.tensor(0)
    written = given.shaped(*given.sizes)
    return counted(_SOFTMAX * given.elements, (*inputs.tensors, written), given)


def softmax_backward(inputs: Inputs) -> Work:
    """``_softmax_backward_data(gradient, result, ...)``."""
    gradient, result = inputs.tensor(0), inputs.tensor(1)
    moved = (gradient, result, gradient.shaped(*gradient.sizes))
    return counted(_SOFTMAX_BACKWARD * gradient.elements, moved, gradient)


def batch_norm(*, training: int) -> Formula:
    """``batch_norm(x [N, C, ...], weight, bias, running mean, running variance, training, ...)``.

    Training reads and writes the running statistics, three operations each per channel.
    """

    def work(inputs: Inputs) -> Work:
        given = inputs.tensor(0)
        vectors = [each for each in inputs.arguments[1:5] if isinstance(each, Tensor)]
        statistics = [each for each in inputs.arguments[3:5] if isinstance(each, Tensor)]
        moved = [given, given.shaped(*given.sizes), *vectors]
        flops = _NORM * given.elements
        if inputs.flag(training, "whether it trains"):
            moved += statistics
            flops += 3 * sum(each.elements for each in statistics)
        return counted(flops, moved, given)

    return work


def batch_norm_backward(inputs: Inputs) -> Work:
    """``native_batch_norm_backward(gradient, x, weight, running mean and variance, saved mean and deviation, training,
    ...)``: training reads what the forward pass saved, evaluation the running statistics."""
    gradient, given, weight = inputs.tensor(0), inputs.tensor(1), inputs.optional(2)
    first = 5 if inputs.flag(7, "whether it trains") else 3
    statistics = [each for each in inputs.arguments[first : first + 2] if isinstance(each, Tensor)]
    # The gradients of weight and bias are as large as the weight.
    moved = [gradient, given, given, *statistics, *([weight] * 3 if weight is not None else [])]
    return counted(_NORM_BACKWARD * given.elements, moved, given)


def layer_norm(*, saved: int, rms: bool = False, into: bool = False) -> Formula:
    """A norm over the last dimensions: its first input, and vectors, are read.

    Args:
        saved: numbers per row that are written for the backward pass, as fp32.
        rms: it takes no mean. into: the first tensor is where the result is written.
    """

    def work(inputs: Inputs) -> Work:
        tensors = inputs.tensors
        given = inputs.tensor(0)
        vectors = [each for each in tensors[1:] if not (into and each.sizes == given.sizes)]
        width = max((each.elements for each in vectors), default=0)
        rows = given.elements // width if width else 0
        moved = [given, given.shaped(*given.sizes), *vectors]
        moved += [Tensor((rows,), "float")] * saved if width else []
        return counted((_RMS if rms else _NORM) * given.elements, moved, given)

    return work


def layer_norm_backward(inputs: Inputs) -> Work:
    """``native_layer_norm_backward(gradient, x, shape, mean, deviation, weight, bias, mask)`` and the RMS norm's:
    gradients are as large as the weights and the input."""
    gradient, given = inputs.tensor(0), inputs.tensor(1)
    rest = inputs.tensors[2:]
    weights = [each for each in rest if each.elements and given.sizes[-1:] == each.sizes[-1:]]
    moved = [gradient, given, given, *rest, *weights]
    return counted(_NORM_BACKWARD * given.elements, moved, given)


def rows_of_table(table: int, indices: int) -> Formula:
    """``embedding`` and ``index_select``: the rows that the indices name are read and written.

    Args:
        table, indices: positions of the two.
    """

    def work(inputs: Inputs) -> Work:
        rows, chosen = inputs.tensor(table), inputs.tensor(indices)
        if not rows.sizes:
            raise UnknownWorkError("the sizes of its inputs do not go together")
        moved = rows.shaped(chosen.elements, prod(rows.sizes[1:]))
        return counted(0, (chosen, moved, moved), None)

    return work


def embedding_backward(inputs: Inputs) -> Work:
    """``embedding_dense_backward(gradient, indices, rows, ...)``: the gradient of the whole table is written."""
    gradient, chosen = inputs.tensor(0), inputs.tensor(1)
    rows = inputs.integers(2, "the rows of its table")
    if len(rows) != 1 or not gradient.sizes or rows[0] < 0:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    written = gradient.shaped(rows[0], gradient.sizes[-1])
    return counted(gradient.elements, (gradient, chosen, written), gradient)


def dropout(inputs: Inputs) -> Work:
    """``native_dropout(x, probability, train)``: the result and a mask of bytes are written."""
    given = inputs.tensor(0)
    moved = (given, given.shaped(*given.sizes), given.shaped(*given.sizes, type="bool"))
    return counted(given.elements, moved, given)


def optimizer_lists(read: int, written: int) -> Formula:
    """A fused optimizer over lists of tensors (``_fused_adamw_``): so many lists are read, so many of them written.

    Its operations per element depend on its settings and are not counted.
    """

    def work(inputs: Inputs) -> Work:
        lists = _lists(inputs, read)
        try:
            moved = sum(each.bytes for part in (*lists, *(lists[:1] + lists[2:])[:written]) for each in part)
        except UnknownWorkError:
            return Work(reason="the types of the tensors in its lists are not recorded")
        reason = "operations of a fused optimizer are not counted"
        return Work(None, moved, None, reason)

    return work


def for_each(lists: int, *, only_written: bool = False) -> Formula:
    """``_foreach_...``: one elementwise operation per tensor of its lists; a list is written.

    Args:
        only_written: the first list is written, and not read; alone, nothing is computed.
    """

    def work(inputs: Inputs) -> Work:
        found = _lists(inputs, 1)
        found += [each for each in inputs.arguments[1:lists] if isinstance(each, tuple)]
        flops = 0 if only_written and lists == 1 else sum(each.elements for each in found[0])
        try:
            moved = sum(each.bytes for part in (*found, *([] if only_written else found[:1])) for each in part)
        except UnknownWorkError:
            reason = "the types of the tensors in its lists are not recorded"
            return Work(flops, reason=reason)
        return Work(flops, moved)

    return work


def _lists(inputs: Inputs, count: int) -> list[tuple[Tensor, ...]]:
    found = [each for each in inputs.arguments[:count] if isinstance(each, tuple) and each]
    if len(found) < count:
        raise UnknownWorkError("the sizes of the tensors in its lists are not recorded")
    return found


def _computed_in(written: Tensor, read: list[Tensor]) -> str:
    """The element type in which is computed: comparisons write bytes and compare floats."""
    return (promoted(read) or written.type) if written.type == "bool" else written.type
