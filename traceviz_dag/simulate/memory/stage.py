"""The GPU memory of one pipeline stage of a Megatron job, step by step, with the truth of every byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from traceviz_dag.simulate.memory.allocator import Allocator, Frames, OutOfMemoryError
from traceviz_dag.vocabulary import MemoryCategory, Phase

_SITES = {
    "parameter": ("__init__", "megatron/core/transformer/transformer_layer.py", 250),
    "grad_buffer": ("_allocate_grad_buffer", "megatron/core/distributed/param_and_grad_buffer.py", 610),
    "qkv": ("forward", "megatron/core/transformer/attention.py", 101),
    "mlp": ("forward", "megatron/core/transformer/mlp.py", 88),
    "rope": ("forward", "megatron/core/models/common/embeddings/rope_utils.py", 77),
    "receive": ("_communicate", "megatron/core/pipeline_parallel/p2p_communication.py", 310),
    "batch": ("get_batch", "pretrain_gpt.py", 60),
    "optimizer": ("step", "megatron/core/optimizer/distrib_optimizer.py", 555),
    "leak": ("forward", "user/metrics.py", 42),
    "forward_step": ("forward_step", "megatron/core/pipeline_parallel/schedules.py", 320),
}
_UNWINDER = (
    {"name": "torch::unwind::unwind()", "filename": "??", "line": 0},
    {"name": "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc", "filename": "??", "line": 0},
    {"name": "torch::autograd::VariableType::(anonymous namespace)::mul_Tensor", "filename": "??", "line": 0},
)
_ENGINE = (
    {"name": "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "filename": "??", "line": 0},
    {"name": "torch::autograd::Engine::evaluate_function(torch::autograd::Node*)", "filename": "??", "line": 0},
)


@dataclass(frozen=True, slots=True)
class Work:
    """One forward or backward step of a micro-batch, or the optimizer's step; times are ns of the epoch."""

    phase: Phase
    chunk: int = 0
    microbatch: int = 0
    start_ns: int = 0
    end_ns: int = 0


@dataclass(frozen=True, slots=True)
class StageSettings:
    """One stage of the model, and what its recording is like.

    Attributes:
        layers: of one chunk.
        hidden, sequence, batch, heads, tensor: sizes of the model; tensor is the tensor-parallel size, with sequence
            parallelism.
        stored_scores: whether the attention's scores are kept for the backward pass.
        late: the recording begins behind the first step: what was allocated before has no frames and no event.
        cpp: stacks have frames of C++, too; without them the backward pass has no frames at all.
        streams: receives use a stream of their own, and their frees are pending until the step after.
        leak_bytes: what each forward step keeps for ever.
    """

    layers: int = 2
    hidden: int = 512
    sequence: int = 1024
    batch: int = 1
    heads: int = 8
    tensor: int = 1
    stored_scores: bool = False
    recompute: bool = False
    late: bool = False
    cpp: bool = True
    streams: bool = False
    leak_bytes: int = 0

    @property
    def layer_bytes(self) -> int:
        """Activation bytes that one layer keeps of one micro-batch, with two bytes a number, dense model.

        s·b·h·(34 + 5·a·s/h)/t with stored scores, 34·s·b·h/t without, 2·s·b·h/t with full recomputation
        (Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022).
        """
        unit = self.sequence * self.batch * self.hidden // self.tensor
        scores = 5 * self.heads * self.sequence * self.sequence * self.batch // self.tensor
        return 2 * unit if self.recompute else 34 * unit + (scores if self.stored_scores else 0)


@dataclass(slots=True)
class MemoryTruth:
    """What is requested, by category, and when it was most.

    Attributes:
        peak: category → bytes when most was requested since the recording began.
        in_flight: the most chunks of micro-batches at once whose activations were kept.
        at_ends: bytes requested at the end of each step.
    """

    peak: Counter[MemoryCategory] = field(default_factory=Counter)
    in_flight: int = 0
    at_ends: list[int] = field(default_factory=list)
    out_of_memory: bool = False

    @property
    def peak_bytes(self) -> int:
        """Bytes requested then."""
        return sum(self.peak.values())


