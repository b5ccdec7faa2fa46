"""Data-parallel communication in the call tree: parameter gathers in forward hooks, reductions in backward hooks."""

from __future__ import annotations

from traceviz_dag.simulate.tree import Node, Row, RowKind, builtin, op, py
from traceviz_dag.simulate.work import fsdp, kernels
from traceviz_dag.simulate.work.buckets import bucket_parameters, group_of_bucket
from traceviz_dag.simulate.work.collectives import collective, communicate
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.linears import waited

DDP = "megatron/core/distributed/distributed_data_parallel.py"
BUFFER = "megatron/core/distributed/param_and_grad_buffer.py"


def gather_parameters(job: Job, bucket: str, event: str, asynchronous: bool = True) -> tuple[Row, ...]:
    """``start_param_sync``: the all-gather of one bucket's parameters."""
    group, dimension, members = group_of_bucket(job.settings, bucket)
    if members == 1:
        return ()
    shard = bucket_parameters(job, bucket) // members
    operation = "allgather_into_tensor_coalesced"
    what = collective(group, operation, shard, "BFloat16", "param_sync", dimension, members)
    made = communicate(job.settings, what, asynchronous=asynchronous, records=event, members=members)
    return (py(BUFFER, "start_param_sync", made),)


def reduce_gradients(job: Job, bucket: str, event: str, asynchronous: bool = True) -> tuple[Row, ...]:
    """``start_grad_sync``: the reduction of one bucket's gradients."""
    group, dimension, members = group_of_bucket(job.settings, bucket)
    if members == 1:
        return ()
    elements, operation = bucket_parameters(job, bucket), "allreduce_coalesced"
    if job.settings.distributed_optimizer:
        elements, operation = elements // members, "reduce_scatter_tensor_coalesced"
    what = collective(group, operation, elements, "Float", "grad_sync", dimension, members)
    made = communicate(job.settings, what, asynchronous=asynchronous, records=event, members=members)
    return (py(BUFFER, "start_grad_sync", made),)


def gather_hook(job: Job, gathers: str, gathers_next: bool, expert: bool, embedding: bool = False) -> tuple[Row, ...]:
    """The forward pre-hook that finishes a bucket's parameter gather and starts the next bucket's.

    Args:
        gathers: "" (parameters are there), "wait" (the gather runs already), "own" (the hook must launch it).
    """
    if job.settings.fsdp:
        return fsdp.embedding_hook(job, bool(gathers), gathers_next, expert) if embedding else ()
    if not gathers:
        return ()
    buckets = ["embedding"] if embedding else ["expert_layer", "expert"] if expert else ["dense"]
    following = ["expert_layer", "expert"] if expert else ["dense"]
    body: list[Node] = []
    for bucket in buckets:
        event = "params:expert" if bucket == "expert" else "params"
        body += gather_parameters(job, bucket, event) if gathers == "own" else ()
        body.append(waited(event))
    for bucket in following if gathers_next else ():
        body += gather_parameters(job, bucket, "params:expert:next" if bucket == "expert" else "params:next")
    finish = py(BUFFER, "finish_param_sync", *body)
    return (py(DDP, "hook", py(DDP, "_finish_param_sync_for_bucket_group", finish)),)


def accumulate(job: Job, bucket: str, parameters: int, reduces: bool = False, expert: bool = False) -> tuple[Row, ...]:
    """``AccumulateGrad`` of some parameters; the last one's hook starts the reduction where gradients are full."""
    reduced = ("expert_layer" if expert and bucket == "dense" else bucket) if reduces else ""
    if job.settings.fsdp:
        return fsdp.accumulate(job, bucket, parameters, reduced)
    rows = []
    title = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    for index in range(parameters):
        body: list[Node] = []
        if not job.te:
            add = kernels.elementwise("add_float", 8.0 * job.shape.width)
            body.append(builtin("method add_ of Tensor object at 0x", op("aten::add_", add)))
        if reduced and index == parameters - 1:
            launched = reduce_gradients(job, reduced, "grads")
            body.append(py(BUFFER, "register_grad_ready", *launched))
        inner = op("torch::autograd::AccumulateGrad", op("aten::detach"))
        rows.append(Row(RowKind.OPERATOR, title, (inner, py(DDP, "hook", *body))))
    return tuple(rows)
