"""Training that no Megatron schedule drives, simulated: one GPU, DDP, FSDP 1 and 2, ZeRO stage 3, with the truth.

All ranks run one program, in which each layer is a product and its two gradients. What the frameworks annotate, in
which operator they communicate and over which group is as they do it; nothing of it is read from our rules.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_MAIN, _AUTOGRAD, _PROCESS = 100, 200, 4242
_COMPUTE_STREAM, _COMMUNICATION_STREAM = 7, 20
_LATENCY_NS, _LAUNCH_NS = 3_500, 4_000
_SLOW = 1.5
_BASE_NS = 1_760_000_000_000_000_000
_PRODUCT, _ELEMENTWISE = "nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "void at::native::vectorized_elementwise_kernel<4>"


class Framework(StrEnum):
    """What trains."""

    SINGLE = "single"
    DDP = "ddp"
    FSDP = "fsdp"
    FSDP2 = "fsdp2"
    ZERO = "zero"


@dataclass(frozen=True, slots=True)
class FrameworkSettings:
    """A job.

    Attributes:
        evaluation: the last step runs no backward pass and no optimizer.
        slow_rank: its computation takes half as long again.
    """

    framework: Framework
    ranks: int = 2
    layers: int = 4
    steps: int = 2
    evaluation: bool = False
    slow_rank: int | None = None
    seed: int = 1


@dataclass(slots=True)
class _Rank:
    rank: int
    noise: random.Random
    now_ns: int = 0
    free_ns: dict[int, int] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    truth: list[dict[str, Any]] = field(default_factory=list)

    def spend(self, duration_ns: int) -> None:
        self.now_ns += int(duration_ns * self.noise.uniform(0.9, 1.2))

    def row(self, category: str, name: str, start_ns: int, end_ns: int, process: int, thread: int, **args: Any) -> None:
        times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, **times, "args": args}
        )


class _Job:
    """The ranks of a job, which run one program side by side."""

    def __init__(self, settings: FrameworkSettings) -> None:
        self.settings = settings
        self.ranks = [_Rank(rank, random.Random(settings.seed * 1009 + rank)) for rank in range(settings.ranks)]
        self.thread = _MAIN
        self.phase = "other"
        self._correlation = 1000
        self._sequence = 0
        self._communications = 0
        self.group = ("1", "mesh_fsdp") if settings.framework is Framework.FSDP2 else ("0", "default_pg")

    @contextmanager
    def host(self, category: str, name: str, **args: Any) -> Iterator[None]:
        """A row of the host around what runs in it."""
        starts = [rank.now_ns for rank in self.ranks]
        for rank in self.ranks:
            rank.spend(1_500)
        yield
        for rank, start in zip(self.ranks, starts, strict=True):
            rank.spend(1_500)
            rank.row(category, name, start, rank.now_ns, _PROCESS, self.thread, **args)
            rank.spend(500)

    def annotation(self, name: str) -> Any:
        return self.host("user_annotation", name)

    def operator(self, name: str, **args: Any) -> Any:
        return self.host("cpu_op", name, **args)

    def kernel(self, name: str, duration_ns: int, stream: int = _COMPUTE_STREAM) -> None:
        """A kernel of computation, which takes each rank about as long."""
        self._correlation += 1
        for rank in self.ranks:
            start = self._launched(rank, stream)
            slowness = _SLOW if rank.rank == self.settings.slow_rank else 1
            end = start + int(duration_ns * rank.noise.uniform(0.95, 1.05) * slowness)
            rank.free_ns[stream] = end
            self._add(rank, name, start, end, stream, "computation", None, {})

    def collective(
        self, called: str, operator: str, annotated: str, kernel: str, elements: int, *, of_gradients: bool = False
    ) -> None:
        """A collective of all ranks, which transfers from the last arrival on.

        Computation that is launched later waits for it. Gradients are sent when the computation before is done, and
        only the optimizer waits for them; all else is sent beside that computation.
        """
        self._correlation += 1
        self._communications += 1
        with self.operator(operator), self.annotation(annotated), self.operator("record_param_comms"):
            arrivals = []
            for rank in self.ranks:
                before = rank.free_ns.get(_COMPUTE_STREAM, 0) if of_gradients else 0
                arrivals.append(max(self._launched(rank, _COMMUNICATION_STREAM), before))
        end = max(arrivals) + 40_000 + elements // 100
        name, description = self.group
        facts = {
            "Collective name": called,
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": len(self.ranks),
            "dtype": "BFloat16",
            "Process Group Name": name,
            "Process Group Description": description,
            "Process Group Ranks": str(list(range(len(self.ranks)))),
        }
        for rank, start in zip(self.ranks, arrivals, strict=True):
            rank.free_ns[_COMMUNICATION_STREAM] = end
            if not of_gradients:
                rank.free_ns[_COMPUTE_STREAM] = max(end, rank.free_ns.get(_COMPUTE_STREAM, 0))
            self._add(rank, kernel, start, end, _COMMUNICATION_STREAM, "communication", "dp", facts)

    def wait_for_communication(self) -> None:
        """Computation that is launched later waits for all that is sent."""
        for rank in self.ranks:
            rank.free_ns[_COMPUTE_STREAM] = max(rank.free_ns.values(), default=0)

    def read_the_loss(self) -> None:
        """The host waits for its GPU."""
        self._correlation += 1
        with self.operator("aten::item"), self.operator("aten::_local_scalar_dense"):
            for rank in self.ranks:
                start = rank.now_ns
                rank.now_ns = max(start + _LAUNCH_NS, *rank.free_ns.values())
                called = {"correlation": self._correlation}
                rank.row("cuda_runtime", "cudaStreamSynchronize", start, rank.now_ns, _PROCESS, self.thread, **called)

    def number(self) -> int:
        """The next number of autograd's counter."""
        self._sequence += 1
        return self._sequence

    def _launched(self, rank: _Rank, stream: int) -> int:
        start = rank.now_ns
        rank.spend(_LAUNCH_NS)
        rank.row(
            "cuda_runtime", "cudaLaunchKernel", start, rank.now_ns, _PROCESS, self.thread, correlation=self._correlation
        )
        return max(start + _LATENCY_NS, rank.free_ns.get(stream, 0))

    def _add(
        self, rank: _Rank, name: str, start: int, end: int, stream: int, kind: str, dimension: str | None, facts: Any
    ) -> None:
        args = {"device": rank.rank, "stream": stream, "correlation": self._correlation, **facts}
        rank.row("kernel", name, start, end, rank.rank, stream, **args)
        rank.truth.append(
            {
                "correlation": self._correlation,
                "name": name,
                "kind": kind,
                "phase": self.phase,
                "dimension": dimension,
                "start_ns": _BASE_NS + start,
                "duration_ns": end - start,
                "match": self._communications if dimension else None,
            }
        )


