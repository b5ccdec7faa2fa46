"""Computation kernels and memory operations with names, durations and launch calls like those of an H100 job."""

from __future__ import annotations

from dataclasses import replace

from traceviz_dag.simulate.durations import attention_ns, elementwise_ns, matmul_ns
from traceviz_dag.simulate.tree import Bound, Kernel
from traceviz_dag.vocabulary import Kind

_TILES = (
    "128x256_64x4_2x1_v_bz_coopB",
    "256x128_64x4_1x2_h_bz_coopA",
    "128x128_64x6_2x1_v_bz",
    "192x128_64x5_2x1_v_bz",
)
_BF16 = "c10::BFloat16"
_ELEMENT = 2
_TE_NORM = "transformer_engine::normalization"
_FLASH_BACKWARD = "Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false, false, cutlass::bfloat16_t>"
_WARP_SOFTMAX = f"scaled_upper_triang_masked_softmax_warp_{{side}}<{_BF16}, {_BF16}, float, 12>"

CUSTOM = {
    "layer_norm": f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{_BF16}, float>"
    f"(int, float, {_BF16} const*, {_BF16} const*, {_BF16} const*, float*, float*, {_BF16}*)",
    "layer_norm_grad_input": "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized"
    f"<{_BF16}, float>({_BF16} const*, {_BF16} const*, float const*, float const*, {_BF16} const*, {_BF16}*, int)",
    "layer_norm_grad_weight": "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate"
    f"<{_BF16}, float, 32u, 32u, 256u, true, true, true>(long, long, {_BF16} const*)",
    "dropout": "void at::native::(anonymous namespace)::fused_dropout_kernel_vec"
    f"<{_BF16}, float, unsigned int, 1, 8, bool>(at::cuda::detail::TensorInfo<{_BF16} const, unsigned int>)",
    "softmax": f"void {_WARP_SOFTMAX.format(side='forward')}({_BF16}*, {_BF16} const*, float, int, int, int)",
    "softmax_backward": f"void {_WARP_SOFTMAX.format(side='backward')}({_BF16}*, {_BF16} const*, float, int, int, int)",
    "flash_dot": f"void flash::flash_bwd_dot_do_o_kernel<true, {_FLASH_BACKWARD} >(flash::Flash_bwd_params)",
    "flash_convert": f"void flash::flash_bwd_convert_dq_kernel<{_FLASH_BACKWARD} >(flash::Flash_bwd_params, int)",
    "topk": "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>"
    "(at::cuda::detail::TensorInfo<float const, unsigned int>, unsigned int, unsigned int, bool)",
    "router_softmax": "void (anonymous namespace)::softmax_warp_forward<float, float, float, 1, false, false>"
    "(float*, float const*, int, int, int, bool const*, int, bool)",
    "scatter": "void at::native::_scatter_gather_elementwise_kernel<128, 8, "
    "at::native::_cuda_scatter_gather_internal_kernel<true, at::native::OpaqueType<4> >::operator()()>(int)",
    "embedding": f"void at::native::(anonymous namespace)::indexSelectLargeIndex<{_BF16}, long, unsigned int, 2, 2, "
    f"-2, true>(at::cuda::detail::TensorInfo<{_BF16}, unsigned int>, unsigned int, long)",
    "embedding_backward": "void at::native::(anonymous namespace)::compute_grad_weight<float, long>(long*, float*)",
    "cross_entropy_max": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MaxOps<float>"
    ", unsigned int, float, 4> >(at::native::ReduceOp<float, at::native::MaxOps<float>, unsigned int, float, 4>)",
    "l2_norm": "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*, float*, bool, int>"
    "(int, int volatile*, TensorListMetadata<1>, L2NormFunctor<float>, float*, float*, bool, int)",
    "conv": "void causal_conv1d_channellast_fwd_kernel<Causal_conv1d_channellast_fwd_kernel_traits<128, 4, 64, true, "
    f"{_BF16}, {_BF16}>, false>(ConvParamsBase)",
    "conv_backward": "void causal_conv1d_channellast_bwd_kernel<Causal_conv1d_channellast_bwd_kernel_traits<128, 4, "
    f"64, true, true, {_BF16}, {_BF16}>, false, false, false>(ConvParamsBwd)",
    "roll": "void at::native::(anonymous namespace)::roll_cuda_kernel<long>(long const*, long*, long, long, long, "
    "long, long, long)",
    "cat": "void at::native::(anonymous namespace)::CatArrayBatchedCopy_alignedK_contig<at::native::(anonymous "
    "namespace)::OpaqueType<2u>, unsigned int, 3, 64, 64, 16>(at::native::(anonymous namespace)::OpaqueType<2u>*)",
    "argmax": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, "
    "unsigned int, long, 4> >(at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4>)",
    "hybridep_scan": "void hybrid_ep::scan<512, 108, 8, 1, 2>(bool const*, hybrid_ep::tmp_state_t*, int*, bool*, "
    "bool*, int*, bool*, int, int, int)",
    "hybridep_row_map": "void permute_preprocessing_kernel<256, 32>(bool*, int*, int, int*, int, int*, int, int, int*, "
    "int*, int*, int)",
    "hybridep_permute": "void permute_kernel<512, unsigned short, float, float>(unsigned short*, unsigned short*, "
    "float*, float*, float*, float*, int*, int*, int, int, int, int, int, int)",
    "hybridep_unpermute": "void unpermute_kernel<512, unsigned short, float>(unsigned short*, unsigned short*, float*, "
    "float*, int*, int*, int, int, int, int, int)",
    "adam": "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<float, float, int>, float, float, "
    "float, int, int, float>(int, int volatile*, TensorListMetadata<4>, AdamFunctorMaster<float, float, int>)",
    "scale": "void multi_tensor_apply_kernel<TensorListMetadata<2>, ScaleFunctor<float, float>, float>"
    "(int, int volatile*, TensorListMetadata<2>, ScaleFunctor<float, float>, float)",
}
"""Hand-written CUDA kernels, by role."""