class Stage:
    """Runs steps on an allocator, and keeps its own account of them.

    Args:
        layers: of each model chunk on this stage; one chunk with the layers of the settings where it is left out.
    """

    def __init__(self, settings: StageSettings, allocator: Allocator, layers: Sequence[int] = ()) -> None:
        self.settings, self.allocator, self.layers = settings, allocator, tuple(layers) or (settings.layers,)
        self.truth = MemoryTruth()
        self._held: Counter[MemoryCategory] = Counter()
        self._of: dict[int, tuple[MemoryCategory, int]] = {}
        self._kept: dict[tuple[int, int], list[int]] = {}
        self._pending: list[int] = []
        self._has_state = False
        allocator.recording = not settings.late
        self._build()

    def step(self, number: int, work: Iterable[Work]) -> None:
        """One training step: the work in its order, then the optimizer's."""
        begin = f"ProfilerStep#{number}"
        self.allocator.annotate(begin, "START")
        for one in work:
            self._until(one.start_ns)
            if one.phase == Phase.FORWARD:
                self._forward(one)
            elif one.phase == Phase.BACKWARD:
                self._backward(one)
            else:
                self._optimize()
            self._until(one.end_ns)
        self.allocator.annotate(begin, "END")
        self.truth.at_ends.append(sum(self._held.values()))
        if not self.allocator.recording:
            self.allocator.recording = True
            self.truth.peak = Counter(self._held)
        self.allocator.now_us += 100

    def _build(self) -> None:
        hidden = self.settings.hidden
        sizes = (6 * hidden * hidden, 2 * hidden * hidden, 8 * hidden * hidden, 8 * hidden * hidden, 2 * hidden)
        for _ in range(sum(self.layers)):
            for size in sizes:
                self._take(size // self.settings.tensor, MemoryCategory.PARAMETER, "parameter")
        self.parameters = sum(self.layers) * sum(size // self.settings.tensor for size in sizes)
        self._take(2 * self.parameters, MemoryCategory.GRADIENT, "grad_buffer")

    def _forward(self, one: Work) -> None:
        settings = self.settings
        unit = settings.sequence * settings.batch * settings.hidden // settings.tensor
        self._take(
            8 * settings.sequence * settings.batch, MemoryCategory.INPUT, "batch", key := (one.chunk, one.microbatch)
        )
        stream = 7 if settings.streams else 0
        received = self._take(2 * unit, MemoryCategory.COMMUNICATION_BUFFER, "receive", stream=stream)
        for _ in range(self.layers[one.chunk]):
            first = settings.layer_bytes * 2 // 5
            for size, site in ((first, "qkv"), (settings.layer_bytes - first, "mlp")):
                self._take(size, MemoryCategory.ACTIVATION, site, key)
                self._give(self._take(unit // 8 + 100, MemoryCategory.TEMPORARY, "rope"), _stack("rope", settings.cpp))
        if settings.leak_bytes:
            self._take(settings.leak_bytes, MemoryCategory.ACTIVATION, "leak")
        self._give(received, _stack("receive", settings.cpp), pending=settings.streams)
        self.truth.in_flight = max(self.truth.in_flight, len(self._kept))

    def _backward(self, one: Work) -> None:
        settings = self.settings
        frames: Frames = (*_UNWINDER, *_ENGINE) if settings.cpp else ()
        unit = settings.sequence * settings.batch * settings.hidden // settings.tensor
        self._complete()
        for address in reversed(self._kept.pop((one.chunk, one.microbatch))):
            gradient = self._take(2 * unit, MemoryCategory.TEMPORARY, frames=frames)
            self._give(address, frames)
            self._give(gradient, frames)

    def _optimize(self) -> None:
        self._complete()
        self.allocator.annotate("Optimizer.step#FusedAdam.step", "START")
        if not self._has_state:
            for _ in range(2):
                self._take(2 * self.parameters, MemoryCategory.OPTIMIZER_STATE, "optimizer")
            self._has_state = True
        self._give(
            self._take(self.parameters // 4 + 4, MemoryCategory.TEMPORARY, "optimizer"),
            _stack("optimizer", self.settings.cpp),
        )
        self.allocator.annotate("Optimizer.step#FusedAdam.step", "END")

    def _take(
        self,
        size: int,
        category: MemoryCategory,
        site: str = "",
        key: tuple[int, int] | None = None,
        *,
        frames: Frames | None = None,
        stream: int = 0,
    ) -> int:
        if frames is None:
            frames = _stack(site, self.settings.cpp)
        try:
            address = self.allocator.allocate(size, frames, stream)
        except OutOfMemoryError:
            self.truth.out_of_memory = True
            raise
        self._of[address] = (category, size)
        self._held[category] += size
        if key is not None:
            self._kept.setdefault(key, []).append(address)
        if sum(self._held.values()) > self.truth.peak_bytes:
            self.truth.peak = Counter(self._held)
        return address

    def _give(self, address: int, frames: Frames, *, pending: bool = False) -> None:
        self.allocator.free(address, frames, pending=pending)
        if pending:
            self._pending.append(address)
        else:
            self._forget(address)

    def _complete(self) -> None:
        for address in self._pending:
            self.allocator.complete(address, ())
            self._forget(address)
        self._pending.clear()

    def _forget(self, address: int) -> None:
        category, size = self._of.pop(address)
        self._held[category] -= size

    def _until(self, time_ns: int) -> None:
        self.allocator.now_us = max(self.allocator.now_us, time_ns // 1000)


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> Sequence[Work]:
    """The order of plain 1F1B on a stage, then the optimizer."""
    warmup = min(stages - 1 - stage, microbatches)
    order = [Work(Phase.FORWARD, 0, number) for number in range(warmup)]
    for number in range(microbatches - warmup):
        order += [Work(Phase.FORWARD, 0, warmup + number), Work(Phase.BACKWARD, 0, number)]
    order += [Work(Phase.BACKWARD, 0, number) for number in range(microbatches - warmup, microbatches)]
    return [*order, Work(Phase.OPTIMIZER)]


_STACKS: dict[tuple[str, bool], Frames] = {}


def _stack(site: str, cpp: bool) -> Frames:
    if (site, cpp) not in _STACKS:
        callers = ("forward_step",) if site in ("qkv", "mlp", "rope", "leak") else ()
        python: list[dict[str, Any]] = [
            {"name": name, "filename": f"/home/alice/Megatron-LM/{file}", "line": line}
            for name, file, line in (_SITES[one] for one in (site, *callers))
        ]
        _STACKS[site, cpp] = (*(_UNWINDER if cpp else ()), *python)
    return _STACKS[site, cpp]