def simulate_framework(out: Path, settings: FrameworkSettings) -> Path:
    """Write a trace per rank and, under truth/, a table of its kernels; returns ``out``.

    Table: correlation, name, kind, phase, dimension, start_ns, duration_ns, and match, equal on all members of one
    communication.
    """
    job = _Job(settings)
    for step in range(1, settings.steps + 1):
        with job.annotation(f"ProfilerStep#{step}"):
            _step(job, evaluation=settings.evaluation and step == settings.steps)
            job.read_the_loss()
    (out / "truth").mkdir(parents=True)
    for rank in job.ranks:
        _write(out, job, rank)
    return out


def _write(out: Path, job: _Job, rank: _Rank) -> None:
    world = len(job.ranks)
    everyone = {"pg_size": world, "ranks": list(range(world))}
    groups = [{"pg_name": name, "pg_desc": text, **everyone} for name, text in {("0", "default_pg"), job.group}]
    groups.sort(key=lambda group: str(group["pg_name"]))
    info = {"backend": "nccl", "rank": rank.rank, "world_size": world, "pg_count": len(groups), "pg_config": groups}
    names = [
        {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": thread, "args": {"name": name}}
        for thread, name in ((_MAIN, "pt_main_thread"), (_AUTOGRAD, "pt_autograd_0"))
    ]
    content = {
        "schemaVersion": 1,
        "distributedInfo": info,
        "baseTimeNanoseconds": _BASE_NS,
        "traceEvents": [*names, *rank.events],
    }
    text = json.dumps(content).encode()
    (out / f"rank_{rank.rank:04d}.pt.trace.json.gz").write_bytes(gzip.compress(text, 6, mtime=0))
    pq.write_table(pa.Table.from_pylist(rank.truth), out / "truth" / f"rank_{rank.rank:04d}.parquet")


def _step(job: _Job, *, evaluation: bool) -> None:
    framework = job.settings.framework
    if not evaluation:
        job.phase = "other"
        with job.annotation("Optimizer.zero_grad#AdamW.zero_grad"), job.operator("aten::zero_"):
            job.kernel(_ELEMENTWISE, 4_000)
    job.phase = "forward"
    around = {Framework.DDP: "DistributedDataParallel.forward", Framework.FSDP: "FullyShardedDataParallel.forward"}
    sequences = []
    if framework in around:
        with job.annotation(around[framework]):
            sequences = _forward(job)
    else:
        sequences = _forward(job)
    if evaluation:
        return
    job.phase = "backward"
    with job.operator("aten::ones_like"):
        job.kernel(_ELEMENTWISE, 2_000)
    job.thread = _AUTOGRAD
    _backward(job, sequences)
    job.wait_for_communication()
    job.thread, job.phase = _MAIN, "optimizer"
    with job.annotation("Optimizer.step#AdamW.step"):
        for _ in range(2):
            with job.operator("aten::_fused_adamw_"):
                job.kernel("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>", 60_000)


def _forward(job: _Job) -> list[int]:
    framework = job.settings.framework
    if framework is Framework.DDP:
        job.collective("broadcast", "c10d::broadcast_", "nccl:broadcast", "ncclDevKernel_Broadcast_RING_LL", 2_000)
    sequences = []
    for layer in range(job.settings.layers):
        if framework is Framework.FSDP:
            with job.annotation("FullyShardedDataParallel._pre_forward"):
                _gather(job)
        elif framework is Framework.FSDP2:
            with job.annotation(f"FSDP::pre_forward (layers.{layer})"):
                _gather_of_fsdp2(job, layer)
        elif framework is Framework.ZERO:
            _gather(job)
        sequences.append(job.number())
        with job.operator("aten::linear"), job.operator("aten::addmm", **{"Sequence number": sequences[-1]}):
            job.kernel(_PRODUCT, 150_000)
        if framework is Framework.FSDP2:
            with job.annotation(f"FSDP::post_forward (layers.{layer})"):
                pass
    return sequences


def _backward(job: _Job, sequences: list[int]) -> None:
    framework = job.settings.framework
    node = "autograd::engine::evaluate_function: "
    for layer, sequence in reversed(list(enumerate(sequences))):
        numbered = {"Sequence number": sequence, "Fwd thread id": 1}
        if framework is Framework.FSDP:
            with job.annotation("FullyShardedDataParallel._pre_backward_hook"):
                _gather(job)
        elif framework is Framework.FSDP2:
            with job.annotation(f"FSDP::pre_backward (layers.{layer})"):
                _gather_of_fsdp2(job, layer)
        with job.operator(f"{node}AddmmBackward0", **numbered):
            if framework is Framework.ZERO:
                _gather(job)
            with job.operator("AddmmBackward0", **numbered), job.operator("aten::mm"):
                job.kernel(_PRODUCT, 140_000)
                job.kernel(_PRODUCT, 145_000)
        with job.operator(f"{node}torch::autograd::AccumulateGrad"):
            with job.operator("torch::autograd::AccumulateGrad"), job.operator("aten::add_"):
                job.kernel(_ELEMENTWISE, 6_000)
            if framework is Framework.DDP:
                job.collective(
                    "allreduce",
                    "c10d::allreduce_",
                    "nccl:all_reduce",
                    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                    10**6,
                    of_gradients=True,
                )
            elif framework is Framework.ZERO:
                _scatter(job)
        if framework is Framework.FSDP:
            with job.annotation("FullyShardedDataParallel._post_backward_hook"):
                _scatter(job)
        elif framework is Framework.FSDP2:
            with job.operator(f"{node}RegisterPostBackwardFunctionBackward"):
                with job.annotation(f"FSDP::post_backward_reshard (layers.{layer})"):
                    pass
                with job.annotation(f"FSDP::post_backward_reduce (layers.{layer})"):
                    with job.operator("fsdp::chunk_cat"):
                        job.kernel("void at::native::chunk_cat_cuda_kernel<float>", 5_000)
                    _scatter(job)


def _gather(job: _Job) -> None:
    job.collective(
        "_allgather_base", "c10d::_allgather_base_", "nccl:_all_gather_base", "ncclDevKernel_AllGather_RING_LL", 10**6
    )


def _gather_of_fsdp2(job: _Job, layer: int) -> None:
    with job.annotation(f"FSDP::all_gather (layers.{layer})"):
        with job.operator("fsdp::all_gather_copy_in"):
            job.kernel("void at::native::batched_copy_kernel<float>", 5_000)
        _gather(job)
    with job.annotation(f"FSDP::all_gather_copy_out (layers.{layer})"), job.operator("fsdp::split_with_sizes_copy"):
        job.kernel("void at::native::split_with_sizes_copy_out_kernel", 5_000)


def _scatter(job: _Job) -> None:
    job.collective(
        "_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
        10**6,
        of_gradients=True,
    )
