"""Who a rank is in its trace: process, threads, device, streams, clock, process groups."""

from __future__ import annotations

import json
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from traceviz_dag.arrays import Int64
from traceviz_dag.simulate.rank_grids import ProcessGroup, RankGrids
from traceviz_dag.simulate.settings import Era, JobSettings, Precision
from traceviz_dag.simulate.tree import Collective
from traceviz_dag.simulate.work.buckets import expert_hidden
from traceviz_dag.simulate.work.collectives import GROUP_OF, SIZED_CONTEXTS

BASE_NS = 1_767_225_600_000_000_000
"""Kineto's baseTimeNanoseconds; 2026-01-01."""
_START_NS = 3_456_789_012_345_678
"""When the true clock reads 0, relative to the base."""
_STREAMS = (
    "nccl:world",
    "nccl:tp",
    "nccl:dp_cp",
    "nccl:pp",
    "nccl:cp",
    "nccl:ep",
    "nccl:etp",
    "nccl:etp_ep",
    "nccl:edp",
    "nccl:embedding",
    "nccl:mp",
    "nccl:optimizer",
    "nccl:etp_ep_pp",
    "cp:send",
    "cp:recv",
    "pp:send:activation",
    "pp:recv:activation",
    "pp:send:gradient",
    "pp:recv:gradient",
    "communication",
    "userbuffers",
    "deepep",
    "nccl:amax",
    "fsdp:reduce",
    "offload:down",
    "offload:up",
    *(f"nccl:{key}" for key in (*SIZED_CONTEXTS, "dp")),
)


@dataclass(frozen=True, slots=True)
class Clock:
    """How a rank's clock differs from the true one: ``local = true + offset + true * drift``.

    Attributes:
        offset_ns: of its node and its GPU together; skew_ns: the GPU's part of it.
        drift_ppb: parts per billion.
    """

    node: int
    offset_ns: int
    skew_ns: int
    drift_ppb: int

    @classmethod
    def of(cls, settings: JobSettings, rank: int) -> Clock:
        """The clock of a rank: nodes differ by milliseconds, GPUs of one node by microseconds."""
        node = rank // settings.node_size
        of_node = np.random.default_rng((settings.seed, 31, node))
        of_rank = np.random.default_rng((settings.seed, 32, rank))
        reach = settings.clock_skew_ms * 1e6
        skew = int(of_rank.uniform(-5_000, 5_000)) if reach else 0
        offset = int(of_node.uniform(-reach, reach)) if reach else 0
        drift = int(of_node.uniform(-1, 1) * settings.clock_drift_ppm * 1_000)
        return cls(node, offset + skew, skew, drift)

    def local(self, true_ns: Int64) -> Int64:
        """Times on the rank's clock, relative to the trace's base."""
        return _START_NS + self.offset_ns + true_ns + true_ns * self.drift_ppb // 1_000_000_000