FUSED = {
    "te_norm": f"void {_TE_NORM}::ln_fwd_tuned_kernel<{_TE_NORM}::Kernel_traits<__nv_bfloat16, __nv_bfloat16, "
    f"__nv_bfloat16, float, unsigned int, 4096u, 1u, 1u, 4u, 16u> >({_TE_NORM}::ForwardKernelParams)",
    "te_norm_backward": f"void {_TE_NORM}::ln_bwd_tuned_kernel<{_TE_NORM}::Kernel_traits<__nv_bfloat16, __nv_bfloat16, "
    f"__nv_bfloat16, float, unsigned int, 4096u, 1u, 1u, 4u, 16u> >({_TE_NORM}::BackwardKernelParams)",
    "te_norm_finalize": f"void {_TE_NORM}::ln_bwd_finalize_tuned_kernel<{_TE_NORM}::Kernel_traits_finalize<4096u, "
    f"__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, unsigned int, 32u, 16u> >({_TE_NORM}::BackwardKernelParams)",
    "rope": "void transformer_engine::fused_rope_forward_kernel<__nv_bfloat16>"
    "(__nv_bfloat16 const*, int const*, float const*, float const*, int const*, __nv_bfloat16*, int, int, int, int)",
    "rope_backward": "void transformer_engine::fused_rope_backward_kernel<__nv_bfloat16>"
    "(__nv_bfloat16 const*, int const*, float const*, int const*, __nv_bfloat16*, int, int, int, int)",
    "bias_dropout_add": "triton_poi_fused_add_native_dropout_0",
    "bias_dropout_add_backward": "triton_red_fused_native_dropout_backward_sum_0",
    "swiglu": "triton_poi_fused_mul_silu_split_0",
    "swiglu_backward": "triton_poi_fused_cat_mul_silu_backward_1",
    "softmax_correction": "triton_poi_fused_exp_sub_lse_correction_0",
    "sort_chunks": "_sort_chunks_by_map_kernel",
    "permute": "_permute_kernel",
    "row_map": "_row_id_map_pass_1_kernel",
    "unpermute": "_unpermute_kernel",
    "unpermute_backward": "_unpermute_bwd_with_merging_probs_kernel",
    "gated_norm": "_layer_norm_fwd_1pass_kernel",
    "gated_norm_bwd": "_layer_norm_bwd_kernel",
    "cross_entropy": "triton_red_fused_exp_index_log_sub_sum_0",
    "cross_entropy_backward": "triton_poi_fused_index_put_mul_sub_1",
}
"""Generated and library kernels that the driver API launches, by role."""

