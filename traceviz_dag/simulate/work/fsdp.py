"""Megatron-FSDP in the call tree (``optim_grads_params``): what its hooks gather and reduce around a layer, its unit.

Parameters of a unit are gathered before its forward and again before its backward, with those of the unit that follows;
its gradients are reduced as soon as all have been computed, in each micro-batch. What belongs to no unit (embedding,
output layer) is gathered once in a step.
"""

from __future__ import annotations

from dataclasses import replace

from traceviz_dag.simulate.tree import Node, Nodes, Row, RowKind, builtin, evaluate, op, py
from traceviz_dag.simulate.work import kernels
from traceviz_dag.simulate.work.buckets import bucket_parameters, group_of_bucket
from traceviz_dag.simulate.work.collectives import collective, communicate
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.linears import APPLY, FUNCTION, waited

_PACKAGE = "megatron/core/distributed/fsdp/src/megatron_fsdp"
WRAPPER, BUFFER = f"{_PACKAGE}/megatron_fsdp.py", f"{_PACKAGE}/param_and_grad_buffer.py"
_EVAL_FRAME = "torch/_dynamo/eval_frame.py"
"""Where hooks that are not compiled pass through."""

REDUCE_STREAM = "fsdp:reduce"
_BACKWARD = ":backward"


def buckets_of_unit(expert: bool) -> tuple[str, ...]:
    """The buckets of a layer: those of different groups of ranks are apart."""
    return ("expert_layer", "expert") if expert else ("dense",)


def before_forward(job: Job, nodes: Nodes, expert: bool, gathers: str, following: bool, again: bool) -> tuple[Row, ...]:
    """The forward pre-hooks of a layer.

    Args:
        gathers: "own" (the hook gathers the layer's parameters) or "wait" (they are on their way).
        following: whether it gathers the next layer's, too. again: whether the forward runs for the second time.
    """
    passing = _BACKWARD if again else ""
    hook = _unshard(
        job, "_pre_forward_param_unshard", buckets_of_unit(expert), gathers, passing, ":next" if following else ""
    )
    register = op("RegisterFSDPBackwardFunction", py(WRAPPER, "forward"), sequence=nodes.new("fsdp:release"))
    applied = py(WRAPPER, "_register_post_backward_hook", py(FUNCTION, "apply", builtin(APPLY, register)))
    return hook, py(_EVAL_FRAME, "_fn", applied)


def after_forward(nodes: Nodes) -> tuple[Row, ...]:
    """The forward hooks of a layer: one marks its output, at which the backward pass will gather; one releases."""
    view = op("aten::view_as", op("aten::view", sequence=nodes.new("fsdp:output")))
    marked = py(WRAPPER, "forward_hook", builtin("method view_as of Tensor object at 0x", view))
    return py(_EVAL_FRAME, "_fn", marked), py(_EVAL_FRAME, "_fn", py(WRAPPER, "_post_forward"))


def before_backward(job: Job, nodes: Nodes, expert: bool, gathers: str, following: bool) -> Row:
    """The engine's row of a layer's output, whose pre-hook gathers the parameters, and those of the layer before."""
    hook = _unshard(
        job,
        "_pre_backward_param_unshard",
        buckets_of_unit(expert),
        gathers,
        _BACKWARD,
        ":previous" if following else "",
    )
    row = evaluate("ViewBackward0", nodes["fsdp:output"])
    return replace(row, children=(py(WRAPPER, "<lambda>", hook), *row.children))


def after_backward(nodes: Nodes) -> Row:
    """The engine's row of a layer's input: its parameters are released."""
    released = py(WRAPPER, "_post_backward_release_module", py(BUFFER, "release_bucket"))
    body = py(FUNCTION, "apply", py(WRAPPER, "backward", released))
    return evaluate("RegisterFSDPBackwardFunctionBackward", nodes["fsdp:release"], body)


def embedding_hook(job: Job, own: bool, following: bool, expert: bool) -> tuple[Row, ...]:
    """The embedding's forward pre-hook: it gathers its own parameters once in a step, and the first layer's always."""
    rows: list[Node] = []
    if own:
        rows += _gathered(job, "embedding", "params")
    if following:
        rows += [row for bucket in buckets_of_unit(expert) for row in _gathered(job, bucket, f"{_event(bucket)}:next")]
    waits = (_ready("params"),) if own else ()
    return (_hook("_pre_forward_param_unshard", rows, waits),)


