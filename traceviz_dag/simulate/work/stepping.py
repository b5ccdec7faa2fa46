"""The rest of a training step: buffers, gradient finalisation, optimizer, reporting of the loss."""

from __future__ import annotations

from traceviz_dag.simulate.settings import Era
from traceviz_dag.simulate.tree import Node, Row, annotation, builtin, op, py, synchronise
from traceviz_dag.simulate.work import fsdp, kernels
from traceviz_dag.simulate.work.collectives import collective, communicate
from traceviz_dag.simulate.work.gradients import BUFFER, DDP, gather_parameters, reduce_gradients
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.linears import waited
from traceviz_dag.vocabulary import Dimension

FINALIZE = "megatron/core/distributed/finalize_model_grads.py"
OPTIMIZER = "megatron/core/optimizer/optimizer.py"
DISTRIBUTED_OPTIMIZER = "megatron/core/optimizer/distrib_optimizer.py"
CLIP = "megatron/core/optimizer/clip_grads.py"
CONTEXT = "torch/utils/_contextlib.py"


def zero_gradients(job: Job, parameters: int) -> Row:
    """``zero_grad_buffer`` of one model chunk."""
    if job.settings.fsdp:
        cleared = op("aten::zero_", kernels.fill(4 * parameters // job.replicas))
        return py(fsdp.WRAPPER, "zero_grad_buffer", py(fsdp.BUFFER, "zero_grad", cleared))
    filled = op("aten::zero_", kernels.fill(4 * parameters))
    reset = py(BUFFER, "reset", builtin("method zero_ of Tensor object at 0x", filled))
    return py(DDP, "zero_grad_buffer", reset)


def token_counter() -> Row:
    """The counter of tokens that a schedule starts with."""
    zeros = op("aten::zeros", op("aten::zero_", kernels.elementwise("zero", 4)))
    return builtin("method zeros of type object at 0x", zeros)


def count_tokens() -> Row:
    """A forward step's tokens are added to the counter."""
    return op("aten::add_", kernels.elementwise("add_float", 12))


def finish_gradients(job: Job, buckets: tuple[str, ...]) -> Row:
    """``finish_grad_sync`` of one chunk: waits for overlapped reductions, or runs them now."""
    if job.settings.fsdp:
        return fsdp.finish_gradients()
    if job.settings.overlap_grad_reduce:
        body: list[Node] = [waited("stream:nccl:dp_cp"), waited("stream:nccl:edp")]
        if not job.settings.expert_count:
            body = body[:1]
    else:
        body = [row for bucket in buckets for row in reduce_gradients(job, bucket, "", asynchronous=False)]
    return py(DDP, "finish_grad_sync", py(BUFFER, "finish_grad_sync", *body))


def finalize(job: Job, first: bool, last: bool, chunks: tuple[tuple[str, ...], ...], parameters: int) -> Row:
    """``finalize_model_grads`` of a rank on the first, the last or an inner stage."""
    settings = job.settings
    rows: list[Node] = [finish_gradients(job, buckets) for buckets in chunks]
    if job.shards_sequence:
        what = collective("tp", "allreduce", 4 * job.shape.width, "Float", "norm_grad", Dimension.TP, settings.tp)
        made = communicate(settings, what, members=settings.tp)
        rows.append(py(FINALIZE, "_allreduce_non_tensor_model_parallel_grads", made))
    if settings.pp > 1 and (first or last):
        elements = settings.vocabulary * settings.hidden // settings.tp
        what = collective("embedding", "allreduce", elements, "Float", "embedding_grad", Dimension.EMBEDDING, 2)
        made = py(FINALIZE, "_allreduce_embedding_grad", communicate(settings, what))
        rows.append(py(FINALIZE, "_allreduce_word_embedding_grads", made))
    if settings.pp > 1:
        what = collective("pp", "broadcast", 1, "Int", "num_tokens", Dimension.CONTROL, settings.pp)
        rows.append(communicate(settings, what, members=settings.pp))
    replicas = settings.dp * settings.cp
    if replicas > 1:
        what = collective("dp_cp", "allreduce", 1, "Int", "num_tokens", Dimension.DP, replicas)
        rows.append(communicate(settings, what, members=replicas))
    rows.append(builtin("method clamp of type object at 0x", op("aten::clamp", kernels.elementwise("clamp", 8))))
    reciprocal = op("aten::reciprocal", kernels.elementwise("reciprocal", 8))
    rows.append(py("torch/_tensor.py", "__rdiv__", builtin("method reciprocal of Tensor object at 0x", reciprocal)))
    wrapper, buffer = (fsdp.WRAPPER, fsdp.BUFFER) if settings.fsdp else (DDP, BUFFER)
    held = parameters // replicas if settings.fsdp else parameters
    for _ in chunks:
        scaled = op("aten::mul_", kernels.elementwise("multiply", 8 * held / len(chunks)))
        rows.append(py(wrapper, "scale_gradients", py(buffer, "scale_gradients", scaled)))
    return py(FINALIZE, "finalize_model_grads", *rows)


def optimizer_step(job: Job, parameters: int, tensors: int, buckets: tuple[str, ...]) -> Row:
    """``optimizer.step``: gradient norm, clipping, Adam, and the parameter gather where it is not overlapped."""
    shard = parameters // (job.settings.dp * job.settings.cp if job.settings.distributed_optimizer else 1)
    norm = py(CONTEXT, "decorate_context", py(OPTIMIZER, "get_grad_norm", *_grad_norm(job, shard, tensors)))
    scaled = _applied_to_tensors("scale", 8 * shard, tensors)
    clip = py(CLIP, "clip_grad_by_total_norm_fp32", py("megatron/core/utils.py", "multi_tensor_applier", *scaled))
    adam = _applied_to_tensors("adam", 28 * shard, tensors)
    fused_adam = py("transformer_engine/pytorch/optimizers/fused_adam.py", "step", *adam)
    profiled = py("torch/optim/optimizer.py", "wrapper", annotation("Optimizer.step#FusedAdam.step", fused_adam))
    copied = builtin(
        "method copy_ of Tensor object at 0x", op("aten::copy_", kernels.elementwise("to_bfloat16", 6 * shard))
    )
    if job.settings.fsdp:
        copied = py(fsdp.BUFFER, "copy_main_weights_to_model_weights", copied)
    body: list[Node] = [profiled, py(DISTRIBUTED_OPTIMIZER, "_copy_main_params_to_model_params", copied)]
    file = DISTRIBUTED_OPTIMIZER if job.settings.distributed_optimizer else OPTIMIZER
    if job.settings.distributed_optimizer and not job.settings.overlap_param_gather:
        for bucket in buckets:
            body += gather_parameters(job, bucket, "", asynchronous=False)
    step = py(CONTEXT, "decorate_context", py(file, "step_with_ready_grads", *body))
    return py(CONTEXT, "decorate_context", py(OPTIMIZER, "step", norm, clip, step))


def _applied_to_tensors(role: str, nbytes: float, tensors: int) -> list[Node]:
    launches = max(1, min(tensors // 4, 12))
    return [
        builtin("method multi_tensor_op of PyCapsule object at 0x", kernels.custom(role, nbytes / launches))
        for _ in range(launches)
    ]


def _grad_norm(job: Job, shard: int, tensors: int) -> list[Node]:
    settings = job.settings
    group, members = (
        ("optimizer", settings.world) if settings.distributed_optimizer else ("mp", settings.tp * settings.pp)
    )
    sharded: tuple[Row, ...] = ()
    if settings.fsdp:
        # Each rank has its shards' norms: they are summed over the shards first, then over the model.
        group, members = "mp", settings.tp * settings.pp
        if job.replicas > 1:
            summed = collective("dp_cp", "allreduce", 1, "Float", "grad_norm", Dimension.GRAD_NORM, job.replicas)
            sharded = (communicate(settings, summed, members=job.replicas),)
    groups = [(group, members)]
    if settings.expert_count and not settings.distributed_optimizer:
        groups.append(("etp_ep_pp", settings.expert_tensor * settings.ep * settings.pp))
    rows: list[Node] = []
    for key, size in groups:
        zeros = op("aten::zeros", op("aten::zero_", kernels.elementwise("zero", 4)))
        norms = _applied_to_tensors("l2_norm", 4 * shard, tensors)
        what = collective(key, "allreduce", 1, "Float", "grad_norm", Dimension.GRAD_NORM, size)
        item = op("aten::item", op("aten::_local_scalar_dense", kernels.copy("DtoH", 4), synchronise("compute")))
        rows.append(
            _of_chained_optimizer(
                CLIP,
                "get_grad_norm_fp32",
                builtin("method zeros of type object at 0x", zeros),
                py("megatron/core/utils.py", "multi_tensor_applier", *norms),
                builtin("method pow of Tensor object at 0x", op("aten::pow", kernels.elementwise("power", 8))),
                *sharded,
                communicate(settings, what, members=size),
                builtin("method item of Tensor object at 0x", item),
            )
        )
    return rows


def _of_chained_optimizer(file: str, function: str, *children: Node) -> Row:
    """A call for one optimizer of the chain that Megatron's optimizer is."""
    return py(CONTEXT, "decorate_context", py(OPTIMIZER, "get_grad_norm", py(file, function, *children)))


def agree(job: Job, utilities: str) -> tuple[Row, ...]:
    """``train_step`` asks all ranks of the model whether the update succeeded, and for the largest gradient norm."""
    members = job.settings.tp * job.settings.pp
    rows = []
    for function, dtype in (
        ("logical_and_across_model_parallel_group", "Int"),
        ("reduce_max_stat_across_model_parallel_group", "Float"),
    ):
        sent = op("aten::to", op("aten::_to_copy", op("aten::copy_", kernels.copy("HtoD", 4))))
        what = collective("mp", "allreduce", 1, dtype, "agreement", Dimension.CONTROL, members)
        item = op("aten::item", op("aten::_local_scalar_dense", kernels.copy("DtoH", 4), synchronise("compute")))
        rows.append(
            py(
                utilities,
                function,
                builtin("method tensor of type object at 0x", sent),
                communicate(job.settings, what, members=members),
                builtin("method item of Tensor object at 0x", item),
            )
        )
    return tuple(rows)


def report_loss(job: Job, last: bool) -> tuple[Row, ...]:
    """``train_step`` averages the loss over the replicas (newest Megatron), then reads it."""
    rows: list[Row] = []
    if not last:
        return ()
    members = job.settings.dp * job.settings.cp
    if job.settings.era is Era.TORCH_2_7 and members > 1:
        what = collective("dp_cp", "allreduce", 2, "Float", "loss", Dimension.DP, members)
        rows.append(communicate(job.settings, what, members=members))
    divide = op("aten::div", kernels.elementwise("divide", 12))
    item = op("aten::item", op("aten::_local_scalar_dense", kernels.copy("DtoH", 4), synchronise("compute")))
    rows += [divide, builtin("method item of Tensor object at 0x", item)]
    return tuple(rows)


def early_work(job: Job) -> Row:
    """What was still running when the profiler started: the last update of the step before."""
    shard = job.shape.layer_parameters
    return py(OPTIMIZER, "step", *_applied_to_tensors("adam", 28 * shard, 16))
