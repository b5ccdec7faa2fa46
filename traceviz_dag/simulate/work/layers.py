"""The call trees of a transformer layer: forward, and the autograd engine's rows of its backward."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import partial

from traceviz_dag.simulate.settings import Offload
from traceviz_dag.simulate.tree import (
    Node,
    Nodes,
    Row,
    builtin,
    evaluate,
    in_phase,
    module,
    nested,
    op,
    py,
    without_graph,
)
from traceviz_dag.simulate.work import fsdp, hybrid, kernels, offload, quantized
from traceviz_dag.simulate.work.attention import core_attention_backward, core_attention_forward, engine
from traceviz_dag.simulate.work.gradients import accumulate, gather_hook
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.linears import (
    APPLY,
    FUNCTION,
    column_backward,
    column_forward,
    norm_backward,
    norm_forward,
    row_backward,
    row_forward,
)
from traceviz_dag.simulate.work.moe import moe_backward, moe_forward
from traceviz_dag.vocabulary import Phase

LAYER = "megatron/core/transformer/transformer_layer.py"
ATTENTION = "megatron/core/transformer/attention.py"
RECOMPUTE = "megatron/core/recompute.py"
RANDOM = "megatron/core/tensor_parallel/random.py"
BIAS_DROPOUT = "megatron/core/fusions/fused_bias_dropout.py"
ROPE = "transformer_engine/pytorch/attention/rope.py"
SWIGLU = "megatron/core/fusions/fused_bias_swiglu.py"


@dataclass(frozen=True, slots=True)
class LayerVariant:
    """What differs between one run of a layer and another.

    Attributes:
        expert: a mixture-of-experts layer.
        gathers: parameter gathers to finish in its pre-hook: "" (nothing), "wait", "own" (launched there, late);
        gathers_next: whether the hook also launches the next layer's.
        reduces: whether its gradients are complete, so that their reduction starts.
        checkpoints_attention: selective recompute; discards: output-discarding recompute of the layer norms.
        again: its forward is the second one of full recompute.
        gathers_back, gathers_previous: like ``gathers`` and ``gathers_next``, in the backward pass (FSDP).
        position, depth: the layer's among those of its chunk, and their number; 0 where neither matters.
        quantizes: the micro-batch is the first, which quantizes the weights.
        first_scaled: its backward is the last of the chunk, which updates the scales of gradients.
        kind: symbol of the layer in a hybrid model, see ``hybrid.LAYERS_OF``; empty: attention and MLP.
        context: over how many ranks the micro-batch is split where each has its own number; else 0.
    """

    expert: bool = False
    gathers: str = ""
    gathers_next: bool = False
    reduces: bool = False
    checkpoints_attention: bool = False
    discards: bool = False
    kind: str = field(default="", repr=False)
    context: int = field(default=0, repr=False)
    again: bool = field(default=False, repr=False)
    gathers_back: str = field(default="", repr=False)
    gathers_previous: bool = field(default=False, repr=False)
    position: int = field(default=0, repr=False)
    depth: int = field(default=0, repr=False)
    quantizes: bool = field(default=False, repr=False)
    first_scaled: bool = field(default=False, repr=False)

    def __str__(self) -> str:
        """The key of a template; what a job does without is not part of it, since keys decide random costs."""
        given = [one.name for one in fields(self) if not one.repr and getattr(self, one.name) != one.default]
        return " ".join([repr(self), *(f"{name}={getattr(self, name)}" for name in given)])

    def fuses_norm(self, job: Job, mlp: bool) -> bool:
        """Whether the norm before a half of the layer is part of its first linear."""
        return job.te and not self.discards and not (mlp and self.expert)


def layer_forward(job: Job, variant: LayerVariant) -> tuple[Row, Nodes]:
    """One layer's forward, from ``TransformerLayer.__call__`` down."""
    nodes = Nodes()
    hook = gather_hook(job, variant.gathers, variant.gathers_next, variant.expert)
    if variant.kind:
        return _hybrid_forward(job, nodes, variant, hook), nodes
    before: tuple[Row, ...] = ()
    if job.settings.fsdp:
        before = fsdp.before_forward(job, nodes, variant.expert, variant.gathers, variant.gathers_next, variant.again)
    attention = attention_forward(job, nodes, variant, hook)
    mlp = mlp_forward(job, nodes, variant)
    after = fsdp.after_forward(nodes) if job.settings.fsdp else ()
    layer = module("TransformerLayer", *before, py(LAYER, "forward", attention, mlp), *after)
    return py("megatron/core/transformer/module.py", "__call__", layer), nodes