FUNCTORS = {
    "add": f"CUDAFunctor_add<{_BF16}>",
    "add_float": "CUDAFunctor_add<float>",
    "multiply": f"BinaryFunctor<{_BF16}, {_BF16}, {_BF16}, at::native::binary_internal::MulFunctor<float> >",
    "gelu": f"GeluCUDAKernelImpl<{_BF16}>",
    "gelu_backward": f"GeluBackwardCUDAKernelImpl<{_BF16}>",
    "fill": "FillFunctor<float>",
    "zero": "FillFunctor<int>",
    "clamp": "clamp_scalar_kernel_impl<int>",
    "reciprocal": "reciprocal_kernel_cuda<float>",
    "divide": "BinaryFunctor<float, float, float, at::native::binary_internal::DivFunctor<float> >",
    "power": "pow_tensor_scalar_kernel_impl<float, float>",
    "to_float": "float16tofloat32_copy_kernel_cuda",
    "to_bfloat16": "bfloat16_copy_kernel_cuda",
    "exp": "exp_kernel_cuda<float>",
    "negate": "neg_kernel_cuda<float>",
    "less": "CompareLTFunctor<long>",
}
"""Functors of ATen's pointwise kernels, by role."""


def matmul(m: float, n: float, k: float, layout: str = "TNN") -> Kernel:
    """A bfloat16 matrix product by cuBLAS."""
    pick = int(m + 3 * n + 7 * k) // 64 % 5
    name = f"nvjet_hsh_{_TILES[pick % 4]}_{layout}"
    if pick == 4:
        tile = "tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
        name = f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_{layout.lower()[:2]}_n_{tile}"
    return Kernel(
        name,
        Kind.COMPUTATION,
        matmul_ns(m, n, k),
        call="cudaLaunchKernelExC" if pick == 4 else "cuLaunchKernelEx",
        grid=132,
        block=384,
        bound=Bound.PRODUCT,
        registers=168,
        shared_memory=213_000,
        sizes=((int(m), int(k)), (int(k), int(n))),
    )


def gives_weights(kernel: Kernel) -> bool:
    """Whether a product of a backward step gives gradients of weights."""
    return kernel.bound is Bound.PRODUCT and ("_NTN" in kernel.name or "_nt_n_" in kernel.name)


def batched_matmul(batch: float, m: float, n: float, k: float) -> Kernel:
    """A batched bfloat16 product, as unfused attention uses."""
    tile = "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8"
    name = f"void cutlass::Kernel2<{tile}>({tile}::Params)"
    duration = matmul_ns(batch * m, n, k)
    sizes = ((int(batch), int(m), int(k)), (int(batch), int(k), int(n)))
    kernel = Kernel(name, Kind.COMPUTATION, duration, bound=Bound.PRODUCT, grid=512, block=128, registers=255)
    return replace(kernel, sizes=sizes)


def elementwise(role: str, nbytes: float) -> Kernel:
    """An ATen pointwise kernel that moves ``nbytes``; the role is one of ``FUNCTORS``."""
    functor = f"at::native::{FUNCTORS[role]}"
    arguments = "std::array<char*, 3ul>"
    name = f"void at::native::vectorized_elementwise_kernel<4, {functor}, {arguments} >(int, {functor}, {arguments})"
    kernel = Kernel(name, Kind.COMPUTATION, elementwise_ns(nbytes), grid=2048, block=128, registers=32)
    return _memory_bound(kernel, nbytes)