class Identity:
    """One rank's numbers and groups."""

    def __init__(self, settings: JobSettings, grids: RankGrids, rank: int) -> None:
        self.settings, self.rank = settings, rank
        self.groups = grids.of_rank(rank)
        self.clock = Clock.of(settings, rank)
        self.device = rank % settings.node_size
        self.process = 20_000 + crc32(f"{settings.seed}|{rank}".encode()) % 30_000
        self.main_thread = self.process
        self.autograd_thread = self.process + 2_117

    @property
    def base_ns(self) -> int:
        """What must be added to the trace's time stamps; the oldest era writes epoch times."""
        return 0 if self.settings.era is Era.TORCH_2_3 else BASE_NS

    @property
    def time_shift(self) -> int:
        """What the trace's time stamps hold beyond ``Clock.local``."""
        return BASE_NS if self.settings.era is Era.TORCH_2_3 else 0

    def on_trace(self, true_ns: Int64) -> Int64:
        """Times as the trace states them, ns."""
        return self.clock.local(true_ns) + self.time_shift

    def stream(self, name: str) -> int:
        """The number of a stream."""
        return 7 if name == "compute" else 20 + 4 * _STREAMS.index(name)

    def group(self, what: Collective) -> ProcessGroup:
        """The process group that a communication is recorded under."""
        return self.groups[GROUP_OF[what.via or what.group]]

    def neighbour(self, what: Collective) -> tuple[int, int]:
        """Sender and receiver of a message."""
        group = self.groups[GROUP_OF[what.group]]
        peer = group.ranks[(group.ranks.index(self.rank) + what.peer) % len(group.ranks)]
        return (self.rank, peer) if what.operation == "send" else (peer, self.rank)

    def description(self, group: ProcessGroup) -> str:
        """A group's description as this era writes it."""
        if group.description == "default_pg":
            return group.description
        return "undefined" if self.settings.era is Era.TORCH_2_3 else group.description

    def _host_clock(self) -> dict[str, int]:
        """Both clocks of the node at the trace's begin, read within 200 ns of each other as each rank does."""
        of_node = np.random.default_rng((self.settings.seed, 33, self.clock.node))
        of_rank = np.random.default_rng((self.settings.seed, 34, self.rank))
        runs = int(of_node.uniform(0.1, 30) * 86_400e9)
        utc = BASE_NS + _START_NS + self.clock.offset_ns - self.clock.skew_ns + int(of_rank.uniform(-200, 200))
        return {"monotonic_ns": runs, "utc_ns": utc, "uncertainty_ns": 200}

    def distributed_info(self) -> dict[str, object]:
        """The header's ``distributedInfo``."""
        groups = [
            {
                "pg_name": group.name,
                "pg_desc": self.description(group),
                "backend_config": "cpu:gloo" if group.description.endswith("_GLOO") else "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in self.groups.values()
        ]
        version = {Era.TORCH_2_3: "2.20.5", Era.TORCH_2_4: "2.21.5", Era.TORCH_2_7: "2.27.3"}[self.settings.era]
        return {
            "backend": "nccl",
            "rank": self.rank,
            "world_size": self.settings.world,
            "pg_count": len(groups),
            "pg_config": groups,
            "nccl_version": version,
        }

    def megatrons_arguments(self) -> dict[str, str]:
        """The sizes of the model as arguments of Megatron-LM, in the words in which the capture plugin keeps them.

        Whatever their activation is called, perceptrons are two products here, as without SwiGLU.
        """
        settings = self.settings
        given: dict[str, object] = {
            "micro_batch_size": settings.batch,
            "global_batch_size": settings.microbatches * settings.batch * settings.dp,
            "seq_length": settings.sequence,
            "num_layers": settings.layers,
            "hidden_size": settings.hidden,
            "num_attention_heads": settings.heads,
            "kv_channels": settings.hidden // settings.heads,
            "group_query_attention": False,
            "multi_latent_attention": False,
            "ffn_hidden_size": settings.feed_forward,
            "swiglu": False,
            "padded_vocab_size": settings.vocabulary,
            "bf16": True,
            "fp16": False,
        }
        if settings.precision is Precision.NVFP4:
            given["fp4"] = "e2m1"
        elif settings.precision is not Precision.BF16:
            given["fp8"] = "e4m3"
        if settings.hybrid_pattern:
            given["hybrid_layer_pattern"] = True
        if settings.dynamic_context:
            given |= {"dynamic_context_parallel": True, "variable_seq_lengths": True}
        if settings.faults.varying_sequences:
            given["variable_seq_lengths"] = True
        if settings.mtp_layers:
            given["mtp_num_layers"] = settings.mtp_layers
        if settings.expert_count:
            given |= {"num_experts": settings.expert_count, "moe_router_topk": settings.top_k, "moe_layer_freq": 1}
            given["moe_ffn_hidden_size"] = expert_hidden(settings) * settings.expert_tensor
        return {name: str(value) for name, value in given.items()}

    def header(self, trace_name: str) -> str:
        """Everything of the file that is before its events, and what follows them."""
        device = {
            "name": "NVIDIA H100 80GB HBM3",
            "totalGlobalMem": 84942979072,
            "computeMajor": 9,
            "computeMinor": 0,
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerMultiprocessor": 2048,
            "regsPerBlock": 65536,
            "warpSize": 32,
            "sharedMemPerBlock": 49152,
            "numSms": 132,
        }
        settings, edges = self.settings, self.settings.edges
        content: dict[str, object] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": index, **device} for index in range(settings.node_size)],
            "cupti_version": 26,
            "cuda_runtime_version": 12080,
            "cuda_driver_version": 12080,
            "trace_id": f"{crc32(trace_name.encode()):08X}{self.process:08X}",
        }
        if settings.stacks:
            content["with_stack"] = 1
        if settings.shapes:
            content["record_shapes"] = 1
        if edges.without_distributed_info != self.rank:
            info = self.distributed_info()
            if edges.duplicate_rank == self.rank:
                info["rank"] = (self.rank - 1) % settings.world
            content["distributedInfo"] = info
        capture: dict[str, object] = {"version": 1, "settings": self.megatrons_arguments()}
        if edges.captured_ranks is not None:
            capture["captured_ranks"] = edges.captured_ranks
        if settings.host_clocks:
            capture["clock"] = {"start": self._host_clock()}
        content["traceviz_capture"] = capture
        content["displayTimeUnit"] = "ms"
        if self.base_ns:
            content["baseTimeNanoseconds"] = self.base_ns
        lines = [f'  "{key}": {json.dumps(value)},\n' for key, value in content.items()]
        return "{\n" + "".join(lines) + '  "traceEvents": [\n'
