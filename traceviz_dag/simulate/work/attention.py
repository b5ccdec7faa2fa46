"""Core attention in the call tree: flash or unfused, context-parallel, recomputed on its own."""

from __future__ import annotations

from traceviz_dag.simulate.settings import ContextExchange
from traceviz_dag.simulate.tree import (
    Node,
    Nodes,
    Row,
    Wait,
    builtin,
    evaluate,
    in_phase,
    module,
    op,
    py,
    without_graph,
)
from traceviz_dag.simulate.work import kernels
from traceviz_dag.simulate.work.collectives import collective, communicate, message, single_exchange
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.linears import APPLY, FUNCTION, TE_ADAPTER
from traceviz_dag.vocabulary import Dimension, Phase

ATTENTION = "megatron/core/transformer/attention.py"
DOT_PRODUCT = "megatron/core/transformer/dot_product_attention.py"
RANDOM = "megatron/core/tensor_parallel/random.py"
TE_ATTENTION = "transformer_engine/pytorch/attention/dot_product_attention"
FLASH = "flash_attn/flash_attn_interface.py"


def core_attention_forward(job: Job, nodes: Nodes, checkpointed: bool) -> Row:
    """Core attention; ``checkpointed``: under selective recompute, inside ``CheckpointFunction``."""
    if not checkpointed:
        return _core(job, nodes)
    body = py(ATTENTION, "custom_forward", py(ATTENTION, "_run_core_attention", _core(job, Nodes())))
    inner = op("CheckpointFunction", py(RANDOM, "forward", body), sequence=nodes.new("attention:checkpoint"))
    checkpoint = py(RANDOM, "checkpoint", py(FUNCTION, "apply", builtin(APPLY, inner)))
    return py(ATTENTION, "_checkpointed_attention_forward", checkpoint)


def core_attention_backward(job: Job, nodes: Nodes, checkpointed: bool) -> tuple[Row, ...]:
    """The engine's rows of core attention's backward."""
    if not checkpointed:
        return _core_backward(job, nodes)
    body = py(ATTENTION, "custom_forward", py(ATTENTION, "_run_core_attention", _core(job, Nodes())))
    backward = py(
        RANDOM, "backward", in_phase(without_graph(body), Phase.RECOMPUTE), engine(*_core_backward(job, None))
    )
    return (evaluate("CheckpointFunctionBackward", nodes["attention:checkpoint"], py(FUNCTION, "apply", backward)),)


def engine(*rows: Node) -> Row:
    """``torch.autograd.backward`` called from Python: a nested run of the engine."""
    run = builtin("method run_backward of torch._C._EngineBase object at 0x", *rows)
    return py("torch/autograd/__init__.py", "backward", py("torch/autograd/graph.py", "_engine_run_backward", run))


def _core(job: Job, nodes: Nodes) -> Row:
    return _flash(job, nodes) if job.te else _unfused(job, nodes)


def _flash(job: Job, nodes: Nodes) -> Row:
    shape = job.shape
    sequence = nodes.new("attention")
    if job.cp == 1:
        kernel = kernels.flash_attention(shape.tokens, shape.context, shape.inner)
        name, function = _flash_names(job)
        body = py(FLASH, function, builtin("method fwd of PyCapsule object at 0x", kernel))
        inner = op(name, body, sequence=sequence)
    else:
        body = py(f"{TE_ATTENTION}/context_parallel.py", "forward", *_ring(job, backward=False))
        inner = op(_context_function(job), body, sequence=sequence)
    called = py(f"{TE_ATTENTION}/backends.py", "forward", py(FUNCTION, "apply", builtin(APPLY, inner)))
    outer = py(f"{TE_ATTENTION}/dot_product_attention.py", "forward", module("FlashAttention", called))
    return module("TEDotProductAttention", py(TE_ADAPTER, "forward", outer))


def _flash_names(job: Job) -> tuple[str, str]:
    """Autograd function and caller of attention of sequences of one length, or packed ones."""
    if job.settings.dynamic_context:
        return "FlashAttnVarlenFunc", "_flash_attn_varlen_forward"
    return "FlashAttnFunc", "_flash_attn_forward"


def _context_function(job: Job) -> str:
    if job.settings.context_exchange is ContextExchange.ALL_GATHER:
        return "AttnFuncWithCPAndKVAllGather"
    return "AttnFuncWithCPAndKVP2P"