def reduction(nbytes: float, element: str = "float") -> Kernel:
    """An ATen sum over ``nbytes``."""
    functor = f"at::native::func_wrapper_t<{element}, at::native::sum_functor<{element}, {element}, {element}> >"
    operation = f"at::native::ReduceOp<{element}, {functor}, unsigned int, {element}, 4>"
    name = f"void at::native::reduce_kernel<512, 1, {operation} >({operation})"
    duration = elementwise_ns(nbytes)
    kernel = Kernel(name, Kind.COMPUTATION, duration, grid=264, block=512, registers=32, shared_memory=16)
    return _memory_bound(kernel, nbytes)


def fused(role: str, nbytes: float) -> Kernel:
    """A generated or library kernel of ``FUSED`` that moves ``nbytes``."""
    return triton(FUSED[role], nbytes)


def triton(name: str, nbytes: float) -> Kernel:
    """A kernel that Triton compiles, or another that the driver API launches, and that moves ``nbytes``."""
    duration = elementwise_ns(nbytes)
    kernel = Kernel(name, Kind.COMPUTATION, duration, call="cuLaunchKernel", grid=1024, block=256, registers=40)
    return _memory_bound(kernel, nbytes)


def custom(role: str, nbytes: float) -> Kernel:
    """A hand-written kernel of ``CUSTOM`` that moves ``nbytes``."""
    duration = elementwise_ns(nbytes)
    kernel = Kernel(CUSTOM[role], Kind.COMPUTATION, duration, grid=1024, block=256, registers=48)
    return _memory_bound(kernel, nbytes)


def flash_attention(tokens: float, context: float, width: float, backward: bool = False) -> Kernel:
    """Causal flash attention."""
    side = "bwd_dq_dk_dv_loop_seqk_parallel" if backward else "fwd"
    traits = "Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>"
    if backward:
        traits = _FLASH_BACKWARD
    name = f"void flash::flash_{side}_kernel<{traits}, false, true, false, true>(flash::Flash_{side[:3]}_params)"
    duration = attention_ns(tokens, context, width, backward)
    kernel = Kernel(name, Kind.COMPUTATION, duration, grid=1024, block=256, registers=255, shared_memory=164_000)
    return replace(kernel, bound=Bound.ATTENTION, sizes=((int(tokens), int(width)), (int(context), int(width))))


def copy(direction: str, nbytes: int) -> Kernel:
    """A memory copy: HtoD, DtoH or DtoD."""
    ends = {
        "HtoD": "Memcpy HtoD (Pinned -> Device)",
        "DtoH": "Memcpy DtoH (Device -> Pinned)",
        "DtoD": "Memcpy DtoD (Device -> Device)",
    }
    rate = {"HtoD": 25e9, "DtoH": 22e9, "DtoD": 1.3e12}[direction]
    duration = 1_100 + int(1e9 * nbytes / rate)
    return Kernel(ends[direction], Kind.MEMORY, duration, call="cudaMemcpyAsync", nbytes=max(nbytes, 1))


def pageable_copy(nbytes: int) -> Kernel:
    """A copy to the GPU from memory that is not pinned."""
    return replace(copy("HtoD", nbytes), name="Memcpy HtoD (Pageable -> Device)", base_ns=1_100 + nbytes // 6)


def fill(nbytes: int) -> Kernel:
    """A memory set."""
    duration = 1_200 + int(1e9 * nbytes / 2.8e12)
    kernel = Kernel("Memset (Device)", Kind.MEMORY, duration, call="cudaMemsetAsync", nbytes=nbytes)
    return _memory_bound(kernel, nbytes)


def _memory_bound(kernel: Kernel, nbytes: float) -> Kernel:
    return replace(kernel, bound=Bound.MEMORY, sizes=((int(nbytes) // _ELEMENT,),))