def accumulate(job: Job, bucket: str, parameters: int, reduced: str) -> tuple[Row, ...]:
    """``AccumulateGrad`` of some parameters, whose hooks copy the gradient into its bucket.

    Args:
        reduced: the bucket whose gradients are complete with the last one; empty: none.
    """
    rows = []
    title = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    shares = {"dense": 6, "expert_layer": 6, "expert": 2, "embedding": 1}
    nbytes = 2 * bucket_parameters(job, bucket) // shares[bucket]
    for index in range(parameters):
        copied = builtin("method copy_ of Tensor object at 0x", op("aten::copy_", kernels.copy("DtoD", nbytes)))
        body: list[Node] = [py(WRAPPER, "_grad_acc", copied)]
        if reduced and index == parameters - 1:
            body += reduce(job, reduced)
        hook = py(WRAPPER, "<lambda>", py(_EVAL_FRAME, "_fn", py(WRAPPER, "_process_post_backward_gradients", *body)))
        inner = op("torch::autograd::AccumulateGrad", op("aten::detach"), hook)
        rows.append(Row(RowKind.OPERATOR, title, (inner,)))
    return tuple(rows)


def reduce(job: Job, bucket: str) -> tuple[Row, ...]:
    """``reduce_gradients``: a bucket is scaled, scattered and added to the step's shard, on a separate stream."""
    group, dimension, members = group_of_bucket(job.settings, bucket)
    if members == 1:
        return ()
    shard = bucket_parameters(job, bucket) // members
    scaled = replace(kernels.elementwise("multiply", 4 * shard * members), stream=REDUCE_STREAM, after=("compute",))
    what = collective(group, "reduce_scatter_tensor_coalesced", shard, "BFloat16", "grad_sync", dimension, members)
    sent = communicate(job.settings, what, current=REDUCE_STREAM, members=members)
    added = replace(kernels.elementwise("add", 6 * shard), stream=REDUCE_STREAM)
    scale = py(
        BUFFER,
        "gradient_reduce_preprocessing",
        builtin("method mul_ of Tensor object at 0x", op("aten::mul_", scaled)),
    )
    made = py(BUFFER, "_bucket_group_gradient_reduce", scale, sent, op("aten::add_", added))
    return (py(BUFFER, "reduce_gradients", made),)


def root_post_backward(job: Job, tied: bool) -> tuple[Row, ...]:
    """The callback at the end of a backward pass: reduces weights that two modules share, and waits for all."""
    reduced = reduce(job, "embedding") if tied else ()
    waits = py(BUFFER, "wait_for_previous_grad_reduce", waited(f"stream:{REDUCE_STREAM}"))
    return (py(WRAPPER, "_root_post_backward", *reduced, py(BUFFER, "reset", waits)),)


def finish_gradients() -> Row:
    """``finish_grad_sync``: the reductions have been waited for."""
    waits = py(BUFFER, "wait_for_previous_grad_reduce", waited(f"stream:{REDUCE_STREAM}"))
    synchronised = py(WRAPPER, "synchronize_gradient_reduce", waits)
    attached = py(WRAPPER, "attach_grad_to_optimizer_state", py(BUFFER, "update_main_grads"))
    return py(WRAPPER, "finish_grad_sync", synchronised, attached)


def _event(bucket: str) -> str:
    return "params:expert" if bucket == "expert" else "params"


def _unshard(job: Job, hook: str, buckets: tuple[str, ...], gathers: str, passing: str, following: str) -> Row:
    """A hook that gathers its own parameters, if nobody did, and those of a neighbour.

    Args:
        passing: suffix of the events of a pass.
        following: suffix of a neighbour's events; empty: no prefetch.
    """
    own = [row for bucket in buckets for row in _gathered(job, bucket, _event(bucket) + passing)]
    ahead = [row for bucket in buckets for row in _gathered(job, bucket, _event(bucket) + passing + following)]
    # Buckets are gathered in the order of their numbers, which is that of the layers.
    parts = [own if gathers == "own" else [], ahead if following else []]
    rows = [row for part in (reversed(parts) if following == ":previous" else parts) for row in part]
    return _hook(hook, rows, tuple(_ready(_event(bucket) + passing) for bucket in buckets))


def _hook(name: str, gathered: list[Node], waits: tuple[Row, ...]) -> Row:
    rows = (py(BUFFER, "all_gather_params", *gathered), *waits)
    ready = py(WRAPPER, "all_gather_and_wait_parameters_ready", *rows)
    return py(_EVAL_FRAME, "_fn", py(WRAPPER, name, ready))


def _ready(event: str) -> Row:
    return py(BUFFER, "wait_bucket_ready", waited(event))


def _gathered(job: Job, bucket: str, event: str) -> list[Node]:
    group, dimension, members = group_of_bucket(job.settings, bucket)
    if members == 1:
        return []
    shard = bucket_parameters(job, bucket) // members
    what = collective(group, "allgather_into_tensor_coalesced", shard, "BFloat16", "param_sync", dimension, members)
    empty = builtin("method empty of type object at 0x", op("aten::empty"))
    queued = py(BUFFER, "async_bucket_gather", py(BUFFER, "fetch_bucket", empty))
    return [queued, communicate(job.settings, what, asynchronous=True, records=event, members=members)]
