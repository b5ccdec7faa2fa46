"""Attention: two products of 2·Nq·Nkv·d per head forward, five backward; half of them under a causal mask.

Source: T. Dao et al., "FlashAttention" (2022): the backward pass computes the scores again, hence 2.5 times. A causal
mask halves the matrix of scores where queries and keys are equally many; elsewhere how it lies is not recorded. A
window, which lets a query see so many keys before and behind it, leaves exactly those scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from traceviz_dag.analyze.operations.tensors import Inputs, Tensor, UnknownWorkError
from traceviz_dag.analyze.operations.work import Work, counted

_CAUSAL = "whether the mask is causal"
_FORWARD = (2, 2)
"""Operations per element of the scores and channel: the product with the keys, and that with the values."""

_BACKWARD = (6, 4)
"""The scores again and the gradients of queries and keys; the gradients of values and of the scores."""

_WINDOW = "how many keys a query sees"
_PACKED = "its sequences are packed, and their lengths are not recorded"


def forward(
    *,
    causal: int,
    heads_first: bool,
    packed_by: int | None = None,
    window: int | None = None,
    bias: int | None = None,
    backward: bool = False,
    given: bool = False,
) -> Callable[[Inputs], Work]:
    """The work of an operator whose first three inputs are queries, keys and values.

    Args:
        causal: position of the argument that says whether the mask is causal.
        heads_first: sizes are [batch, heads, length, channels], not [batch, length, heads, channels].
        packed_by: position of the lengths of packed sequences.
        window: position of how many keys before a query it sees, which is followed by how many behind it; or of both.
        bias: position of what is added to the scores, an operation per score.
        backward: the work of the backward pass, by the inputs of the forward pass.
        given: the gradient of its result comes before them.
    """

    def work(inputs: Inputs) -> Work:
        queries, keys, values = (inputs.tensor(place + given) for place in range(3))
        of_keys, of_values, lengths = _scores(queries, keys, values, heads_first, packed=_is_packed(inputs, packed_by))
        result = inputs.tensor(0) if given else queries.shaped(*queries.sizes[:-1], values.sizes[-1])
        added, adds = _added(inputs, bias, of_keys, keys)
        moved: Sequence[Tensor] = (queries, keys, values, result)
        if backward:
            # Read: what the forward pass had, its result and the gradient; written: three gradients.
            moved = (*moved, *moved)
        weights = _BACKWARD if backward else _FORWARD
        flops = weights[0] * of_keys + weights[1] * of_values + adds
        moved = (*moved, *added)
        return _masked(inputs, (causal, window), flops, lengths, moved)

    return work


backward = partial(forward, backward=True, given=True)
"""The same of an operator whose inputs are the gradient of its result, queries, keys, values and the result."""


def unmasked(inputs: Inputs) -> Work:
    """Autograd functions (``FlashAttnFunc``, ``FusedAttnFunc``): only tensors are recorded, so the mask is not."""
    heads = [each for each in inputs.tensors if len(each.sizes) >= 3]
    if len(heads) < 3:
        raise UnknownWorkError(_PACKED if heads else "the sizes of its inputs are not recorded")
    queries, keys, values = heads[:3]
    result = queries.shaped(*queries.sizes[:-1], values.sizes[-1])
    known = counted(0, (queries, keys, values, result), queries)
    return Work(None, known.bytes, known.number_format, f"not recorded: {_CAUSAL}")


def unmasked_backward(inputs: Inputs) -> Work:
    """The backward pass of the same, by the inputs of the forward pass: all of them, and their gradients."""
    found = unmasked(inputs)
    return found._replace(bytes=None if found.bytes is None else 2 * found.bytes)


def over_ranks(inputs: Inputs) -> Work:
    """Context parallelism of Transformer Engine: an activation of this rank's part of the sequence; its mask and the
    keys and values of other ranks are not recorded.

    Raises:
        UnknownWorkError: always.
    """
    raise UnknownWorkError("not recorded: its mask, and the keys of other ranks (context parallelism)")


def _added(inputs: Inputs, place: int | None, of_keys: int, keys: Tensor) -> tuple[tuple[Tensor, ...], int]:
    """The bias of the scores, which is read once, and how many additions it makes."""
    bias = None if place is None else inputs.optional(place)
    if bias is None or not bias.sizes:
        return (), 0
    return (bias,), of_keys // max(keys.sizes[-1], 1)


def _is_packed(inputs: Inputs, place: int | None) -> bool:
    return place is not None and inputs.optional(place) is not None


def _scores(
    queries: Tensor, keys: Tensor, values: Tensor, heads_first: bool, *, packed: bool
) -> tuple[int, int, tuple[int, int]]:
    """(elements of the scores × channels of keys, × channels of values, (numbers of queries and of keys))."""
    if packed:
        raise UnknownWorkError(_PACKED)
    if not len(queries.sizes) == len(keys.sizes) == len(values.sizes) == 4:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    length, head = (2, 1) if heads_first else (1, 2)
    scores = queries.sizes[0] * queries.sizes[head] * queries.sizes[length] * keys.sizes[length]
    return scores * keys.sizes[3], scores * values.sizes[3], (queries.sizes[length], keys.sizes[length])


def _masked(
    inputs: Inputs, places: tuple[int, int | None], flops: int, lengths: tuple[int, int], moved: Sequence[Tensor]
) -> Work:
    """The work under its mask; without FLOPs where the mask is not recorded, or not how it lies.

    Args:
        places: of the causal mask, and of the window. flops: without a mask. lengths: of queries and keys.
    """
    known = counted(0, moved, inputs.tensor(0))
    try:
        is_causal, (before, behind) = inputs.flag(places[0], _CAUSAL), _window(inputs, places[1], max(lengths))
        behind = 0 if is_causal else behind
        if lengths[0] != lengths[1] and min(before, behind) < max(lengths):
            raise UnknownWorkError("queries and keys under a mask are of different lengths")
        if before < lengths[0] - 1 or 0 < behind < lengths[0] - 1:
            flops = flops * _in_window(lengths[0], before, behind) // lengths[0] ** 2
        elif behind == 0:
            flops //= 2
    except UnknownWorkError as error:
        return Work(None, known.bytes, known.number_format, str(error))
    return Work(flops, known.bytes, known.number_format, known.reason)


def _window(inputs: Inputs, place: int | None, length: int) -> tuple[int, int]:
    """How many keys before and behind its own a query sees; ``length`` where it sees all that the mask leaves.

    Raises:
        UnknownWorkError: it is recorded as something else.
    """
    if place is None or inputs.value(place) in ("", "None"):
        return length, length
    numbers = inputs.integers(place, _WINDOW)
    if len(numbers) == 1:
        numbers += [-1] if inputs.value(place + 1) in ("", "None") else inputs.integers(place + 1, _WINDOW)
    if len(numbers) != 2:
        raise UnknownWorkError(f"not recorded: {_WINDOW}")
    # Below 0 is all of them.
    before, behind = (length if number < 0 else min(number, length) for number in numbers)
    return before, behind


def _in_window(length: int, before: int, behind: int) -> int:
    """Scores that are in a window of so many keys before and behind each query."""
    before, behind = min(before, length - 1), min(behind, length - 1)
    return length * (1 + before + behind) - before * (before + 1) // 2 - behind * (behind + 1) // 2
