"""Products of fewer than 16 bits by Transformer Engine: casts, maxima and scales around them, and their own kernels.

What is scaled by the maxima of steps before (delayed scaling) is cast in one kernel, and once in a pass of each
micro-batch all ranks of a stage agree on the maxima. Scaling by the tensor's own maximum needs it first; where the
tensor is a shard of the sequence, its ranks agree on it. Blocks have separate scales, which nobody else needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from traceviz_dag.simulate.durations import LAUNCH_FLOOR_NS, elementwise_ns
from traceviz_dag.simulate.settings import Era, Precision
from traceviz_dag.simulate.tree import Bound, Kernel, Node, Row, RowKind, builtin, op, py
from traceviz_dag.simulate.work.collectives import collective, communicate
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.vocabulary import Dimension, Kind

TE = "transformer_engine/pytorch"
MODULES_OF_LAYER = 4
"""Quantized linears of a layer."""

_BF16, _FP8 = "__nv_bfloat16", "__nv_fp8_e4m3"
_HIDDEN = "transformer_engine::(anonymous namespace)"
_CAST_TRANSPOSE = (
    f"cast_transpose_optimized_kernel({_BF16} const*, float const*, {_FP8}*, {_FP8}*, float const*, float*, float*, "
    "unsigned long, unsigned long)"
)
_AMAX = (
    f"void {_HIDDEN}::amax_kernel<8, true, {_BF16}>({_BF16} const*, float*, unsigned long, unsigned long, float const*)"
)
_SCALE = f"{_HIDDEN}::compute_scale_from_amax_kernel(float const*, float*, float, bool, float, float const*)"
_DELAYED = "transformer_engine::delayed_scaling_recipe::(anonymous namespace)"
_UPDATE = f"{_DELAYED}::kernel_bulk(float*, {_DELAYED}::AmaxParams, unsigned long, {_DELAYED}::AmaxComputeAlgo, float)"
_BLOCKS = (
    f"void {_HIDDEN}::block_scaled_1d_cast_transpose_kernel<true, float, {_BF16}, {_FP8}>({_BF16} const*, {_FP8}*, "
    f"{_FP8}*, float*, float*, unsigned long, unsigned long, unsigned long, unsigned long, float)"
)
_SQUARES = (
    f"void {_HIDDEN}::block_scaled_cast_transpose_kernel<true, float, {_BF16}, {_FP8}>({_BF16} const*, {_FP8}*, "
    f"{_FP8}*, float*, float*, unsigned long, unsigned long, unsigned long, unsigned long, float)"
)
_MXFP8 = (
    "void transformer_engine::dispatch::mxfp8::quantize_kernel::quantize_mxfp8_kernel<false, false, false, "
    f"transformer_engine::Empty, {_BF16}, {_FP8}, true, true, false, 128ul, 128ul, 128ul>(CUtensorMap, CUtensorMap)"
)
_HADAMARD = (
    f"void {_HIDDEN}::HadamardAmaxTmaKernel<{_BF16}, 16, 128, 128, 64, 128, 128, 1, true, true, true>(CUtensorMap)"
)
_NVFP4 = (
    "void transformer_engine::dispatch::nvfp4::quantize_transpose_kernel::quantize_transpose_nvfp4_kernel<true, "
    f"transformer_engine::Empty, {_BF16}, true, true>(CUtensorMap, CUtensorMap, CUtensorMap, unsigned char*)"
)
_SWIZZLED = tuple(
    f"void {_HIDDEN}::swizzle_{side}_scaling_kernel<int4, 4, 4>(void const*, void*, int, int, int, int)"
    for side in ("row", "col")
)
_CONCATENATE = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<4u>, "
    "unsigned int, 1, 64, 64>(at::native::(anonymous namespace)::OpaqueType<4u>*, unsigned int)"
)

_TENSOR_FILES: Final = {
    Precision.FP8: "float8_tensor",
    Precision.FP8_CURRENT: "float8_tensor",
    Precision.FP8_BLOCKWISE: "float8_blockwise_tensor",
    Precision.MXFP8: "mxfp8_tensor",
    Precision.NVFP4: "nvfp4_tensor",
}
_PRODUCTS: Final = {
    Precision.MXFP8: "nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT",
    Precision.NVFP4: "nvjet_ootst_128x256_256x5_2x2_2cta_h_bz_Avec16UE4M3_Bvec16UE4M3_TNT",
}
_SWIZZLES = frozenset({Precision.MXFP8, Precision.NVFP4})
_OF_SHARDS = frozenset({Precision.FP8_CURRENT, Precision.NVFP4})
"""Scaled by the maximum of the whole tensor, of which ranks of a sequence have shards."""


def product(job: Job, kernel: Kernel) -> Kernel:
    """The product in the job's number format."""
    precision = job.settings.precision
    if precision is Precision.BF16:
        return kernel
    faster = 3 if precision is Precision.NVFP4 else 2
    name = _PRODUCTS.get(precision, kernel.name.replace("nvjet_hsh_", "nvjet_qqtst_"))
    return replace(kernel, name=name, base_ns=LAUNCH_FLOOR_NS + (kernel.base_ns - LAUNCH_FLOOR_NS) // faster)


def swizzled(job: Job, elements: float) -> tuple[Node, ...]:
    """What lays out the scales of blocks before a product."""
    if job.settings.precision not in _SWIZZLES:
        return ()
    return tuple(_kernel(name, elements / 16) for name in _SWIZZLED)


def cast(job: Job, elements: float, *, weight: bool = False, shard: bool = False) -> tuple[Row, ...]:
    """The quantization of a tensor.

    Args:
        shard: it is a shard of the sequence, whose ranks agree on the maximum.
    """
    precision = job.settings.precision
    if precision is Precision.BF16:
        return ()
    moved = 4 * elements
    body: list[Node] = []
    if precision in _OF_SHARDS:
        body.append(_kernel(_AMAX if precision is Precision.FP8_CURRENT else _HADAMARD, 2 * elements))
        if shard and job.shards_sequence:
            body.append(_agreed(job))
        if precision is Precision.FP8_CURRENT:
            body.append(_kernel(_SCALE, 16))
    names = {Precision.FP8_BLOCKWISE: _SQUARES if weight else _BLOCKS, Precision.MXFP8: _MXFP8, Precision.NVFP4: _NVFP4}
    body.append(_kernel(names.get(precision, _CAST_TRANSPOSE), moved))
    quantized = builtin("method quantize of PyCapsule object at 0x", *body)
    newest = job.settings.era is Era.TORCH_2_7
    caller = f"{TE}/quantized_tensor.py" if newest else f"{TE}/tensor/quantized_tensor.py"
    return (py(caller, "__call__", py(f"{TE}/tensor/{_TENSOR_FILES[precision]}.py", "quantize_impl", quantized)),)


def updated_scales(job: Job, tensors: int, forward: bool) -> tuple[Row, ...]:
    """``reduce_and_update_fp8_tensors``: the stage's ranks agree on the maxima of a pass, which become scales."""
    if job.settings.precision is not Precision.FP8:
        return ()
    settings = job.settings
    members = settings.tp * settings.dp * settings.cp
    file = f"{TE}/quantization.py" if settings.era is Era.TORCH_2_7 else f"{TE}/fp8.py"
    joined = builtin("method cat of type object at 0x", op("aten::cat", _kernel(_CONCATENATE, 8 * tensors)))
    what = collective("amax", "allreduce", tensors, "Float", "amax", Dimension.DP, members)
    reduced = py(file, "reduce_tensor_across_group_op_max", communicate(settings, what, members=members))
    update = builtin(
        "method fused_amax_and_scale_update_after_reduction of PyCapsule object at 0x",
        _kernel(_UPDATE, 4096 * tensors),
    )
    rows = py(file, "reduce_and_update_fp8_tensors", joined, *((reduced,) if members > 1 else ()), update)
    leaving = "autocast_exit" if settings.era is Era.TORCH_2_7 else "fp8_autocast_exit"
    return (py(file, leaving, rows),) if forward else (rows,)


def _agreed(job: Job) -> Node:
    """The all-reduce of a maximum, which Transformer Engine's C++ calls: no Python function is around the operator."""
    what = collective("tp", "allreduce", 1, "Float", "amax", Dimension.TP, job.settings.tp)
    row = communicate(job.settings, what, members=job.settings.tp)
    while row.kind is RowKind.PYTHON:
        inner = row.children[0]
        assert isinstance(inner, Row)
        row = inner
    return row


def _kernel(name: str, nbytes: float) -> Kernel:
    kernel = Kernel(name, Kind.COMPUTATION, elementwise_ns(nbytes), grid=1024, block=256, registers=40)
    return replace(kernel, bound=Bound.MEMORY, sizes=((max(int(nbytes) // 2, 1),),))
