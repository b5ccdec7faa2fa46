"""From the name of an operator to the formula of its work: names of PyTorch, Transformer Engine and Megatron-LM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from traceviz_dag.analyze.operations import attention, convolutions, memory_bound, products
from traceviz_dag.analyze.operations.memory_bound import Formula, elementwise, for_each, reduced
from traceviz_dag.analyze.operations.tensors import UnknownWorkError, parse_inputs
from traceviz_dag.analyze.operations.work import Work
from traceviz_dag.read.events import OperatorInputs
from traceviz_dag.vocabulary import OperationClass

NO_FORMULA = "there is no formula for this operation"
NOT_COUNTED = "a communication moves bytes between GPUs: see table collectives"
NOT_GATHERED = "not recorded: from how many ranks it gathers its activation"
TOO_LARGE = "its sizes are larger than any tensor is"

NO_INPUTS = OperatorInputs()
_LARGEST = 2**63 - 1
_OF_OPTIMIZERS = ("aten::_foreach_", "aten::_fused_adam", "Optimizer.")
_COMMUNICATION = re.compile(r"c10d::|_?c10d_functional::|record_param_comms|nccl:|gloo:|symm_mem::|vllm::all_")

_PRODUCTS: Mapping[str, Formula] = {
    "aten::mm": products.product,
    "aten::bmm": products.batched_product,
    "aten::addmm": products.product_plus(2),
    "aten::_addmm_activation": products.product_plus(2),
    "aten::baddbmm": products.product_plus(3),
    "aten::_scaled_mm": products.scaled_product,
    "aten::mv": products.product_with_vector,
    "aten::linear": products.linear,
    "aten::matmul": products.matmul,
    "tex_ts::te_gemm_ts": products.engine_product,
    "LinearWithGradAccumulationAndAsyncCommunication": products.megatron_linear,
    "_Linear": products.engine_linear,
    "_LayerNormLinear": products.norm_and_linear,
    "_LayerNormMLP": products.norm_and_linear,
}

_GROUPED: Mapping[str, Formula] = {
    "aten::_grouped_mm": products.grouped_product,
    "_GroupedLinear": products.grouped_linear,
    "GroupedLinear": products.grouped_linear,
}

_PRODUCTS_BACKWARD: Mapping[str, Formula] = {
    "_LinearBackward": products.linear_backward(products.engine_linear),
    "_LayerNormLinearBackward": products.linear_backward(products.norm_and_linear),
    "_LayerNormMLPBackward": products.twice(products.norm_and_linear),
    # It calls the product for the gradient of its input, and launches that for the gradient of its weight itself.
    "LinearWithGradAccumulationAndAsyncCommunicationBackward": products.linear_backward(products.megatron_linear, 1),
}

_GROUPED_BACKWARD: Mapping[str, Formula] = {
    "_GroupedLinearBackward": products.twice(products.grouped_linear),
    "GroupedLinearBackward": products.twice(products.grouped_linear),
}

_OVER_RANKS = ("AttnFuncWithCPAndKVP2P", "AttnFuncWithCPAndKVAllGather", "AttnFuncWithCPAndQKVOA2A")
_ATTENTION: Mapping[str, Formula] = {
    "aten::_scaled_dot_product_flash_attention": attention.forward(causal=4, heads_first=True),
    "aten::_scaled_dot_product_efficient_attention": attention.forward(causal=6, heads_first=True, bias=3),
    "aten::_scaled_dot_product_cudnn_attention": attention.forward(causal=6, heads_first=True, bias=3),
    "aten::_scaled_dot_product_fused_attention_overrideable": attention.forward(causal=5, heads_first=True, bias=3),
    "aten::_flash_attention_forward": attention.forward(causal=8, heads_first=False, window=11, packed_by=3),
    "flash_attn::_flash_attn_forward": attention.forward(causal=5, heads_first=False, window=6),
    "flash_attn::_flash_attn_varlen_forward": attention.forward(causal=9, heads_first=False, packed_by=3),
    "aten::_scaled_dot_product_flash_attention_backward": attention.backward(causal=11, heads_first=True, packed_by=6),
    "aten::_scaled_dot_product_efficient_attention_backward": attention.backward(causal=11, heads_first=True, bias=4),
    "aten::_scaled_dot_product_cudnn_attention_backward": attention.backward(
        causal=14, heads_first=True, packed_by=9, bias=8
    ),
    "aten::_flash_attention_backward": attention.backward(causal=11, heads_first=False, window=15, packed_by=6),
    "flash_attn::_flash_attn_backward": attention.backward(causal=11, heads_first=False, window=12),
    "flash_attn::_flash_attn_varlen_backward": attention.backward(causal=13, heads_first=False, packed_by=9),
    "FlashAttnFunc": attention.forward(causal=5, heads_first=False, window=6),
    "FlashAttnVarlenFunc": attention.unmasked,
    "FusedAttnFunc": attention.unmasked,
    **dict.fromkeys(_OVER_RANKS, attention.over_ranks),
}

_ATTENTION_BACKWARD: Mapping[str, Formula] = {
    "FlashAttnFuncBackward": attention.forward(causal=5, heads_first=False, window=6, backward=True),
    "FlashAttnVarlenFuncBackward": attention.unmasked_backward,
    "FusedAttnFuncBackward": attention.unmasked_backward,
    **{f"{name}Backward": attention.over_ranks for name in _OVER_RANKS},
}

_GATHERING = ("_Linear", "_LayerNormLinear")
"""Layers that gather their activation, and whose gradient shows how much of it."""

_BACKWARD = frozenset({*_PRODUCTS_BACKWARD, *_GROUPED_BACKWARD, *_ATTENTION_BACKWARD})
"""Backward passes of autograd functions, whose own inputs are gradients alone: by the inputs of the forward pass."""

_CONVOLUTIONS: Mapping[str, Formula] = {
    "aten::convolution": convolutions.forward(stride=3, padding=4, dilation=5, bias=2, transposed=6),
    "aten::_convolution": convolutions.forward(stride=3, padding=4, dilation=5, bias=2, transposed=6),
    "aten::cudnn_convolution": convolutions.forward(stride=3, padding=2, dilation=4),
    "aten::miopen_convolution": convolutions.forward(stride=4, padding=3, dilation=5, bias=2),
    "aten::convolution_backward": convolutions.backward,
}

_NORMS: Mapping[str, Formula] = {
    "aten::batch_norm": memory_bound.batch_norm(training=5),
    "aten::native_batch_norm": memory_bound.batch_norm(training=5),
    "aten::cudnn_batch_norm": memory_bound.batch_norm(training=5),
    "aten::miopen_batch_norm": memory_bound.batch_norm(training=5),
    "aten::native_batch_norm_backward": memory_bound.batch_norm_backward,
    "aten::native_layer_norm": memory_bound.layer_norm(saved=2),
    "aten::_fused_rms_norm": memory_bound.layer_norm(saved=1, rms=True),
    "FusedLayerNormAffineFunction": memory_bound.layer_norm(saved=2),
    "FusedRMSNormAffineFunction": memory_bound.layer_norm(saved=1, rms=True),
    "_LayerNorm": memory_bound.layer_norm(saved=2),
    "_RMSNorm": memory_bound.layer_norm(saved=1, rms=True),
    "_C::rms_norm": memory_bound.layer_norm(saved=0, rms=True, into=True),
    "aten::native_layer_norm_backward": memory_bound.layer_norm_backward,
    "aten::_fused_rms_norm_backward": memory_bound.layer_norm_backward,
}

_SOFTMAX: Mapping[str, Formula] = {
    "aten::_softmax": memory_bound.softmax,
    "aten::_log_softmax": memory_bound.softmax,
    "ScaledUpperTriangMaskedSoftmax": memory_bound.fused_softmax,
    "ScaledMaskedSoftmax": memory_bound.fused_softmax,
    "ScaledSoftmax": memory_bound.fused_softmax,
    "aten::_softmax_backward_data": memory_bound.softmax_backward,
    "aten::_log_softmax_backward_data": memory_bound.softmax_backward,
}

_UNARY = (
    *("abs", "acos", "asin", "atan", "bitwise_not", "ceil", "clamp_max", "clamp_min", "cos", "cosh", "elu", "erf"),
    *("exp", "exp2", "expm1", "floor", "gelu", "hardsigmoid", "hardswish", "leaky_relu", "log", "log10", "log1p"),
    *("log2", "mish", "nan_to_num", "neg", "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin"),
    *("sinh", "softplus", "sqrt", "tan", "tanh", "threshold", "tril", "triu", "trunc"),
)
_BINARY = (
    *(
        "__and__",
        "__or__",
        "__xor__",
        "add",
        "atan2",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "div",
        "floor_divide",
    ),
    *("fmod", "gelu_backward", "hardswish_backward", "masked_fill", "maximum", "minimum", "mul", "pow"),
    *("remainder", "rsub", "sigmoid_backward", "silu_backward", "sub", "tanh_backward", "threshold_backward", "xlogy"),
    *("native_dropout_backward", "elu_backward", "leaky_relu_backward", "softplus_backward"),
)
_FLOATS = frozenset(
    {
        *(
            "acos",
            "asin",
            "atan",
            "atan2",
            "cos",
            "cosh",
            "div",
            "erf",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log10",
            "log1p",
        ),
        *("log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "xlogy"),
    }
)
"""Of whole numbers they give floats."""
_TERNARY = ("addcdiv", "addcmul", "clamp", "lerp")
_COMPARISONS = (
    *("eq", "ge", "gt", "isfinite", "isinf", "isnan", "le", "logical_and", "logical_not", "logical_or", "logical_xor"),
    *("lt", "ne"),
)
_OF_LISTS = ("add", "addcdiv", "addcmul", "div", "lerp", "mul", "neg", "sqrt", "sub")

_COPIES: Mapping[str, Formula] = {
    "aten::copy_": memory_bound.copied,
    "aten::fill_": memory_bound.filled,
    "aten::zero_": memory_bound.filled,
    "aten::cat": memory_bound.joined,
    "aten::stack": memory_bound.joined,
}

_EMBEDDINGS: Mapping[str, Formula] = {
    "aten::embedding": memory_bound.rows_of_table(0, 1),
    "aten::index_select": memory_bound.rows_of_table(0, 2),
    "aten::embedding_dense_backward": memory_bound.embedding_backward,
}

_REDUCTIONS: Mapping[str, Formula] = {
    **dict.fromkeys(("aten::sum", "aten::mean", "aten::prod"), reduced(1, type_at=3, widened=True)),
    **dict.fromkeys(("aten::amax", "aten::amin", "aten::logsumexp", "aten::std", "aten::var"), reduced(1)),
    **dict.fromkeys(("aten::max", "aten::min"), reduced(1, beside="long int")),
    **dict.fromkeys(("aten::any", "aten::all"), reduced(1, result="bool")),
    **dict.fromkeys(("aten::argmax", "aten::argmin"), reduced(1, result="long int")),
    **dict.fromkeys(("aten::linalg_vector_norm", "aten::norm"), reduced(2)),
}


def _elementwise_formulas() -> dict[str, Formula]:
    found: dict[str, Formula] = {
        "aten::where": elementwise(3, in_place=False),
        "aten::native_dropout": memory_bound.dropout,
    }
    for operands, names in ((1, _UNARY), (2, _BINARY), (3, _TERNARY)):
        for name in names:
            found[f"aten::{name}"] = elementwise(operands, in_place=False, floats=name in _FLOATS)
            found[f"aten::{name}_"] = elementwise(operands, in_place=True)
    for name in _COMPARISONS:
        found[f"aten::{name}"] = elementwise(2, in_place=False, result="bool")
        found[f"aten::{name}_"] = elementwise(2, in_place=True)
    return found


_OPTIMIZERS: Mapping[str, Formula] = {
    **{f"aten::_foreach_{name}{suffix}": for_each(3) for name in _OF_LISTS for suffix in ("", "_")},
    **{f"aten::_foreach_copy{suffix}": for_each(2, only_written=True) for suffix in ("", "_")},
    **{f"aten::_foreach_zero{suffix}": for_each(1, only_written=True) for suffix in ("", "_")},
    **dict.fromkeys(("aten::_fused_adamw_", "aten::_fused_adam_"), memory_bound.optimizer_lists(4, 3)),
}

_BY_CLASS: Mapping[OperationClass, Mapping[str, Formula]] = {
    OperationClass.GEMM: {**_PRODUCTS, **_PRODUCTS_BACKWARD},
    OperationClass.GROUPED_GEMM: {**_GROUPED, **_GROUPED_BACKWARD},
    OperationClass.ATTENTION: {**_ATTENTION, **_ATTENTION_BACKWARD},
    OperationClass.CONVOLUTION: _CONVOLUTIONS,
    OperationClass.NORMALIZATION: _NORMS,
    OperationClass.SOFTMAX: _SOFTMAX,
    OperationClass.ELEMENTWISE: _elementwise_formulas(),
    OperationClass.REDUCTION: _REDUCTIONS,
    OperationClass.COPY: _COPIES,
    OperationClass.EMBEDDING: _EMBEDDINGS,
    OperationClass.OPTIMIZER: _OPTIMIZERS,
}
FORMULAS: Mapping[str, tuple[OperationClass, Formula]] = {
    name: (operation_class, formula) for operation_class, named in _BY_CLASS.items() for name, formula in named.items()
}
"""Name of an operator → what kind of work it does, and how much, from its inputs."""


def shards_of(name: str, inputs: OperatorInputs, backward: OperatorInputs) -> int | None:
    """How many ranks' shards of its activation a layer gathers, by the inputs of its backward pass; None where these
    do not show it."""
    if name not in _GATHERING:
        return None
    try:
        return products.shards_behind(FORMULAS[name][1], parse_inputs(inputs), parse_inputs(backward).optional(0))
    except UnknownWorkError:
        return None


def work_of(name: str, inputs: OperatorInputs, forward: OperatorInputs = NO_INPUTS, shards: int | None = 1) -> Work:
    """The work of one call of an operator.

    Args:
        forward: inputs of the forward pass of the autograd function whose backward pass it is.
        shards: how many ranks' shards of its activation it gathers, itself included; None where that is not recorded.

    Returns:
        FLOPs and bytes are None, with the reason, where the inputs do not show them.
    """
    if _COMMUNICATION.match(name):
        return Work(reason=NOT_COUNTED)
    if name not in FORMULAS:
        return Work(reason=NO_FORMULA)
    if shards is None:
        return Work(reason=NOT_GATHERED)
    try:
        given = parse_inputs(inputs)
        if name in _BACKWARD:
            given = replace(parse_inputs(forward), gradient=given.optional(0))
        found = FORMULAS[name][1](replace(given, shards=shards))
    except UnknownWorkError as error:
        return Work(reason=str(error))
    if max(found.flops or 0, found.bytes or 0) > _LARGEST:
        return Work(reason=TOO_LARGE)
    return found


def class_of(name: str) -> OperationClass:
    """What kind of work an operator does, by its name alone."""
    if _COMMUNICATION.match(name):
        return OperationClass.COMMUNICATION
    if name in FORMULAS:
        return FORMULAS[name][0]
    return OperationClass.OPTIMIZER if name.startswith(_OF_OPTIMIZERS) else OperationClass.OTHER
