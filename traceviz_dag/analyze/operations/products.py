"""Matrix products: 2·M·N·K operations, M·N more for an added bias; each matrix is moved once.

Sources: the definition of the product; kernels of Transformer Engine by its own functions (``te_gemm_ts``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from traceviz_dag.analyze.operations.tensors import Inputs, Tensor, UnknownWorkError, broadcast
from traceviz_dag.analyze.operations.work import Work, counted

Formula = Callable[[Inputs], Work]


def product(inputs: Inputs) -> Work:
    """``mm(a [M, K], b [K, N])``."""
    return _of(inputs.matrix(0), inputs.matrix(1))


def batched_product(inputs: Inputs) -> Work:
    """``bmm(a [B, M, K], b [B, K, N])``."""
    return _of(*_batches(inputs, 0, 3))


def product_plus(dimensions: int) -> Formula:
    """``addmm(c, a, b, beta, alpha)`` of two dimensions, ``baddbmm`` of three; with beta 0 nothing is added, and c is
    not read."""

    def work(inputs: Inputs) -> Work:
        added = None if inputs.value(3) in ("0", "0.", "0.0") else inputs.tensor(0)
        return _of(*_batches(inputs, 1, dimensions), added)

    return work


def _batches(inputs: Inputs, place: int, dimensions: int) -> tuple[Tensor, Tensor]:
    """Two neighbouring inputs of so many dimensions, whose batches are equal: none is broadcast."""
    first, second = inputs.matrix(place, dimensions), inputs.matrix(place + 1, dimensions)
    if first.sizes[:-2] != second.sizes[:-2]:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    return first, second


def scaled_product(inputs: Inputs) -> Work:
    """``_scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out_dtype)``, of fp8 matrices."""
    first, second = inputs.matrix(0), inputs.matrix(1)
    out = inputs.type_of_code(6)
    if out is None:
        found = _of(first, second)
        return Work(found.flops, None, found.number_format, "not recorded: the type of its result")
    return _of(first, second, inputs.optional(4), out)


def product_with_vector(inputs: Inputs) -> Work:
    """``mv(a [M, K], x [K])``."""
    matrix, vector = inputs.matrix(0), inputs.matrix(1, 1)
    return _of(matrix, Tensor((*vector.sizes, 1), vector.type))


def linear(inputs: Inputs) -> Work:
    """``linear(x [..., K], w [N, K], bias)``, where it launches its kernels itself."""
    given, weight = inputs.tensor(0), inputs.matrix(1)
    if not given.sizes or given.sizes[-1] != weight.sizes[1]:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    return _linear(inputs.gathered(given), weight, inputs.optional(2))


def matmul(inputs: Inputs) -> Work:
    """``matmul(a, b)`` of any numbers of dimensions, where it launches its kernels itself."""
    first, second = inputs.tensor(0), inputs.tensor(1)
    if not first.sizes or not second.sizes:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    rows = Tensor((1, *first.sizes), first.type) if len(first.sizes) == 1 else first
    columns = Tensor((*second.sizes, 1), second.type) if len(second.sizes) == 1 else second
    return _of(rows, columns)


def engine_product(inputs: Inputs) -> Work:
    """``te_gemm_ts``: (A, its scale, place and type, transposed?, the same five of B, D, ...), matrices by columns.

    Whatever is transposed, A has M·K elements, B N·K, and D, which is written, is [N, M].
    """
    first, second, result = inputs.tensor(0), inputs.tensor(5), inputs.matrix(10)
    inner, rest = divmod(first.elements, result.sizes[1] or 1)
    if rest or inner * result.sizes[0] != second.elements:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    kind = "c10::Float8_e4m3fn" if first.type == second.type == "unsigned char" else first.type
    return counted(2 * inner * result.elements, (first, second, result), kind)


def grouped_product(inputs: Inputs) -> Work:
    """``_grouped_mm(a, b, offsets)``: rows, or the inner dimension, split over the groups.

    How they are split is not recorded and need not be: together they are all rows. Rows behind the last offset, which
    padding leaves, count as if they were computed.
    """
    first, second = inputs.tensor(0), inputs.tensor(1)
    dimensions = (len(first.sizes), len(second.sizes))
    if dimensions == (3, 3):
        return _of(first, second)
    offsets = inputs.matrix(2, 1)
    if dimensions == (2, 3) and first.sizes[1] == second.sizes[1]:
        sizes = (first.sizes[0], second.sizes[2])
        flops = 2 * prod(sizes) * first.sizes[1]
    elif dimensions == (3, 2) and first.sizes[2] == second.sizes[0]:
        sizes = (first.sizes[1], second.sizes[1])
        flops = 2 * prod(sizes) * first.sizes[2]
    elif dimensions == (2, 2) and first.sizes[1] == second.sizes[0]:
        flops = 2 * first.sizes[0] * second.elements
        sizes = (offsets.elements * first.sizes[0], second.sizes[1])
    else:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    return counted(flops, (first, second, offsets, first.shaped(*sizes)), first)


def engine_linear(inputs: Inputs) -> Work:
    """``_Linear`` of Transformer Engine: weight [N, K], activation [..., K], bias. Only tensors are recorded."""
    tensors = inputs.tensors
    weight = inputs.matrix(0)
    given = next((each for each in tensors[1:] if each.sizes[-1:] == weight.sizes[1:] and len(each.sizes) > 1), None)
    if given is None:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    bias = next((each for each in tensors[2:] if each.sizes == weight.sizes[:1]), None)
    return _linear(inputs.gathered(given), weight, bias)


def megatron_linear(inputs: Inputs) -> Work:
    """Megatron's ``LinearWithGradAccumulationAndAsyncCommunication``: activation, weight, bias."""
    return linear(Inputs(tuple(inputs.tensors), shards=inputs.shards))