def _hybrid_forward(job: Job, nodes: Nodes, variant: LayerVariant, hook: tuple[Node, ...]) -> Row:
    """One layer of a hybrid model: half a transformer layer, or Mamba's mixer."""
    body: list[Node]
    if variant.kind == "*":
        body = [py(LAYER, "forward", attention_forward(job, nodes, variant, hook))]
    elif variant.kind == "M":
        mixer = hybrid.mixer_forward(job, nodes, hook, variant.fuses_norm(job, mlp=False))
        body = [py(hybrid.MAMBA_LAYER, "forward", mixer, _bias_dropout_add(job, nodes, "bda:mixer"))]
    else:
        body = [*hook, py(LAYER, "forward", mlp_forward(job, nodes, variant))]
    return py("megatron/core/transformer/module.py", "__call__", module(hybrid.LAYERS_OF[variant.kind], *body))


def attention_forward(job: Job, nodes: Nodes, variant: LayerVariant, hook: tuple[Node, ...] = ()) -> Row:
    """``_forward_attention``: norm, projections, core attention, residual."""
    shape = job.shape
    fused = variant.fuses_norm(job, mlp=False)
    norm: tuple[Node, ...] = ()
    if not fused:
        norm = (py(LAYER, "_run_input_layernorm", _norm(job, nodes, variant, "norm:attention")),)
    linear = column_forward(job, nodes, "qkv", 3 * shape.inner, *hook, norm=fused, weights=variant.quantizes)
    qkv = py(ATTENTION, "get_query_key_value_tensors", linear, *_bias(job, 3 * shape.inner))
    core = offload.around_forward(job, nodes, variant.position, variant.depth, partial(_core, job, nodes, variant))
    projection = row_forward(job, nodes, "projection", shape.inner, variant.quantizes)
    body = py(ATTENTION, "forward", qkv, *_rope(job, nodes), *core, projection)
    bda = residual_forward(job, nodes, "attention")
    return py(LAYER, "_forward_attention", *norm, module("SelfAttention", body), bda)


def _core(job: Job, nodes: Nodes, variant: LayerVariant) -> Row:
    return core_attention_forward(job, nodes, variant.checkpoints_attention)


def mlp_forward(job: Job, nodes: Nodes, variant: LayerVariant) -> Row:
    """``_forward_mlp``: norm, MLP or experts, residual."""
    norm = mlp_norm_forward(job, nodes, variant)
    inner = moe_forward(job, nodes, variant.quantizes) if variant.expert else dense_mlp_forward(job, nodes, variant)
    bda = residual_forward(job, nodes, "mlp")
    return py(LAYER, "_forward_mlp", *norm, py(LAYER, "_run_mlp", inner), bda)


def mlp_norm_forward(job: Job, nodes: Nodes, variant: LayerVariant) -> tuple[Row, ...]:
    """The norm before the MLP, where it is alone."""
    if variant.fuses_norm(job, mlp=True):
        return ()
    body = py(LAYER, "_forward_pre_mlp_layernorm", _norm(job, nodes, variant, "norm:mlp"))
    return (py(LAYER, "_pre_mlp_layernorm_and_residual", body),)


def _norm(job: Job, nodes: Nodes, variant: LayerVariant, role: str) -> Row:
    if not variant.discards:
        return norm_forward(job, nodes, role)
    body = py(RANDOM, "forward", norm_forward(job, Nodes(), role))
    inner = op("CheckpointWithoutOutputFunction", body, sequence=nodes.new(role))
    return py(RANDOM, "checkpoint", py(FUNCTION, "apply", builtin(APPLY, inner)))


def _bias(job: Job, columns: int) -> tuple[Node, ...]:
    if job.te:
        return ()
    nbytes = 2 * job.shape.tokens * columns * job.shape.element
    return (op("aten::add", kernels.elementwise("add", nbytes)),)


def _rope(job: Job, nodes: Nodes) -> tuple[Node, ...]:
    if not job.te:
        return ()
    nbytes = 2 * job.shape.tokens * job.shape.inner * job.shape.element
    rows = []
    for role in ("rope:query", "rope:key"):
        inner = op("FusedRoPEFunc", py(ROPE, "forward", kernels.fused("rope", nbytes)), sequence=nodes.new(role))
        rows.append(py("megatron/core/models/common/embeddings/rope_utils.py", "apply_rotary_pos_emb", inner))
    return tuple(rows)


def residual_forward(job: Job, nodes: Nodes, half: str) -> Row:
    """The residual after a half of the layer."""
    step = "_apply_self_attn_bda_step" if half == "attention" else "_apply_mlp_bda_step"
    return py(LAYER, step, _bias_dropout_add(job, nodes, f"bda:{half}"))


