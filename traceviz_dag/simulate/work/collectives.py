"""How a call to ``torch.distributed`` looks in the call tree, per PyTorch era, and which stream it runs on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from traceviz_dag.simulate.settings import Era, JobSettings
from traceviz_dag.simulate.tree import (
    Collective,
    Kernel,
    Message,
    Node,
    Row,
    RowKind,
    annotation,
    builtin,
    call,
    op,
    py,
)
from traceviz_dag.vocabulary import Dimension, Kind

SIZED_CONTEXTS = {f"cp{1 << power}": f"HYBRID_DP_CP_GROUP_{1 << power}" for power in range(14)}
"""Short key → description of the groups of dynamic context parallelism, one for each size below that of the domain."""

GROUP_OF = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "dp_cp": "DATA_PARALLEL_GROUP_WITH_CP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "mp": "MODEL_PARALLEL_GROUP",
    "embedding": "EMBEDDING_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "etp": "EXPERT_TENSOR_PARALLEL_GROUP",
    "etp_ep": "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP",
    "etp_ep_pp": "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP",
    "edp": "EXPERT_DATA_PARALLEL_GROUP",
    "optimizer": "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
    "amax": "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP",
    "world": "default_pg",
    **SIZED_CONTEXTS,
}
"""Short key → description of the process group."""

BYTES_OF = {"Float": 4, "BFloat16": 2, "Long": 8, "Int": 4, "Byte": 1}
_SHORT_TYPE = {"Float": "f32", "BFloat16": "bf16", "Long": "i64", "Int": "i32"}
_LONG_TYPE = {"Float": "float", "BFloat16": "bfloat", "Long": "int64_t", "Int": "int32_t"}
_PYBIND = (
    "pybind11_builtins.pybind11_detail_function_record_v1_system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1 object at 0x"
)


@dataclass(frozen=True, slots=True)
class _Spelling:
    """Names of one kind of collective along its call chain."""

    function: str
    bound: str
    operator: str
    annotation: str
    kernel: str


_SPELLINGS = {
    "allreduce": _Spelling("all_reduce", "allreduce", "c10d::allreduce_", "nccl:all_reduce", "AllReduce_Sum"),
    "broadcast": _Spelling("broadcast", "broadcast", "c10d::broadcast_", "nccl:broadcast", "Broadcast"),
    "_allgather_base": _Spelling(
        "all_gather_into_tensor", "_allgather_base", "c10d::_allgather_base_", "nccl:_all_gather_base", "AllGather"
    ),
    "allgather": _Spelling("all_gather", "allgather", "c10d::allgather_", "nccl:all_gather", "AllGather"),
    "_reduce_scatter_base": _Spelling(
        "reduce_scatter_tensor",
        "_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        "ReduceScatter_Sum",
    ),
    "all_to_allv": _Spelling(
        "all_to_all_single", "alltoall_base", "c10d::alltoall_base_", "nccl:all_to_all", "SendRecv"
    ),
    "allreduce_coalesced": _Spelling(
        "all_reduce", "allreduce_coalesced", "c10d::allreduce_coalesced_", "nccl:allreduce_coalesced", "AllReduce_Sum"
    ),
    "allgather_into_tensor_coalesced": _Spelling(
        "all_gather_into_tensor",
        "allgather_into_tensor_coalesced",
        "c10d::allgather_into_tensor_coalesced_",
        "nccl:all_gather_into_tensor_coalesced",
        "AllGather",
    ),
    "reduce_scatter_tensor_coalesced": _Spelling(
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
        "c10d::reduce_scatter_tensor_coalesced_",
        "nccl:reduce_scatter_tensor_coalesced",
        "ReduceScatter_Sum",
    ),
}


def collective(
    group: str, operation: str, elements: int, dtype: str, role: str, dimension: Dimension, members: int
) -> Collective:
    """Describe a collective by the elements of its smaller side (gathers and scatters: one rank's shard)."""
    whole = elements * members
    gathers, scatters = "gather" in operation, "scatter" in operation
    in_elements = whole if scatters else elements
    out_elements = whole if gathers else elements
    nbytes = BYTES_OF[dtype] * max(in_elements, out_elements)
    return Collective(group, operation, in_elements, out_elements, dtype, nbytes, role, dimension)


def kernel_name(settings: JobSettings, operation: str, dtype: str) -> str:
    """The NCCL kernel of an operation, as its era spells it."""
    stem = _SPELLINGS[operation].kernel if operation in _SPELLINGS else "SendRecv"
    if settings.era is Era.TORCH_2_3:
        base, _, reduction = stem.partition("_")
        if base == "SendRecv":
            return "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
        typed = f"{reduction or 'Sum'}_{_LONG_TYPE[dtype] if reduction else 'int8_t'}"
        return f"ncclKernel_{base}_RING_LL_{typed}(ncclDevComm*, unsigned long, ncclWork*)"
    arguments = "ncclDevKernelArgsStorage<4096ul>"
    if settings.era is Era.TORCH_2_4:
        arguments = "ncclDevComm*, unsigned long, ncclWork*"
    if stem == "SendRecv":
        return f"ncclDevKernel_SendRecv({arguments})"
    typed = f"{stem}_{_SHORT_TYPE[dtype]}" if stem.endswith("Sum") else stem
    return f"ncclDevKernel_{typed}_RING_LL({arguments})"


def communicate(
    settings: JobSettings,
    what: Collective,
    *,
    asynchronous: bool = False,
    records: str = "",
    current: str = "compute",
    members: int = 2,
) -> Row:
    """The call chain of a collective down to its launch.

    Args:
        asynchronous: it runs on the group's stream and nothing waits until somebody asks for ``records``.
        current: the stream that is current at the call; synchronous collectives run on it since torch 2.7.
        members: size of the group; a group of one launches nothing.
    """
    spelling = _SPELLINGS[what.operation]
    own_stream = asynchronous or settings.era is not Era.TORCH_2_7
    launched: tuple[Node, ...] = (call("cudaStreamIsCapturing"), call("cudaEventRecord"))
    if members > 1:
        kernel = Kernel(
            kernel_name(settings, what.operation, what.dtype),
            Kind.COMMUNICATION,
            stream=f"nccl:{what.group}" if own_stream else current,
            after=(current,) if own_stream else (),
            blocks=current if own_stream and not asynchronous else "",
            records=records,
            call="cudaLaunchKernelExC",
            collective=what,
            grid=24,
            block=544,
            registers=96,
            shared_memory=83_000,
        )
        launched = (*launched, kernel)
    facts = Row(RowKind.OPERATOR, "record_param_comms", (annotation(spelling.annotation, *launched),), facts=what)
    bound = builtin(f"method {spelling.bound} of {_PYBIND}", op(spelling.operator, facts))
    if what.operation.endswith("_coalesced"):
        return py(
            "contextlib.py",
            "__exit__",
            builtin("function next", py("torch/distributed/distributed_c10d.py", "_coalescing_manager", bound)),
        )
    inner = py("torch/distributed/distributed_c10d.py", spelling.function, bound)
    return py("torch/distributed/c10d_logger.py", "wrapper", inner)


def unrecorded(
    what: Collective, name: str, stream: str, *, current: str = "compute", waits: bool = True, records: str = ""
) -> Kernel:
    """Communication without NCCL: a kernel of its own library, which no operator describes.

    Args:
        stream: on which it runs, after the present work of ``current``, and before its next where that ``waits``.
    """
    other = stream != current
    return Kernel(
        name,
        Kind.COMMUNICATION,
        stream=stream,
        after=(current,) if other else (),
        blocks=current if waits and other else "",
        records=records,
        call="cudaLaunchKernelExC",
        collective=what,
        grid=20,
        block=768,
        registers=64,
    )


def message(group: str, sends: bool, peer: int, elements: int, role: str, dimension: Dimension) -> Collective:
    """One bfloat16 message to or from a neighbour in the group's ring."""
    operation = "send" if sends else "recv"
    return Collective(group, operation, elements, elements, "BFloat16", 2 * elements, role, dimension, peer=peer)


def batched_exchange(settings: JobSettings, messages: tuple[tuple[Collective, str], ...]) -> Row:
    """``batch_isend_irecv``: one SendRecv kernel, whose row carries no facts of its own.

    Args:
        messages: what is sent and received, each with its channel (messages of one channel keep their order).
    """
    kernel = _message_kernel(settings, messages, "nccl:pp", blocks="compute")
    ops = [_point_to_point(what) for what, _ in messages]
    file = "torch/distributed/distributed_c10d.py"
    return py(file, "batch_isend_irecv", *ops, annotation("nccl:coalesced", kernel))


def single_exchange(settings: JobSettings, what: Collective, channel: str, stream: str) -> Row:
    """One unbatched ``isend`` or ``irecv``: a kernel of its own, with its facts, that nothing waits for yet."""
    return _point_to_point(what, _message_kernel(settings, ((what, channel),), stream, blocks=""))


def _message_kernel(
    settings: JobSettings, messages: tuple[tuple[Collective, str], ...], stream: str, blocks: str
) -> Kernel:
    first = messages[0][0]
    return Kernel(
        kernel_name(settings, "sendrecv", "BFloat16"),
        Kind.COMMUNICATION,
        stream=stream,
        after=("compute",),
        blocks=blocks,
        call="cudaLaunchKernelExC",
        collective=first if len(messages) == 1 and not blocks else replace(first, operation="coalesced", peer=0),
        messages=tuple(Message(w.operation == "send", w.peer, w.nbytes, channel) for w, channel in messages),
        grid=8,
        block=544,
        registers=96,
        shared_memory=83_000,
    )


def _point_to_point(what: Collective, *launched: Node) -> Row:
    inner = (annotation(f"nccl:{what.operation}", *launched),) if launched else ()
    facts = Row(RowKind.OPERATOR, "record_param_comms", inner, facts=what)
    bound = builtin(
        f"method {what.operation} of {_PYBIND}", op("c10d::send" if what.operation == "send" else "c10d::recv_", facts)
    )
    return py("torch/distributed/distributed_c10d.py", "isend" if what.operation == "send" else "irecv", bound)
