"""Settings of a job that its capture kept: only names that the capture plugin lists are believed."""

from __future__ import annotations

import re

from traceviz_dag.read.secrets import masked

VARIABLES = (
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "OMP_NUM_THREADS"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_BLOCKING_WAIT"),
    *("TORCH_NCCL_HIGH_PRIORITY", "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_CUMEM_ENABLE", "NCCL_IB_DISABLE"),
    *("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
    *("NVTE_BWD_LAYERNORM_SM_MARGIN", "NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_FWD_LAYERNORM_SM_MARGIN"),
    *("NVTE_UNFUSED_ATTN", "UB_SKIPMC"),
)
"""Variables of the environment. The plugin, which imports nothing of ours, has the same list; a test compares them."""

ARGUMENTS = (
    *("micro_batch_size", "global_batch_size", "seq_length", "num_layers", "hidden_size", "num_attention_heads"),
    *("ffn_hidden_size", "num_experts", "moe_router_topk", "moe_token_dispatcher_type", "moe_grouped_gemm"),
    *("bf16", "fp16", "fp8", "transformer_impl", "attention_backend", "use_flash_attn", "sequence_parallel"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "use_distributed_optimizer"),
    *("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p_comm", "tp_comm_overlap", "delay_wgrad_compute"),
    *("gradient_accumulation_fusion", "ddp_bucket_size", "num_distributed_optimizer_instances", "external_cuda_graph"),
    *("enable_cuda_graph", "manual_gc", "manual_gc_interval", "num_workers", "data_parallel_sharding_strategy"),
    *("padded_vocab_size", "kv_channels", "group_query_attention", "num_query_groups", "swiglu", "quick_geglu"),
    *("moe_layer_freq", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_latent_size"),
    *("multi_latent_attention", "mtp_num_layers", "experimental_attention_variant", "attention_output_gate"),
    *("is_hybrid_model", "decoder_num_layers", "fp4", "variable_seq_lengths", "sequence_packing", "sft"),
    *("hybrid_context_parallel", "dynamic_context_parallel", "sequence_packing_scheduler"),
)
"""Arguments of Megatron-LM, as above."""

NOTED_ARGUMENTS = (
    *("window_size", "hybrid_override_pattern", "hybrid_layer_pattern"),
    *("heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"),
)
"""Arguments of which a header says only that they are given, as above."""

_NAMES = {*VARIABLES, *ARGUMENTS, *NOTED_ARGUMENTS, "torch"}
_VALUE = re.compile(r"[\w.,:=+\-\[\]]{1,300}", re.ASCII)


def kept_settings(capture: object) -> tuple[tuple[str, str], ...]:
    """Name and value of each, by name, from a header's entry of the plugin; others are left out."""
    given = capture.get("settings") if isinstance(capture, dict) else None
    found = {
        name: masked(value)
        for name, value in (given.items() if isinstance(given, dict) else ())
        if name in _NAMES and isinstance(value, str) and _VALUE.fullmatch(value)
    }
    return tuple(sorted(found.items()))