def _bias_dropout_add(job: Job, nodes: Nodes, role: str) -> Row:
    nbytes = job.activation_bytes
    if job.te:
        kernel = kernels.fused("bias_dropout_add", 4 * nbytes)
        compiled = op("Torch-Compiled Region: 0/0", op("CompiledFunction", kernel, sequence=nodes.new(role)))
        region = py("torch/_dynamo/eval_frame.py", "compile_wrapper", compiled)
        return py(BIAS_DROPOUT, "bias_dropout_add_fused_train", region)
    native = op("aten::native_dropout", kernels.custom("dropout", 2.5 * nbytes), sequence=nodes.new(f"{role}:dropout"))
    bound = builtin("method dropout of type object at 0x", op("aten::dropout", native))
    add = op("aten::add", kernels.elementwise("add", 3 * nbytes), sequence=nodes.new(role))
    body = py(BIAS_DROPOUT, "_bias_dropout_add_func", py("torch/nn/functional.py", "dropout", bound), add)
    return py(BIAS_DROPOUT, "_bias_dropout_add", body)


def dense_mlp_forward(job: Job, nodes: Nodes, variant: LayerVariant) -> Row:
    """``MLP.forward``: two linears around the activation."""
    shape = job.shape
    fused, weights = variant.fuses_norm(job, mlp=True), variant.quantizes
    first = column_forward(job, nodes, "fc1", shape.feed_forward, norm=fused, weights=weights)
    nbytes = 3 * shape.tokens * shape.feed_forward * shape.element
    sequence = nodes.new("activation")
    if job.te:
        inner = op("BiasSwiGLUFunction", kernels.fused("swiglu", nbytes), sequence=sequence)
        activation = py(SWIGLU, "bias_swiglu_impl", inner)
    else:
        activation = builtin("function gelu", op("aten::gelu", kernels.elementwise("gelu", nbytes), sequence=sequence))
    second = row_forward(job, nodes, "fc2", shape.feed_forward, weights)
    bias = _bias(job, shape.feed_forward)
    return module("MLP", py("megatron/core/transformer/mlp.py", "forward", first, *bias, activation, second))


def checkpointed_forward(job: Job, variant: LayerVariant) -> tuple[Row, Nodes]:
    """One fully recomputed layer's first forward, inside ``CheckpointFunction``."""
    nodes = Nodes()
    layer, _ = layer_forward(job, variant)
    body = py(RANDOM, "forward", py(RECOMPUTE, "custom_forward", without_graph(layer)))
    inner = op("CheckpointFunction", body, sequence=nodes.new("checkpoint"))
    checkpoint = py(RANDOM, "checkpoint", py(FUNCTION, "apply", builtin(APPLY, inner)))
    return py(RECOMPUTE, "chunk_runner", checkpoint), nodes


def checkpointed_backward(job: Job, variant: LayerVariant, nodes: Nodes) -> tuple[tuple[Row, ...], Nodes]:
    """Its backward: the forward again, then a nested run of the engine; also the nodes made on the way."""
    again = replace(variant, gathers="", gathers_next=False)
    if job.settings.fsdp:
        # The second forward gathers what the backward needs; the backward finds it there.
        again = replace(variant, gathers=variant.gathers_back, gathers_next=False, gathers_back="wait", again=True)
    layer, made = layer_forward(job, again)
    forward = in_phase(py(RECOMPUTE, "custom_forward", layer), Phase.RECOMPUTE)
    inner = [nested(row) for row in layer_backward(job, again, made)]
    body = py(FUNCTION, "apply", py(RANDOM, "backward", forward, engine(*inner)))
    return (evaluate("CheckpointFunctionBackward", nodes["checkpoint"], body),), made


def layer_backward(job: Job, variant: LayerVariant, nodes: Nodes) -> tuple[Row, ...]:
    """The engine's rows of one layer's backward, in their order."""
    if variant.kind == "*":
        return attention_backward(job, variant, nodes)
    if variant.kind == "M":
        residual = bias_dropout_add_backward(job, variant, nodes, "mixer")
        fused = variant.fuses_norm(job, mlp=False)
        return (*residual, *hybrid.mixer_backward(job, nodes, fused, variant.reduces))
    if variant.kind:
        last = accumulate(job, "dense", 1, variant.reduces, variant.expert)
        return (*mlp_backward(job, variant, nodes), *last)
    rows = (*mlp_backward(job, variant, nodes), *attention_backward(job, variant, nodes))
    if job.settings.offload is Offload.LAYERS:
        rows = offload.before_backward(job, rows, variant.position, variant.depth)
    if job.settings.fsdp:
        gather = fsdp.before_backward(job, nodes, variant.expert, variant.gathers_back, variant.gathers_previous)
        return gather, *rows, fsdp.after_backward(nodes)
    return rows


