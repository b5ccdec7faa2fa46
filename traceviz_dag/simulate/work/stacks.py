"""The Python frames around the work: from the script's first line down to schedules, steps and modules."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

from traceviz_dag.schedules import Exchange, Transfer
from traceviz_dag.simulate.settings import Era, JobSettings
from traceviz_dag.simulate.tree import Collective, Node, Row, RowKind, Wait, annotation, builtin, op, py, synchronise
from traceviz_dag.simulate.work import fsdp
from traceviz_dag.simulate.work.collectives import batched_exchange, message, single_exchange
from traceviz_dag.simulate.work.ends import Entry, model_file
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.vocabulary import Dimension

SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
P2P = "megatron/core/pipeline_parallel/p2p_communication.py"
MODULE_FILE = "torch/nn/modules/module.py"
TRANSFORMER_MODULE = "megatron/core/transformer/module.py"
BLOCK = "megatron/core/transformer/transformer_block.py"
PREDICTION = "megatron/core/transformer/multi_token_prediction.py"


def chance(settings: JobSettings, what: str) -> bool:
    """A coin that falls the same way each time in one job."""
    return bool(crc32(f"{settings.seed}|{what}".encode()) & 1)


def entry_of(settings: JobSettings) -> Entry:
    """Which training script the job runs under."""
    script = "pretrain_gpt.py"
    if settings.hybrid_pattern:
        script = "pretrain_hybrid.py" if settings.era is Era.TORCH_2_7 else "pretrain_mamba.py"
    return Entry(settings.era is not Era.TORCH_2_3 and chance(settings, "bridge"), script)


def _classes(settings: JobSettings) -> tuple[str, str, str]:
    """The model's class, and file and class of its block of layers."""
    if not settings.hybrid_pattern:
        return "GPTModel", BLOCK, "TransformerBlock"
    if settings.era is Era.TORCH_2_7:
        return "HybridModel", "megatron/core/models/hybrid/hybrid_block.py", "HybridStack"
    return "MambaModel", "megatron/core/ssm/mamba_block.py", "MambaStack"


def annotated_step(number: int) -> Row:
    """The profiler's annotation of one training step."""
    return Row(RowKind.ANNOTATION, f"ProfilerStep#{number}")


def train_step(settings: JobSettings) -> tuple[Row, ...]:
    """Frames of one training step."""
    frames: tuple[Row, ...] = (py(entry_of(settings).training, "train_step"),)
    if chance(settings, "wrapped step"):
        frames = (py(entry_of(settings).training, "wrapped_train_step"), *frames)
    return frames


def schedule_function(settings: JobSettings) -> Row:
    """The frame of the pipeline schedule."""
    if settings.pp == 1:
        return py(SCHEDULES, "forward_backward_no_pipelining")
    kind = "with" if settings.vpp > 1 else "without"
    return py(SCHEDULES, f"forward_backward_pipelining_{kind}_interleaving")


def helper_wrapper(settings: JobSettings) -> tuple[Row, ...]:
    """The interleaved schedule's wrapper around a forward and a backward step; the oldest era has none."""
    if settings.vpp == 1 or settings.era is Era.TORCH_2_3:
        return ()
    return (py(SCHEDULES, "forward_backward_helper_wrapper"),)


def forward_frames(settings: JobSettings) -> tuple[Row, ...]:
    """Frames of one forward step down to the training script's own function."""
    helper = (py(SCHEDULES, "forward_step_helper"),) if settings.vpp > 1 else ()
    entry = entry_of(settings)
    return (*helper, py(SCHEDULES, "forward_step"), py(entry.forward_file, "forward_step"))


def _module(name: str) -> tuple[Row, ...]:
    return (Row(RowKind.MODULE, name), py(MODULE_FILE, "_call_impl"))


