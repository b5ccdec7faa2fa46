"""How long things take: the stated model from tokens, hidden size, layers, FLOP rate and bandwidths.

- A matrix product takes ``2 m n k / (peak x efficiency)``; the efficiency grows with the smallest dimension.
- Attention counts ``4 s^2 h / 2`` FLOP forward (causal) and 2.5 times that backward.
- An elementwise kernel moves its bytes at a share of the memory bandwidth.
- A ring collective of ``n`` ranks moves ``2 (n-1)/n`` (all-reduce) or ``(n-1)/n`` (others) of its bytes over the
  slowest link of its members, plus a latency that grows with ``n``.
All results are integer nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.simulate.settings import JobSettings

LAUNCH_FLOOR_NS = 1_800


@dataclass(frozen=True, slots=True)
class Hardware:
    """An H100: dense bfloat16 FLOP/s; bytes/s of its memory and of its links inside and between nodes."""

    flops: float = 989e12
    memory_bandwidth: float = 3.35e12
    link_inside: float = 360e9
    link_between: float = 44e9
    latency_inside_ns: int = 9_000
    latency_between_ns: int = 22_000


H100 = Hardware()


def matmul_ns(m: float, n: float, k: float) -> int:
    """Duration of an ``m x k`` by ``k x n`` product."""
    efficiency = 0.68 * min(1.0, (min(m, n, k) / 4096) ** 0.18)
    return LAUNCH_FLOOR_NS + int(2e9 * m * n * k / (H100.flops * efficiency))


def attention_ns(tokens: float, context: float, width: float, backward: bool) -> int:
    """Duration of causal flash attention of ``tokens`` queries against ``context`` keys, ``width`` = heads x size."""
    flops = 2 * tokens * context * width * (2.5 if backward else 1.0)
    return LAUNCH_FLOOR_NS + int(1e9 * flops / (H100.flops * (0.42 if backward else 0.5)))


def elementwise_ns(nbytes: float) -> int:
    """Duration of a kernel that reads and writes ``nbytes`` altogether."""
    return LAUNCH_FLOOR_NS + int(1e9 * nbytes / (H100.memory_bandwidth * 0.78))


@dataclass(frozen=True, slots=True)
class Link:
    """The slowest link among some ranks: bytes/s and latency in ns."""

    bandwidth: float
    latency_ns: int

    @classmethod
    def between(cls, ranks: tuple[int, ...], settings: JobSettings) -> Link:
        """The link that a ring over these ranks is bound by; faults of links act here."""
        nodes = {rank // settings.node_size for rank in ranks}
        bandwidth = H100.link_inside if len(nodes) == 1 else H100.link_between
        latency = H100.latency_inside_ns if len(nodes) == 1 else H100.latency_between_ns
        if settings.faults.slow_link in ranks and len(ranks) > 1:
            bandwidth /= settings.faults.slow_link_factor
        if settings.faults.slow_nic in ranks and len(nodes) > 1:
            bandwidth /= settings.faults.slow_nic_factor
        return cls(bandwidth, latency)

    def collective_ns(self, operation: str, nbytes: float, members: int) -> int:
        """Transfer time of a collective; ``nbytes`` is the larger of its input and output on one rank."""
        if members == 1:
            return 2_600
        rounds = 2.0 if operation.startswith("allreduce") else 1.0
        moved = rounds * nbytes * (members - 1) / members
        return self.latency_ns + 1_400 * members + int(1e9 * moved / self.bandwidth)

    def message_ns(self, nbytes: float) -> int:
        """Transfer time of one point-to-point message."""
        return self.latency_ns + int(1e9 * nbytes / self.bandwidth)

    @property
    def crosses_nodes(self) -> bool:
        """Whether it is one between nodes."""
        return self.latency_ns == H100.latency_between_ns


def buffering_ns(nbytes: float) -> int:
    """How long NCCL takes to copy a message into its buffers, as if these were large enough for any."""
    return 20_000 + int(1e9 * nbytes / _BUFFERING)


_BUFFERING = 200e9
"""Bytes per second of that copy."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one rank holds of one layer: sizes from which every duration and message follows.

    Attributes:
        tokens: tokens of a micro-batch on this rank before tensor parallelism splits them.
        shard: tokens of its sequence-parallel shard.
        width: hidden size; inner: its shard of the attention heads; feed_forward: its shard of the MLP.
        element: bytes of one activation.
    """

    tokens: int
    shard: int
    context: int
    width: int
    inner: int
    feed_forward: int
    element: int = 2

    @classmethod
    def of(cls, settings: JobSettings) -> Shape:
        """The shapes of a job."""
        tokens = settings.sequence * settings.batch // settings.cp
        shard = tokens // settings.tp if settings.sequence_parallel else tokens
        inner, feed_forward = settings.hidden // settings.tp, settings.feed_forward // settings.tp
        return cls(tokens, shard, settings.sequence, settings.hidden, inner, feed_forward)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one dense layer on this rank."""
        return self.width * (4 * self.inner + 2 * self.feed_forward) + 4 * self.width


def routed_tokens(settings: JobSettings) -> int:
    """Token copies that one rank dispatches in one mixture-of-experts layer."""
    tokens = settings.sequence * settings.batch // settings.cp
    shard = tokens // settings.tp if settings.sequence_parallel else tokens
    return shard * settings.top_k


def routing(settings: JobSettings, key: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Tokens from each member (rows) to each member (columns) of an expert-parallel group.

    Args:
        key: what decides the router's choice: step, micro-batch, layer, first rank of the group.
    """
    if settings.balanced_router:
        return np.full((settings.ep, settings.ep), routed_tokens(settings) // settings.ep)
    generator = np.random.default_rng((settings.seed, 77, *key))
    shares = generator.dirichlet(np.full(settings.ep, 60.0))
    if settings.faults.expert_imbalance:
        shares = shares * (1 - settings.faults.expert_imbalance)
        shares[0] += settings.faults.expert_imbalance
    return generator.multinomial(routed_tokens(settings), shares / shares.sum(), size=settings.ep).astype(np.int64)


class Routes:
    """The router's choices of a step, computed when first asked for."""

    def __init__(self, settings: JobSettings) -> None:
        self.settings = settings
        self._found: dict[tuple[int, ...], npt.NDArray[np.int64]] = {}

    def route(self, step: int, microbatch: int, layer: int, group: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Tokens from member to member of an expert-parallel group in one layer."""
        key = (step, microbatch, layer, group[0])
        if key not in self._found:
            self._found[key] = routing(self.settings, key)
        return self._found[key]

    def received_share(self, step: int, microbatch: int, layer: int, group: tuple[int, ...], rank: int) -> float:
        """Tokens that a rank's experts receive, over the balanced number."""
        received = self.route(step, microbatch, layer, group)[:, group.index(rank)].sum()
        return float(received) / routed_tokens(self.settings)

    def forget(self) -> None:
        """Drop the choices of a finished step."""
        self._found.clear()