def mlp_backward(job: Job, variant: LayerVariant, nodes: Nodes) -> tuple[Row, ...]:
    """Backward of the MLP half."""
    shape, fused = job.shape, variant.fuses_norm(job, mlp=True)
    rows = list(bias_dropout_add_backward(job, variant, nodes, "mlp"))
    if variant.expert:
        rows += moe_backward(job, nodes, variant.reduces)
    else:
        rows += row_backward(job, nodes, "fc2", shape.feed_forward)
        rows.append(_activation_backward(job, nodes))
        rows.append(column_backward(job, nodes["fc1"], shape.feed_forward, norm=fused))
        rows += accumulate(job, "dense", 2 if job.te else 4)
    if not fused:
        rows += mlp_norm_backward(job, variant, nodes)
    return tuple(rows)


def mlp_norm_backward(job: Job, variant: LayerVariant, nodes: Nodes) -> tuple[Row, ...]:
    """Backward of the norm before the MLP."""
    return (*_norm_backward(job, variant, nodes["norm:mlp"]), *accumulate(job, "dense", 1))


def attention_backward(job: Job, variant: LayerVariant, nodes: Nodes) -> tuple[Row, ...]:
    """Backward of the attention half; the last gradient hook starts the reduction."""
    fused = variant.fuses_norm(job, mlp=False)
    rows = list(bias_dropout_add_backward(job, variant, nodes, "attention"))
    rows += row_backward(job, nodes, "projection", job.shape.inner)
    core = core_attention_backward(job, nodes, variant.checkpoints_attention)
    rows += offload.around_backward(job, nodes, variant.position, variant.depth, core)
    rows += _rope_backward(job, nodes)
    last: tuple[Row, ...] = ()
    if variant.first_scaled:
        last = quantized.updated_scales(job, 2 * quantized.MODULES_OF_LAYER * variant.depth, forward=False)
    rows.append(column_backward(job, nodes["qkv"], 3 * job.shape.inner, norm=fused, last=last))
    if not fused:
        rows += _norm_backward(job, variant, nodes["norm:attention"])
    rows += accumulate(job, "dense", 3, variant.reduces, variant.expert)
    return tuple(rows)


def _norm_backward(job: Job, variant: LayerVariant, sequence: int) -> tuple[Row, ...]:
    if not variant.discards:
        return (norm_backward(job, sequence),)
    nested = py(RANDOM, "backward", engine(norm_backward(job, -1)))
    return (evaluate("CheckpointWithoutOutputFunctionBackward", sequence, py(FUNCTION, "apply", nested)),)


def _activation_backward(job: Job, nodes: Nodes) -> Row:
    nbytes = 4 * job.shape.tokens * job.shape.feed_forward * job.shape.element
    if job.te:
        body = py(FUNCTION, "apply", py(SWIGLU, "backward", kernels.fused("swiglu_backward", nbytes)))
        return evaluate("BiasSwiGLUFunctionBackward", nodes["activation"], body)
    body = op("aten::gelu_backward", kernels.elementwise("gelu_backward", nbytes))
    return evaluate("GeluBackward0", nodes["activation"], body)


def bias_dropout_add_backward(job: Job, variant: LayerVariant, nodes: Nodes, half: str) -> tuple[Row, ...]:
    """Backward of a residual; with output discarding, its gradient hook computes the norm's output again."""
    nbytes, role = job.activation_bytes, f"bda:{half}"
    again: tuple[Row, ...] = ()
    if variant.discards:
        again_tree = py(RANDOM, "_recompute", norm_forward(job, Nodes(), "again"))
        again = (in_phase(without_graph(again_tree), Phase.RECOMPUTE),)
    if job.te:
        kernel = kernels.fused("bias_dropout_add_backward", 3 * nbytes)
        region = op("Torch-Compiled Region: 0/1", kernel)
        return (evaluate("CompiledFunctionBackward", nodes[role], region, after=again),)
    add = evaluate("AddBackward0", nodes[role], op("aten::sum", kernels.reduction(nbytes)))
    body = op("aten::native_dropout_backward", kernels.elementwise("multiply", 3 * nbytes))
    return add, evaluate("NativeDropoutBackward0", nodes[f"{role}:dropout"], body, after=again)


def _rope_backward(job: Job, nodes: Nodes) -> tuple[Row, ...]:
    if not job.te:
        return ()
    nbytes = 2 * job.shape.tokens * job.shape.inner * job.shape.element
    rows = []
    for role in ("rope:key", "rope:query"):
        body = py(FUNCTION, "apply", py(ROPE, "backward", kernels.fused("rope_backward", nbytes)))
        rows.append(evaluate("FusedRoPEFuncBackward", nodes[role], body))
    return tuple(rows)