def model_frames(settings: JobSettings) -> tuple[Row, ...]:
    """Frames from ``DistributedDataParallel`` to the model's ``forward``."""
    file, (name, *_) = model_file(settings), _classes(settings)
    half = (*_module("Float16Module"), py(TRANSFORMER_MODULE, "forward")) if chance(settings, "float16") else ()
    wrapper = (py(file, "__call__"), py(TRANSFORMER_MODULE, "__call__")) if settings.era is Era.TORCH_2_7 else ()
    ddp = py("megatron/core/distributed/data_parallel_base.py", "forward")
    if settings.fsdp:
        outer = (*_module("FullyShardedDataParallel"), ddp, *_module("MegatronFSDP"), py(fsdp.WRAPPER, "forward"))
        half = (py(TRANSFORMER_MODULE, "forward"),) if half else ()
        return (*outer, annotation("CustomFSDP.forward"), *half, *wrapper, *_module(name), py(file, "forward"))
    return (*_module("DistributedDataParallel"), ddp, *half, *wrapper, *_module(name), py(file, "forward"))


def block_frames(settings: JobSettings, checkpointed: bool) -> tuple[Row, ...]:
    """Frames of the block around its layers."""
    _, file, name = _classes(settings)
    wrapper = (py(file, "__call__"), py(TRANSFORMER_MODULE, "__call__")) if settings.era is Era.TORCH_2_7 else ()
    frames = (*wrapper, *_module(name), py(file, "forward"))
    if not checkpointed:
        return frames
    if settings.era is Era.TORCH_2_7:
        return (*frames, py("megatron/core/recompute.py", "checkpointed_forward"))
    return (*frames, py(file, "_checkpointed_forward"))


def prediction_frames(name: str) -> tuple[Row, ...]:
    """Frames of a module of multi-token prediction."""
    return (*_module(name), py(PREDICTION, "forward"))


def backward_frames(settings: JobSettings) -> tuple[Row, ...]:
    """Frames of one backward step."""
    helper = (py(SCHEDULES, "backward_step_helper"),) if settings.vpp > 1 else ()
    return (*helper, py(SCHEDULES, "backward_step"))


def engine_frames(settings: JobSettings) -> tuple[Row, ...]:
    """Frames from a backward step into the autograd engine, on the main thread."""
    run = builtin("method run_backward of torch._C._EngineBase object at 0x")
    if chance(settings, "custom backward"):
        return (py(SCHEDULES, "custom_backward"), run)
    return (py("torch/autograd/__init__.py", "backward"), py("torch/autograd/graph.py", "_engine_run_backward"), run)


def exchange(job: Job, action: Exchange, asynchronous: bool, even: bool) -> Row:
    """A call of the P2P communicator, with what it sends and receives.

    Args:
        even: whether the calling stage is even: with two stages, overlapped messages to even stages use the world.
    """
    settings = job.settings
    rows: list[Node] = []
    messages = [_message(job, transfer, asynchronous, even) for transfer in action.transfers]
    for what, _ in messages:
        if what.operation == "recv":
            rows.append(builtin("method empty of type object at 0x", op("aten::empty")))
    if messages and asynchronous:
        sent = [
            single_exchange(settings, what, channel, f"pp:{what.operation}:{channel}") for what, channel in messages
        ]
        rows.append(py(P2P, "_p2p_ops", *sent))
    elif messages:
        rows.append(py(P2P, "_batched_p2p_ops", batched_exchange(settings, tuple(messages))))
        handle = builtin("method wait of pybind11_builtins.Work object at 0x", Wait("stream:nccl:pp"))
        synchronised = builtin("function _cuda_synchronize", synchronise())
        rows += [*[handle] * len(messages), py("torch/cuda/__init__.py", "synchronize", synchronised)]
    inner = (py(P2P, "_communicate", *rows),) if messages else ()
    called = py(P2P, action.call, *inner)
    return py("megatron/core/utils.py", "wrapper", called) if settings.era is Era.TORCH_2_7 else called


def _message(job: Job, transfer: Transfer, asynchronous: bool, even: bool) -> tuple[Collective, str]:
    peer = 1 if transfer.sends != transfer.gradient else -1
    what = message("pp", transfer.sends, peer, job.shape.shard * job.shape.width, "p2p", Dimension.PP)
    if asynchronous and job.settings.pp == 2 and transfer.sends != even:
        what = replace(what, via="world")
    return what, "gradient" if transfer.gradient else "activation"


def await_receive(gradient: bool) -> Row:
    """The wait for an overlapped receive before the step that needs it."""
    stream = f"stream:pp:recv:{'gradient' if gradient else 'activation'}"
    bound = builtin("method wait of pybind11_builtins.Work object at 0x", Wait(stream))
    return py("torch/distributed/distributed_c10d.py", "wait", bound)
