"""How many floating-point operations a training step of a model takes, from the arguments of Megatron-LM alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ALWAYS_NEEDED = (
    *("global_batch_size", "seq_length", "num_layers", "hidden_size", "num_attention_heads", "kv_channels"),
    *("group_query_attention", "ffn_hidden_size", "swiglu", "padded_vocab_size"),
)
"""Arguments without which nothing is counted."""

_UNCOUNTED = {
    "multi_latent_attention": "multi-latent attention",
    "mtp_num_layers": "multi-token prediction",
    "moe_latent_size": "experts on a latent size",
    "experimental_attention_variant": "another kind of attention",
    "attention_output_gate": "a gate on the output of attention",
    "window_size": "attention in a sliding window",
    "is_hybrid_model": "layers that are no transformer layers",
    "hybrid_override_pattern": "layers that are no transformer layers",
    "hybrid_layer_pattern": "layers that are no transformer layers",
    "heterogeneous_layers_config_path": "layers of different sizes",
    "heterogeneous_layers_config_encoded_json": "layers of different sizes",
    "decoder_num_layers": "an encoder beside the decoder",
    "variable_seq_lengths": "sequences of varying length",
    "sequence_packing": "sequences packed to a length",
    "sequence_packing_scheduler": "sequences packed to a length",
    "dynamic_context_parallel": "sequences packed to a length",
    "sft": "sequences packed to a length",
}
"""Argument → what a model has with it whose operations are not counted here."""

VARYING = (
    *("variable_seq_lengths", "sequence_packing", "sequence_packing_scheduler", "dynamic_context_parallel", "sft"),
)
"""Arguments with which sequences are not all as long as ``seq_length``."""

USED = frozenset(
    {*ALWAYS_NEEDED, *_UNCOUNTED, "num_query_groups", "num_experts", "moe_layer_freq"}
    | {"moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"}
)
"""Every argument that the count depends on."""

OFF = frozenset({"False", "None", "0"})
WHOLE = re.compile(r"[1-9]\d{0,11}", re.ASCII)
_PATTERN = re.compile(r"\[[01](?:,[01])*\]", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """The operations of one training step of the whole job, or why they are not known; one of the two is None."""

    flops: int | None
    refusal: str | None


class _UncountableError(Exception):
    """The settings do not show the operations; its text says why."""


def model_flops(settings: Mapping[str, str]) -> ModelFlops:
    """Operations of a training step, as Megatron-LM's own count of them (``num_floating_point_operations``) has them.

    Per token and layer, with hidden size h, sequence length s, heads of together q channels, of which keys and values
    have k each, and a feed-forward size f (times the experts that a token goes to; shared experts added):

    - projections of attention: 2 h (q + 2 k + q);
    - attention: 2 s q, which are two products over the half of its matrix that a causal mask leaves;
    - multilayer perceptron: 2 h f × 2, or × 3 with SwiGLU (Megatron-LM counts no third product of other gates);

    and 2 h v for the logits over v entries of the padded vocabulary. The backward pass takes twice as many as the
    forward pass, so the sum counts three times. Recompute, which no model needs, does not count; neither do routers,
    norms and the optimizer. Sources: D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
    Clusters Using Megatron-LM" (2021), appendix; A. Chowdhery et al., "PaLM" (2022), appendix B, which counts the
    whole matrix of attention.

    Args:
        settings: arguments of Megatron-LM by name, as the capture plugin keeps them: True, False and numbers as text;
            an argument that is None is left out. No argument has a default here.
    """
    try:
        return ModelFlops(_counted(settings), None)
    except _UncountableError as error:
        return ModelFlops(None, str(error))


def _counted(settings: Mapping[str, str]) -> int:
    needed = [*ALWAYS_NEEDED]
    needed += ["num_query_groups"] if _is_on(settings, "group_query_attention") else []
    experts = _is_on(settings, "num_experts")
    needed += ["moe_router_topk", "moe_layer_freq"] if experts else []
    if absent := [name for name in needed if name not in settings]:
        raise _UncountableError(f"the settings of the job lack {_listed(absent)}")
    for name, has in _UNCOUNTED.items():
        if _is_on(settings, name):
            raise _UncountableError(f"the model has {has} ({name}), whose operations are not counted")
    hidden, length, layers = (_whole(settings, name) for name in ("hidden_size", "seq_length", "num_layers"))
    heads, channels = _whole(settings, "num_attention_heads"), _whole(settings, "kv_channels")
    groups = _whole(settings, "num_query_groups") if _is_on(settings, "group_query_attention") else heads
    queries, keys = heads * channels, groups * channels
    attention = 2 * hidden * (queries + 2 * keys + queries) + 2 * length * queries
    expert_layers = _expert_layers(settings, layers) if experts else 0
    perceptrons = (layers - expert_layers) * _whole(settings, "ffn_hidden_size")
    if expert_layers:
        perceptrons += expert_layers * _expert_width(settings)
    products = 3 if _is_on(settings, "swiglu") else 2
    logits = 2 * hidden * _whole(settings, "padded_vocab_size")
    forward = layers * attention + 2 * hidden * products * perceptrons + logits
    return 3 * forward * length * _whole(settings, "global_batch_size")


def _expert_width(settings: Mapping[str, str]) -> int:
    """The feed-forward size of what one token goes through in a layer with experts."""
    # Megatron-LM takes the size of the other layers where experts have none of their own.
    own = "moe_ffn_hidden_size" if _is_on(settings, "moe_ffn_hidden_size") else "ffn_hidden_size"
    shared = "moe_shared_expert_intermediate_size"
    beside = _whole(settings, shared) if _is_on(settings, shared) else 0
    return _whole(settings, "moe_router_topk") * _whole(settings, own) + beside


def _expert_layers(settings: Mapping[str, str], layers: int) -> int:
    """How many layers have experts: every n-th from the first on, or those that a list of 0 and 1 names."""
    text = settings["moe_layer_freq"]
    if not _PATTERN.fullmatch(text):
        return -(-layers // _whole(settings, "moe_layer_freq"))
    named = text.count("0") + text.count("1")
    if named != layers:
        raise _UncountableError(f"moe_layer_freq names {named} layers, num_layers is {layers}")
    return text.count("1")


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "None") not in OFF


def _whole(settings: Mapping[str, str], name: str) -> int:
    if not WHOLE.fullmatch(settings[name]):
        raise _UncountableError(f"the setting {name} is {settings[name]}, no whole number from 1")
    return int(settings[name])


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