def _ring(job: Job, backward: bool) -> tuple[Node, ...]:
    """Context-parallel attention: each step's keys and values travel while the step before is computed."""
    shape, cp = job.shape, job.cp
    piece = kernels.flash_attention(shape.tokens, shape.context / cp, shape.inner, backward)
    compute = builtin(f"method {'bwd' if backward else 'fwd'} of PyCapsule object at 0x", piece)
    if job.settings.context_exchange is ContextExchange.ALL_GATHER:
        made = [_keys_and_values(job, "_allgather_base")]
        scattered = [_keys_and_values(job, "_reduce_scatter_base")] if backward else []
        return (*made, *[compute] * cp, *scattered)
    file = f"{TE_ATTENTION}/context_parallel.py"
    correction = kernels.fused("softmax_correction", 6 * shape.tokens * shape.inner)
    rows: list[Node] = []
    for step in range(cp):
        if step:
            rows.append(builtin("method wait of pybind11_builtins.Work object at 0x", Wait("stream:cp:recv")))
        if step < cp - 1:
            rows += [py(file, "flash_attn_p2p_communicate", *_passed_on(job, backward))]
        rows += [compute, py(file, "flash_attn_fwd_out_correction", correction)]
    return tuple(rows)


def _keys_and_values(job: Job, operation: str) -> Row:
    cp = job.cp
    elements = 2 * job.shape.tokens * job.shape.inner
    what = collective(job.cp_group, operation, elements, "BFloat16", "keys_values", Dimension.CP, cp)
    return communicate(job.settings, what, members=cp)


def _passed_on(job: Job, backward: bool) -> list[Row]:
    elements = (4 if backward else 2) * job.shape.tokens * job.shape.inner
    rows = []
    for sends in (True, False):
        what = message(job.cp_group, sends, 1 if sends else -1, elements, "keys_values", Dimension.CP)
        rows.append(single_exchange(job.settings, what, "cp", "cp:send" if sends else "cp:recv"))
    return rows


def _unfused(job: Job, nodes: Nodes) -> Row:
    shape = job.shape
    heads = max(shape.inner // 128, 1)
    scores = heads * shape.tokens * shape.context * shape.element
    product = op(
        "aten::baddbmm",
        kernels.batched_matmul(heads, shape.tokens, shape.context, 128),
        sequence=nodes.new("attention:scores"),
    )
    masked = op(
        "ScaledUpperTriangMaskedSoftmax",
        kernels.custom("softmax", 2 * scores),
        sequence=nodes.new("attention:softmax"),
    )
    softmax = module(
        "FusedScaleMaskSoftmax", py("megatron/core/fusions/fused_softmax.py", "forward_fused_softmax", masked)
    )
    native = op("aten::dropout", op("aten::native_dropout", kernels.custom("dropout", 2.5 * scores)))
    bound = builtin("method dropout of type object at 0x", native)
    dropout = module(
        "Dropout", py("torch/nn/modules/dropout.py", "forward", py("torch/nn/functional.py", "dropout", bound))
    )
    weighted = op(
        "aten::bmm",
        kernels.batched_matmul(heads, shape.tokens, 128, shape.context),
        sequence=nodes.new("attention:values"),
    )
    rows = (
        builtin("method baddbmm of type object at 0x", product),
        softmax,
        dropout,
        builtin("method bmm of type object at 0x", weighted),
    )
    return module("DotProductAttention", py(DOT_PRODUCT, "forward", *rows))


def _core_backward(job: Job, nodes: Nodes | None) -> tuple[Row, ...]:
    """The engine's rows; without nodes, of the graph that a recompute has just built."""
    return _flash_backward(job, nodes) if job.te else _unfused_backward(job, nodes)


def _flash_backward(job: Job, nodes: Nodes | None) -> tuple[Row, ...]:
    shape = job.shape
    nbytes = 2 * shape.tokens * shape.inner
    dot = kernels.custom("flash_dot", 2 * nbytes)
    sequence = nodes["attention"] if nodes else -1
    if job.cp > 1:
        body = py(f"{TE_ATTENTION}/context_parallel.py", "backward", dot, *_ring(job, backward=True))
        return (evaluate(f"{_context_function(job)}Backward", sequence, py(FUNCTION, "apply", body)),)
    main = kernels.flash_attention(shape.tokens, shape.context, shape.inner, backward=True)
    convert = kernels.custom("flash_convert", 3 * nbytes)
    body = py(FLASH, "backward", builtin("method bwd of PyCapsule object at 0x", dot, main, convert))
    return (evaluate(f"{_flash_names(job)[0]}Backward", sequence, py(FUNCTION, "apply", body)),)


def _unfused_backward(job: Job, nodes: Nodes | None) -> tuple[Row, ...]:
    shape = job.shape
    heads = max(shape.inner // 128, 1)
    scores = heads * shape.tokens * shape.context * shape.element
    wide = op("aten::bmm", kernels.batched_matmul(heads, shape.tokens, shape.context, 128))
    narrow = op("aten::bmm", kernels.batched_matmul(heads, shape.context, 128, shape.tokens))
    softmax = op("ScaledUpperTriangMaskedSoftmaxBackward", kernels.custom("softmax_backward", 3 * scores))
    parts = (
        ("BmmBackward0", "attention:values", (narrow, wide)),
        ("SoftmaxBackward0", "attention:softmax", (softmax,)),
        ("BaddbmmBackward0", "attention:scores", (narrow, narrow)),
    )
    return tuple(evaluate(name, nodes[role] if nodes else -1, *children) for name, role, children in parts)