def norm_and_linear(inputs: Inputs) -> Work:
    """``_LayerNormLinear`` and ``_LayerNormMLP``: an activation [..., K], and weights that follow one another.

    Counts the products alone; the vectors of the norm are moved, what lies between two products is not.
    """
    tensors = inputs.tensors
    given = inputs.tensor(0)
    weights = [each for each in tensors[1:] if len(each.sizes) == 2]
    if not weights or not given.sizes or not given.sizes[-1] or given.sizes[-1] != weights[0].sizes[1]:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    given = inputs.gathered(given)
    rows = given.elements // given.sizes[-1]
    result = given.shaped(rows, weights[-1].sizes[0])
    flops = 2 * rows * sum(weight.elements for weight in weights)
    return counted(flops, (given, *tensors[1:], result), given)


def grouped_linear(inputs: Inputs) -> Work:
    """``_GroupedLinear``: an activation [T, K] whose rows are split over experts, and a weight [N, K] for each."""
    tensors = inputs.tensors
    given = inputs.tensor(0)
    weights = [each for each in tensors[1:] if len(each.sizes) == 2]
    if not weights or not given.sizes or len({each.sizes for each in weights}) > 1:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    if not given.sizes[-1] or given.sizes[-1] != weights[0].sizes[1]:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    rows = given.elements // given.sizes[-1]
    result = given.shaped(rows, weights[0].sizes[0])
    return counted(2 * rows * weights[0].elements, (*tensors, result), given)


def twice(forward: Formula) -> Formula:
    """The backward pass of products, by the inputs of the forward pass: one for the gradient of the activation and one
    for that of the weight, each of which moves activation, weight and result, or their gradients. Vectors (biases,
    norms) are neither added nor moved."""
    return lambda inputs: _times(2, forward(_matrices(inputs)))


def linear_backward(forward: Formula, products: int = 2) -> Formula:
    """The same of one linear layer; ``products``: how many of the two it launches itself.

    Where the sequence is sharded over tensor-parallel ranks, a column-parallel layer states its shard of the
    activation, and the gradient of its result has the rows of all. A row-parallel layer states its activation whole.
    """

    def work(inputs: Inputs) -> Work:
        shards = shards_behind(forward, inputs, inputs.gradient)
        return _times(products, forward(replace(_matrices(inputs), shards=shards)))

    return work


def shards_behind(forward: Formula, inputs: Inputs, gradient: Tensor | None) -> int:
    """How many ranks' shards of its activation a linear layer multiplies, by the gradient of its result.

    Raises:
        UnknownWorkError: the gradient is not recorded, or its sizes are not those of the layer's result.
    """
    matrices = replace(_matrices(inputs), shards=1)
    of_shard = forward(matrices).flops or 0
    if gradient is None or not gradient.sizes:
        raise UnknownWorkError("the sizes of the gradient of its result are not recorded")
    # 2·M·N·K of M rows; the gradient has N columns.
    gathered = 2 * gradient.elements * matrices.tensors[0].sizes[-1]
    if gathered > of_shard > 0 and gathered % of_shard:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    return max(gathered // of_shard, 1) if of_shard else 1


def _times(count: int, work: Work) -> Work:
    flops, moved = (None if number is None else count * number for number in work[:2])
    return work._replace(flops=flops, bytes=moved)


def _matrices(inputs: Inputs) -> Inputs:
    kept = tuple(each for each in inputs.arguments if isinstance(each, Tensor) and len(each.sizes) > 1)
    return Inputs(kept, shards=inputs.shards)


def _linear(given: Tensor, weight: Tensor, bias: Tensor | None) -> Work:
    rows = prod(given.sizes[:-1])
    result = given.shaped(rows, weight.sizes[0])
    flops = 2 * rows * weight.elements + (0 if bias is None else result.elements)
    moved = (given, weight, result) if bias is None else (given, weight, result, bias)
    return counted(flops, moved, given)


def _of(
    first: Tensor,
    second: Tensor,
    added: Tensor | None = None,
    out: str | None = None,
) -> Work:
    """A product of [..., M, K] and [..., K, N]; leading dimensions may be broadcast."""
    if len(first.sizes) < 2 or len(second.sizes) < 2 or first.sizes[-1] != second.sizes[-2]:
        raise UnknownWorkError("the sizes of its inputs do not go together")
    batch = broadcast([Tensor(first.sizes[:-2]), Tensor(second.sizes[:-2])])
    result = first.shaped(*batch, first.sizes[-2], second.sizes[-1], type=out)
    flops = 2 * result.elements * first.sizes[-1] + (0 if added is None else result.elements)
    moved = (first, second, result) if added is None else (first, second, result, added)
    return counted(flops, moved, first)
