"""Everything a simulated training job depends on, checked in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from traceviz_dag.errors import UsageError
from traceviz_dag.spans import unspanned


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass."""

    NONE = "none"
    FULL = "full"
    SELECTIVE = "selective"
    OUTPUT_DISCARD = "output-discard"


class Era(StrEnum):
    """Which PyTorch wrote the trace; it decides names, facts and streams of communication."""

    TORCH_2_3 = "2.3"
    TORCH_2_4 = "2.4-2.6"
    TORCH_2_7 = "2.7+"


class Format(StrEnum):
    """What recorded the job: PyTorch's profiler, a trace a rank, or Nsight Systems, an export a node."""

    KINETO = "kineto"
    NSYS = "nsys"


class Layout(StrEnum):
    """How the trace files are named and what one file holds."""

    ITERATION = "iteration"
    TORCH_PROFILE = "torch_profile"
    TENSORBOARD = "tensorboard"


class Transformer(StrEnum):
    """Which implementation of the transformer layer the job uses: Megatron's own modules, or Transformer Engine."""

    LOCAL = "local"
    TRANSFORMER_ENGINE = "transformer-engine"


class Graphs(StrEnum):
    """What is replayed as one CUDA graph: nothing, each layer's passes, or the whole forward-backward pass."""

    NONE = "none"
    LAYER = "layer"
    ITERATION = "iteration"


class Dispatcher(StrEnum):
    """What carries tokens to experts: NCCL all-to-alls, or the kernels of DeepEP or of its branch HybridEP."""

    ALL_TO_ALL = "alltoall"
    DEEPEP = "deepep"
    HYBRIDEP = "hybridep"


class ContextExchange(StrEnum):
    """How context-parallel attention moves keys and values."""

    POINT_TO_POINT = "p2p"
    ALL_GATHER = "all-gather"


class Offload(StrEnum):
    """Which activations wait on the host for the backward pass: none, those of core attention (Megatron's fine-grained
    offloading of modules), or those of whole layers (Transformer Engine's)."""

    NONE = "none"
    MODULES = "modules"
    LAYERS = "layers"


class Precision(StrEnum):
    """Number format of the layers' products, with the recipe that scales 8-bit numbers."""

    BF16 = "bf16"
    FP8 = "fp8"
    FP8_CURRENT = "fp8-current"
    FP8_BLOCKWISE = "fp8-blockwise"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


OPTION: Final = "option"
"""Key of a field's metadata under which its :class:`Option` is."""

PARALLELISM, MODEL, OVERLAP, CAPTURE = "Parallelism", "Model and schedule", "Overlap", "Capture"
FAULTS, ODDITIES = "Faults", "Oddities of real files"


@dataclass(frozen=True, slots=True)
class Option:
    """How ``traceviz simulate`` offers a setting.

    Attributes:
        help: what it is, in a line.
        panel: group of options in which the help shows it.
        name: of the option with underscores; empty: the field's, without its unit.
    """

    help: str
    panel: str | None
    name: str


def option(default: Any, panel: str | None, help: str, *, name: str = "") -> Any:
    """A field that ``traceviz simulate`` offers as an option."""
    return field(default=default, metadata={OPTION: Option(help, panel, name)})


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults to inject, each with a culprit that the truth names; None or 0 switches a fault off.

    With the same seed all that a fault does not touch is the same without it: own durations of kernels, transfers, host
    work. ``work.faults.refuse_idle_faults`` refuses those that would change nothing.

    Attributes:
        slow_gpu: rank whose kernels take ``slow_gpu_factor`` times as long.
        slow_link: rank whose links carry ``1 / slow_link_factor`` of their bandwidth.
        data_stall: rank whose data loader stalls ``data_stall_ms`` before its first micro-batch, in each step.
        garbage_collection: rank whose Python pauses ``garbage_collection_ms`` in the middle of each step.
        expert_imbalance: share of all tokens that go to the experts of the first expert-parallel rank; 0 is balanced.
        bad_stage_split: layers moved from the other stages to the first.
        hidden_synchronisation: rank whose code waits for the GPU once in each forward step.
        pageable_copy: rank whose code copies a tensor from pageable memory in each forward step, and waits for it.
        graph_break: rank whose compiled code breaks off in each forward step, and goes on after ``graph_break_ms``.
        throttle: rank whose kernels take ``throttle_factor`` times as long where they start ``throttle_from_ms`` to
            ``throttle_to_ms`` after its host began the step.
        slow_group: rank whose tensor-parallel group is slow: kernels of all its members take ``slow_group_factor``
            times as long.
        slow_node, slow_stage: node, or pipeline stage, of which all GPUs are equally slow.
        slow_nic: rank whose every transfer between nodes goes at ``1 / slow_nic_factor`` of the bandwidth.
        slow_clock: rank whose products and attention take ``slow_clock_factor`` times as long, and no other kernels.
        slow_memory: rank whose memory-bound kernels take ``slow_memory_factor`` times as long, and no others.
        other_algorithm: rank that computes the gradients of weights by another kernel, which takes
            ``other_algorithm_factor`` times as long.
        varying_sequences: sequences of each micro-batch and data-parallel rank are up to this share shorter than the
            job's; messages between stages stay as long. That is uneven work, and nobody's fault.
        bursts: share of the time in which every transfer takes ``bursts_factor`` times as long, in bursts that come
            each ``bursts_every_ms``.
        loader_late: rank whose data loader comes ``loader_late_ms`` late with each micro-batch.
        tiny_kernels: rank whose code runs ``tiny_kernels_count`` tiny kernels, one by one, in each forward step;
            ``tiny_kernels_captured``: as one CUDA graph, which fixes this.
    """

    slow_gpu: int | None = option(None, FAULTS, "Rank with a slow GPU.")
    slow_gpu_factor: float = 1.4
    slow_link: int | None = option(None, FAULTS, "Rank with slow links.")
    slow_link_factor: float = 6.0
    data_stall: int | None = option(None, FAULTS, "Rank (first or last stage) whose data loader stalls.")
    data_stall_ms: float = 60.0
    garbage_collection: int | None = option(
        None, FAULTS, "Rank whose host collects garbage in each step.", name="gc_pause"
    )
    garbage_collection_ms: float = 40.0
    expert_imbalance: float = option(0.0, FAULTS, "Share of all tokens that go to the first experts in addition.")
    bad_stage_split: int = option(0, FAULTS, "Layers to move from other stages to the first.")
    hidden_synchronisation: int | None = option(
        None, FAULTS, "Rank that waits for its GPU in each forward step.", name="hidden_sync"
    )
    pageable_copy: int | None = option(None, FAULTS, "Rank that copies from pageable memory in each forward step.")
    graph_break: int | None = option(None, FAULTS, "Rank whose compiled code breaks off in each forward step.")
    graph_break_ms: float = 10.0
    throttle: int | None = option(None, FAULTS, "Rank whose GPU is throttled from --throttle-from to --throttle-to.")
    throttle_from_ms: float = option(40.0, FAULTS, "When throttling starts, ms into the step.")
    throttle_to_ms: float = option(120.0, FAULTS, "When throttling stops, ms into the step.")
    throttle_factor: float = 1.5
    slow_group: int | None = option(None, FAULTS, "Rank whose tensor-parallel group has slow GPUs.")
    slow_group_factor: float = 1.35
    slow_node: int | None = option(None, FAULTS, "Node whose GPUs are slow.")
    slow_node_factor: float = 1.35
    slow_stage: int | None = option(None, FAULTS, "Pipeline stage whose GPUs are slow.")
    slow_stage_factor: float = 1.35
    slow_nic: int | None = option(None, FAULTS, "Rank whose network card is slow.")
    slow_nic_factor: float = 5.0
    slow_clock: int | None = option(
        None, FAULTS, "Rank whose products and attention are slow, as with a low core clock."
    )
    slow_clock_factor: float = 1.3
    slow_memory: int | None = option(None, FAULTS, "Rank whose memory-bound kernels are slow.")
    slow_memory_factor: float = 2.0
    other_algorithm: int | None = option(None, FAULTS, "Rank that multiplies by another, slower algorithm.")
    other_algorithm_factor: float = 1.5
    varying_sequences: float = option(0.0, FAULTS, "Share of their length by which sequences may be shorter.")
    bursts: float = option(0.0, FAULTS, "Share of the time in which all links are congested.")
    bursts_factor: float = 5.0
    bursts_every_ms: float = 25.0
    loader_late: int | None = option(
        None, FAULTS, "Rank (first or last stage) whose data loader is late with each micro-batch."
    )
    loader_late_ms: float = 12.0
    tiny_kernels: int | None = option(None, FAULTS, "Rank that launches many tiny kernels in each forward step.")
    tiny_kernels_count: int = 2000
    tiny_kernels_captured: bool = False


@dataclass(frozen=True, slots=True)
class Edges:
    """Oddities of real files; all off in a clean run.

    Attributes:
        missing_launches: share of runtime rows that the profiler's buffers lost.
        early_kernels: kernels launched before the profiler started are in the file without a launch row.
        zero_durations: some tiny kernels last 0 ns.
        control_characters: one function name holds an escaped control character.
        without_distributed_info: rank whose header lacks ``distributedInfo``.
        missing_rank: rank without a file.
        captured_ranks: ranks that have files, as their headers say the capture meant it; None: all.
        duplicate_rank: rank whose header claims to be its predecessor.
        truncated_rank: rank whose file breaks off in the middle.
        window_from, window_to: shares of a file's training steps, on the host, at which the profiler starts and stops.
        shifted_marks: share of a step by which ``ProfilerStep`` marks come late; each ends where the next one starts.
        lost_rows_from, lost_rows_to: shares between which the rows of the host that start there are lost.
        window_rank: the one rank that these three are of; None: all.
    """

    missing_launches: float = option(0.0, ODDITIES, "Share of launch rows to leave out, as if the profiler lost them.")
    early_kernels: bool = option(False, ODDITIES, "Add kernels that ran before the first step.")
    zero_durations: bool = option(False, ODDITIES, "Give some kernels a duration of 0 ns.")
    control_characters: bool = False
    without_distributed_info: int | None = None
    missing_rank: int | None = option(None, ODDITIES, "Rank whose file to leave out.")
    captured_ranks: str | None = option(
        None, ODDITIES, "Ranks to write files of, such as 0-3,8, as if the capture had chosen them; default: all."
    )
    duplicate_rank: int | None = None
    truncated_rank: int | None = option(None, ODDITIES, "Rank whose file to cut off.")
    window_from: float = option(0.0, ODDITIES, "Share of a file's steps at which the profiler starts.")
    window_to: float = option(1.0, ODDITIES, "Share of a file's steps at which the profiler stops.")
    shifted_marks: float = option(0.0, ODDITIES, "Share of a step by which ProfilerStep marks come late.")
    lost_rows_from: float = option(0.0, ODDITIES, "Share of a file's steps from which host rows are lost.")
    lost_rows_to: float = option(0.0, ODDITIES, "Share up to which they are lost.")
    window_rank: int | None = option(None, ODDITIES, "Only rank whose window, marks or rows are so; default: all.")

    @property
    def cuts(self) -> bool:
        """Whether files do not hold their training steps whole, each under a mark of its own."""
        window = (self.window_from, self.window_to, self.shifted_marks, self.lost_rows_from < self.lost_rows_to)
        return window != (0.0, 1.0, 0.0, False)


@dataclass(frozen=True, slots=True)
class JobSettings:
    """One simulated job.

    Attributes, as far as their options do not say it:
        overlap_tensor: Transformer Engine's userbuffers carry tensor-parallel communication beside its products.
        layers, hidden, heads, feed_forward, vocabulary, sequence, batch: the model; batch is the size of a micro-batch.
        dynamic_context: sequences are packed, and each micro-batch is split over as many neighbours in the domain of
            data and context parallelism as its longest sequence needs.
        hybrid_pattern: classes of a hybrid model's layers, repeated up to the number of layers: M Mamba, * attention,
            - MLP, E experts; empty: each layer has attention and an MLP.
        mtp_layers: depths of multi-token prediction, each with a layer of its own behind those of the last stage.
        experts, top_k: mixture of experts; experts 0 is a dense model (it defaults to 2 ep when ep > 1).
        balanced_router: the router sends each expert-parallel rank as many tokens; else their numbers vary a little.
        zero_bubble: gradients of weights are computed where a stage would wait (ZB-H1); for ``Model`` alone, since no
            files of such jobs are written.
        no_recompute: pipeline stages that recompute nothing.
        contention: computation of which communication covers a share takes that share of ``contention - 1`` longer.
        fsdp: parameters, gradients and optimizer are sharded (strategy optim_grads_params): units are the layers.
        offload: with ``MODULES`` the last layer of a chunk keeps what it saves, with ``LAYERS`` the second half do.
        precision: ``FP8`` scales by the maxima of steps before (delayed scaling), which all ranks of a stage agree on.
        agreement: after the optimizer the ranks of a model agree on its success and on the gradient norm to log,
            as Megatron-LM's training loop does.
        buffered_sends: as over a network, where a send does not wait for its receiver; without it both end together.
        node_size: GPUs per node.
        cuda_sync: whether Kineto traces have rows of synchronisation (``enable_cuda_sync_events``), and the records and
            calls that record events and wait for them. No time of any kernel changes: the job is the same without.
        memory: whether a snapshot of GPU memory lies beside each Kineto trace, or exports of Nsight Systems hold
            what the driver allocates.
        persistent: products, attention and element-wise kernels run one block per processor, and all products under
            one name, as persistent kernels do: neither name nor grid shows what they work on.
        first_iteration: number of the first profiled step.
        clock_skew_ms: node clocks differ by up to this much; clock_drift_ppm: and drift by up to this. host_clocks:
            whether Kineto traces state UTC and monotonic clock of their node.
        seed: decides every random choice.
    """

    tp: int = option(1, PARALLELISM, "Tensor parallel size.")
    cp: int = option(1, PARALLELISM, "Context parallel size.")
    ep: int = option(1, PARALLELISM, "Expert parallel size.")
    etp: int | None = option(None, PARALLELISM, "Expert tensor parallel size; default: that of --tp.")
    dp: int = option(1, PARALLELISM, "Data parallel size.")
    pp: int = option(1, PARALLELISM, "Pipeline parallel size.")
    vpp: int = option(1, PARALLELISM, "Model chunks per rank (interleaving).")
    order: str = option("tp-cp-ep-dp-pp", PARALLELISM, "Rank order, the fastest dimension first.")
    microbatches: int = option(8, MODEL, "Micro-batches per step.")
    layers: int = option(16, MODEL, "Transformer layers.")
    stage_layers: str = option("", MODEL, "Layers of each pipeline stage, such as 3,5,5,3; default: as many in each.")
    hybrid_pattern: str = option(
        "", MODEL, "Hybrid model: M Mamba, * attention, - MLP, E experts, one a layer, repeated; such as M-M*."
    )
    mtp_layers: int = option(0, MODEL, "Depths of multi-token prediction on the last stage.")
    hidden: int = option(4096, MODEL, "Hidden size.")
    heads: int = 32
    feed_forward: int = 16384
    vocabulary: int = 51200
    sequence: int = option(4096, MODEL, "Sequence length, tokens.")
    batch: int = option(1, MODEL, "Samples per micro-batch.", name="micro_batch_size")
    contention: float = option(1.0, OVERLAP, "Times as long as computation takes beside communication of its rank.")
    experts: int = option(0, MODEL, "Experts per layer; 0 = none, or twice --ep if that is above 1.")
    top_k: int = 2
    balanced_router: bool = False
    zero_bubble: bool = False
    no_recompute: tuple[int, ...] = ()
    sequence_parallel: bool = True
    distributed_optimizer: bool = option(True, OVERLAP, "Shard the optimizer over data parallelism.")
    fsdp: bool = option(False, OVERLAP, "Shard parameters and gradients with Megatron-FSDP.")
    overlap_grad_reduce: bool = option(True, OVERLAP, "Reduce gradients during the backward pass.")
    overlap_param_gather: bool = option(True, OVERLAP, "Gather parameters during the forward pass.")
    overlap_p2p: bool = option(False, OVERLAP, "Overlap pipeline communication (needs --vpp).")
    overlap_expert: bool = option(False, OVERLAP, "Overlap expert all-to-alls (combined 1F1B).")
    overlap_tensor: bool = option(False, OVERLAP, "Use Transformer Engine's userbuffers for tensor parallelism.")
    dispatcher: Dispatcher = option(Dispatcher.ALL_TO_ALL, OVERLAP, "Communication that carries tokens to experts.")
    context_exchange: ContextExchange = option(
        ContextExchange.POINT_TO_POINT, MODEL, "How context parallelism moves keys and values."
    )
    dynamic_context: bool = option(
        False, MODEL, "Pack sequences, and split each micro-batch over a context of its own size (dp x cp ranks)."
    )
    recompute: Recompute = option(Recompute.NONE, MODEL, "Activations to recompute.")
    offload: Offload = option(Offload.NONE, MODEL, "Activations to keep on the host until the backward pass.")
    precision: Precision = option(Precision.BF16, MODEL, "Number format of the products; fp8 uses delayed scaling.")
    cuda_graphs: Graphs = option(Graphs.NONE, MODEL, "Parts to replay as CUDA graphs.")
    transformer: Transformer = option(Transformer.TRANSFORMER_ENGINE, MODEL, "Implementation of the layers.")
    era: Era = option(Era.TORCH_2_7, CAPTURE, "PyTorch version that writes the traces.")
    stacks: bool = option(True, CAPTURE, "Record Python call stacks.")
    shapes: bool = option(False, CAPTURE, "Record the sizes of operators' inputs.")
    cuda_sync: bool = option(False, CAPTURE, "Write cuda_sync rows, with the CUDA events and waits behind them.")
    filler_frames: float = 0.3
    agreement: bool = False
    buffered_sends: bool = option(
        False, OVERLAP, "Let sends between nodes and roots of broadcasts end when NCCL has buffered what they send."
    )
    node_size: int = option(8, PARALLELISM, "GPUs per node.")
    iterations: int = option(1, MODEL, "Profiled training steps.")
    first_iteration: int = 10
    clock_skew_ms: float = option(0.0, CAPTURE, "Largest difference between node clocks, ms: 0 to 3,600,000.")
    clock_drift_ppm: float = option(0.0, CAPTURE, "Largest drift of a node clock, ppm: up to 10,000.")
    host_clocks: bool = option(False, CAPTURE, "State the host's clocks in each trace, as the capture plugin does.")
    jitter: float = 0.02
    memory: bool = option(
        False,
        CAPTURE,
        "Write a snapshot of GPU memory beside each trace; with --format nsys what the driver allocates.",
    )
    persistent: bool = option(False, MODEL, "Run persistent kernels: products of one name and grid.")
    wide_layers: int = option(0, MODEL, "Last layers whose products are twice as wide.")
    format: Format = option(
        Format.KINETO, CAPTURE, "A PyTorch trace per rank and step, or an Nsight Systems export per node."
    )
    layout: Layout = option(Layout.ITERATION, CAPTURE, "Layout of folders and file names.")
    gzip: bool = option(True, CAPTURE, "Compress the traces.")
    faults: Faults = Faults()
    edges: Edges = Edges()
    seed: int = option(1, None, "Random seed.")

    @property
    def expert_tensor(self) -> int:
        """Size of expert tensor parallelism."""
        return self.tp if self.etp is None else self.etp

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def ranks_with_files(self) -> list[int]:
        """Ranks of which a trace is written."""
        chosen = self.edges.captured_ranks
        ranks = range(self.world) if chosen is None else unspanned(chosen)
        return [rank for rank in ranks if rank != self.edges.missing_rank]

    @property
    def expert_data(self) -> int:
        """Size of expert data parallelism."""
        return self.world // (self.expert_tensor * self.ep * self.pp)

    @property
    def expert_count(self) -> int:
        """Experts per layer; 0 for a dense model."""
        return self.experts or (2 * self.ep if self.ep > 1 else 0)

    @property
    def kinds_of_layers(self) -> str:
        """The symbols of a hybrid model's layers; empty for other models."""
        return self.hybrid_pattern * (self.layers // max(len(self.hybrid_pattern), 1))

    @property
    def layers_of_stages(self) -> tuple[int, ...]:
        """Layers of each virtual stage, in model order (stage ``pp * chunk + stage``)."""
        stages = self.pp * self.vpp
        if self.stage_layers:
            return tuple(count // self.vpp for count in self._given_layers) * self.vpp
        counts = [self.layers // stages + (index < self.layers % stages) for index in range(stages)]
        donors = list(range(stages - 1, 0, -1))
        for moved in range(self.faults.bad_stage_split):
            donor = donors[moved % len(donors)]
            if counts[donor] > 1:
                counts[donor] -= 1
                counts[0] += 1
        return tuple(counts)

    @property
    def _given_layers(self) -> tuple[int, ...]:
        return tuple(map(int, self.stage_layers.split(",")))

    @property
    def layers_fault(self) -> str | None:
        """What is wrong with the layers of stages; None where nothing is."""
        given, stages = self.stage_layers, self.pp * self.vpp
        if not given:
            uneven = self.layers % stages != 0
            return (
                f"--layers {self.layers} must be a multiple of pp x vpp = {stages}: all stages hold as many"
                if uneven
                else None
            )
        if not re.fullmatch(r"[1-9]\d{0,3}(,[1-9]\d{0,3})*", given, re.ASCII):
            return f"--stage-layers {given}: write the layers of each stage, such as 3,5,5,3"
        counts = self._given_layers
        if len(counts) != self.pp or sum(counts) != self.layers or any(count % self.vpp for count in counts):
            return (
                f"--stage-layers {given}: name {self.pp} multiples of {self.vpp} that add up to --layers {self.layers}"
            )
        return None

    @classmethod
    def demo(cls) -> JobSettings:
        """The job that ``traceviz demo`` simulates: 16 ranks, interleaved, recompute, one slow GPU, skewed clocks."""
        return cls(
            tp=2,
            pp=4,
            dp=2,
            vpp=2,
            layers=16,
            microbatches=8,
            recompute=Recompute.FULL,
            clock_skew_ms=3.0,
            clock_drift_ppm=5.0,
            iterations=3,
            node_size=4,
            faults=Faults(slow_gpu=9),
        )

    def with_faults(self, **changes: float | int | None) -> JobSettings:
        """The same job with other faults."""
        return replace(self, faults=replace(self.faults, **changes))  # type: ignore[arg-type]

    def validate(self) -> None:
        """Refuse settings that no Megatron job could have.

        Raises:
            UsageError: what is wrong, and what would be right.
        """
        for fault in _faults_of(self):
            raise UsageError(fault)


def _faults_of(s: JobSettings) -> list[str]:
    sizes = {"tp": s.tp, "cp": s.cp, "ep": s.ep, "etp": s.expert_tensor, "dp": s.dp, "pp": s.pp, "vpp": s.vpp}
    sizes |= {"microbatches": s.microbatches, "layers": s.layers, "iterations": s.iterations, "node-size": s.node_size}
    sizes |= {"hidden": s.hidden, "sequence": s.sequence, "micro-batch-size": s.batch}
    found = [f"--{name} is {size}; it must be at least 1" for name, size in sizes.items() if size < 1]
    if s.memory and (s.edges.truncated_rank is not None or s.edges.cuts or _beyond_dense(s)):
        found.append(
            "--memory: snapshots are of dense models whose traces are whole; leave experts, multi-token prediction, "
            "hybrid patterns, dynamic contexts and oddities out"
        )
    if s.memory and (s.fsdp or s.offload is not Offload.NONE or s.precision is not Precision.BF16):
        found.append("--memory: snapshots know no --fsdp, --offload and --precision; leave them out")
    if not found and sorted(s.order.split("-")) != ["cp", "dp", "ep", "pp", "tp"]:
        found.append(f"--order {s.order}: it must name tp, cp, ep, dp and pp once each, for example tp-cp-ep-dp-pp")
    return found or _extent_faults(s) or [*_size_faults(s), *_feature_faults(s), *_rank_faults(s), *_format_faults(s)]


def _beyond_dense(s: JobSettings) -> bool:
    return bool(s.expert_count or s.mtp_layers or s.hybrid_pattern or s.dynamic_context)


def _said(*faults: tuple[bool, str]) -> list[str]:
    return [fault for applies, fault in faults if applies]


_MOST_RANKS, _MOST_LAYER_RUNS, _MOST_TRACES = 16_384, 500_000, 1_000_000
"""A rank takes 1.3 MB of memory, a run of a layer 40 kB: 20 GB each at most."""

_MOST_SKEW_MS, _MOST_DRIFT_PPM = 3_600_000, 10_000


def _extent_faults(s: JobSettings) -> list[str]:
    """What would take more memory than machines have, and clocks that no machine has; NaN is none."""
    # Steps that share a file, as they do in an export, are in memory together.
    together = 1 if s.layout is Layout.ITERATION and s.format is Format.KINETO else s.iterations
    runs, traces = -(-s.layers // s.pp) * s.microbatches * s.world * together, s.world * s.iterations
    skew, drift = s.clock_skew_ms, s.clock_drift_ppm
    steps = f" x {together} steps of one file" if together > 1 else ""
    return _said(
        (s.world > _MOST_RANKS, f"--tp x --cp x --dp x --pp is {s.world:,} ranks; simulate up to {_MOST_RANKS:,}"),
        (
            runs > _MOST_LAYER_RUNS,
            f"{s.world:,} ranks x --layers / pp x --microbatches{steps} is {runs:,} runs of layers; simulate up to "
            f"{_MOST_LAYER_RUNS:,}",
        ),
        (traces > _MOST_TRACES, f"{s.world:,} ranks x --iterations is {traces:,}; simulate up to {_MOST_TRACES:,}"),
        (not 0 <= skew <= _MOST_SKEW_MS, f"--clock-skew {skew}: clocks differ by 0 to {_MOST_SKEW_MS:,} ms"),
        (not abs(drift) <= _MOST_DRIFT_PPM, f"--clock-drift {drift}: clocks drift by up to {_MOST_DRIFT_PPM:,} ppm"),
    )


def _size_faults(s: JobSettings) -> list[str]:
    shards = s.expert_tensor * s.ep * s.pp
    pieces = (s.tp if s.sequence_parallel else 1) * (2 * s.cp if s.cp > 1 else 1)
    uneven = s.world % shards != 0
    apart = not uneven and not s.order.endswith("pp") and s.pp > 1 and s.expert_data != s.dp
    return _said(
        (uneven, f"world size {s.world} is no multiple of etp x ep x pp = {shards}; raise --dp"),
        (apart, "an --order that does not end in pp needs etp x ep = tp x cp"),
        (s.layers_fault is not None, str(s.layers_fault)),
        (bool(s.stage_layers) and s.faults.bad_stage_split != 0, "--stage-layers runs without --bad-stage-split"),
        (s.vpp > 1 and s.pp < 2, "--vpp needs --pp of at least 2"),
        (s.vpp > 1 and s.microbatches % s.pp != 0, f"interleaving needs --microbatches as a multiple of pp = {s.pp}"),
        (s.heads % s.tp != 0 or s.hidden % s.tp != 0, "heads and --hidden must be multiples of tp"),
        (s.hidden % s.heads != 0, f"--hidden {s.hidden} must be a multiple of its {s.heads} attention heads"),
        (
            s.sequence % pieces != 0,
            f"--sequence {s.sequence} must be a multiple of {pieces}, which tp and cp cut it into",
        ),
        (s.mtp_layers < 0, f"--mtp-layers {s.mtp_layers}: there cannot be fewer than none"),
        (s.experts < 0, f"--experts {s.experts}: there cannot be fewer than none"),
        (s.expert_count % s.ep != 0, f"{s.expert_count} experts cannot be spread over ep = {s.ep}"),
        (
            0 < s.expert_count < s.top_k,
            f"{s.expert_count} experts are fewer than the {s.top_k} that each token goes to",
        ),
    )


def _feature_faults(s: JobSettings) -> list[str]:
    graphs, imbalance = s.cuda_graphs is not Graphs.NONE, s.faults.expert_imbalance
    recomputes_layers = s.recompute not in (Recompute.NONE, Recompute.SELECTIVE)
    stages, split = s.pp * s.vpp, s.faults.bad_stage_split
    te = s.transformer is Transformer.TRANSFORMER_ENGINE
    offload, low = s.offload is not Offload.NONE, s.precision is not Precision.BF16
    whole = s.recompute is Recompute.FULL
    return _said(
        (
            s.fsdp and not (s.distributed_optimizer and s.overlap_grad_reduce and s.overlap_param_gather),
            "--fsdp always overlaps and shards; leave out --no-overlap-... and --no-distributed-optimizer",
        ),
        (s.fsdp and (s.overlap_expert or graphs), "--fsdp runs without --overlap-expert and --cuda-graphs"),
        (s.fsdp and s.era is Era.TORCH_2_3, "--fsdp needs PyTorch 2.4"),
        (offload and (s.overlap_expert or graphs), "--offload runs without --overlap-expert and --cuda-graphs"),
        (offload and not te, "--offload needs --transformer transformer-engine"),
        (offload and whole, "--offload runs with selective recompute or none: full recompute keeps nothing to offload"),
        (s.offload is Offload.MODULES and s.era is not Era.TORCH_2_7, "--offload modules needs PyTorch 2.7"),
        (
            s.offload is Offload.LAYERS and (s.pp > 1 or s.recompute is not Recompute.NONE),
            "--offload layers runs without pipelining and recompute",
        ),
        (low and not te, "--precision of less than 16 bits needs --transformer transformer-engine"),
        (
            low and (s.overlap_expert or graphs),
            "--precision of less than 16 bits runs without --overlap-expert and --cuda-graphs",
        ),
        (
            s.precision in (Precision.MXFP8, Precision.NVFP4) and s.era is not Era.TORCH_2_7,
            f"--precision {s.precision} needs PyTorch 2.7",
        ),
        (
            s.precision not in (Precision.BF16, Precision.FP8) and s.era is Era.TORCH_2_3,
            f"--precision {s.precision} needs PyTorch 2.4",
        ),
        (
            s.zero_bubble
            and (s.pp < 2 or s.vpp > 1 or s.overlap_expert or graphs or s.fsdp or offload or low or s.tp > 1 or whole),
            "a zero-bubble schedule needs several stages of one chunk, without overlap of experts, graphs, FSDP, "
            "offload, low precision, tensor parallelism and full recompute",
        ),
        (s.zero_bubble and s.dp > 1 and s.overlap_grad_reduce, "a zero-bubble schedule reduces gradients at its end"),
        (s.overlap_expert and s.ep < 2, "--overlap-expert needs --ep of at least 2"),
        (s.overlap_expert and s.pp > 1 and s.vpp < 2, "--overlap-expert with pipelining needs --vpp of at least 2"),
        (s.overlap_expert and recomputes_layers, "--overlap-expert runs with selective recompute or none"),
        (s.overlap_p2p and s.vpp < 2, "--overlap-p2p needs the interleaved schedule (--vpp of at least 2)"),
        (s.overlap_tensor and not (te and s.tp > 1 and s.sequence_parallel), "--overlap-tensor needs tp > 1 and te"),
        (graphs and s.recompute is not Recompute.NONE, "--cuda-graphs runs without recompute"),
        (graphs and s.expert_count > 0, "--cuda-graphs needs a dense model"),
        (s.mtp_layers > 0 and s.cp > 1, "--mtp-layers runs without context parallelism"),
        (
            s.mtp_layers > 0 and (s.overlap_expert or graphs),
            "--mtp-layers runs without --overlap-expert and without --cuda-graphs",
        ),
        *_hybrid_faults(s),
        *_dynamic_faults(s),
        (
            bool(s.mtp_layers or s.hybrid_pattern or s.dynamic_context)
            and (s.fsdp or s.offload is not Offload.NONE or s.precision is not Precision.BF16),
            "--mtp-layers, --hybrid-pattern and --dynamic-context run without --fsdp, --offload and --precision",
        ),
        (s.cp > 1 and not te, "context parallelism needs --transformer transformer-engine"),
        (split < 0, f"--bad-stage-split {split}: layers can only be moved to the first stage"),
        (split > 0 and stages < 2, "a bad stage split needs at least two stages"),
        (
            stages > 1 and split > s.layers - stages - (s.layers // stages - 1),
            f"--bad-stage-split {split} leaves a stage without layers; move fewer, or raise --layers",
        ),
        (not 0 <= s.edges.missing_launches <= 1, "--missing-launches is a share between 0 and 1"),
        (not 0 <= s.wide_layers <= s.layers, f"--wide-layers {s.wide_layers}: the model has {s.layers} layers"),
        (
            not 0 <= s.edges.window_from < s.edges.window_to <= 1,
            "--window-from and --window-to are shares between 0 and 1, the first below the second",
        ),
        (not 0 <= s.edges.shifted_marks < 1, "--shifted-marks is a share of a step between 0 and 1"),
        (
            not 0 <= s.edges.lost_rows_from <= s.edges.lost_rows_to <= 1,
            "--lost-rows-from and --lost-rows-to are shares between 0 and 1, the first not above the second",
        ),
        (s.seed < 0, f"--seed {s.seed} must not be negative"),
        (imbalance != 0 and not s.expert_count, "expert imbalance needs experts"),
        (not 0 <= imbalance < 1, "the expert imbalance is a share between 0 and 1"),
        (not 0 <= s.faults.varying_sequences < 1, "--varying-sequences is a share between 0 and 1"),
        (s.faults.varying_sequences > 0 and s.expert_count > 0, "--varying-sequences needs a dense model"),
        (not 0 <= s.faults.bursts < 1, "--bursts is a share of the time between 0 and 1"),
    )


def _dynamic_faults(s: JobSettings) -> list[tuple[bool, str]]:
    if not s.dynamic_context:
        return []
    domain, te = s.dp * s.cp, s.transformer is Transformer.TRANSFORMER_ENGINE
    beside = s.mtp_layers or s.hybrid_pattern or s.expert_count or s.cuda_graphs is not Graphs.NONE
    return [
        (domain < 2 or bool(domain & domain - 1), f"--dynamic-context: dp x cp is {domain}; it must be a power of two"),
        (
            bool(beside) or not te,
            "--dynamic-context runs with --transformer transformer-engine, without graphs, experts, "
            "hybrid patterns and multi-token prediction",
        ),
        (s.faults.varying_sequences > 0, "--dynamic-context packs sequences; leave --varying-sequences out"),
    ]


def _hybrid_faults(s: JobSettings) -> list[tuple[bool, str]]:
    pattern, te = s.hybrid_pattern, s.transformer is Transformer.TRANSFORMER_ENGINE
    if not pattern:
        return []
    beside = s.mtp_layers or s.overlap_expert or s.overlap_tensor or s.cuda_graphs is not Graphs.NONE
    plain = s.recompute in (Recompute.NONE, Recompute.FULL, Recompute.SELECTIVE) and not beside and te
    return [
        (bool(set(pattern) - set("M*-E")), f"--hybrid-pattern {pattern}: its symbols are M, *, - and E"),
        (s.layers % len(pattern) != 0, f"--layers {s.layers} must be a multiple of the {len(pattern)} of the pattern"),
        (
            ("E" in pattern) != (s.expert_count > 0),
            "a hybrid pattern has an E if the model has experts (--experts or --ep above 1), and only then",
        ),
        (
            not plain,
            "--hybrid-pattern runs with --transformer transformer-engine and without graphs, overlap of experts "
            "and tensors, output-discarding recompute and multi-token prediction",
        ),
    ]


def _rank_faults(s: JobSettings) -> list[str]:
    named = {"slow GPU": s.faults.slow_gpu, "slow link": s.faults.slow_link, "data stall": s.faults.data_stall}
    named |= {"GC pause": s.faults.garbage_collection, "hidden synchronisation": s.faults.hidden_synchronisation}
    named |= {"pageable copy": s.faults.pageable_copy, "graph break": s.faults.graph_break}
    named |= {"tiny kernels": s.faults.tiny_kernels, "throttled GPU": s.faults.throttle}
    named |= {"slow group": s.faults.slow_group, "slow network card": s.faults.slow_nic}
    named |= {"slow memory": s.faults.slow_memory, "other algorithm": s.faults.other_algorithm}
    named |= {"late loader": s.faults.loader_late}
    named |= {"missing rank": s.edges.missing_rank, "duplicate rank": s.edges.duplicate_rank}
    named |= {"truncated rank": s.edges.truncated_rank, "rank without header": s.edges.without_distributed_info}
    named |= {"rank with a cut window": s.edges.window_rank}
    missing, truncated = s.edges.missing_rank, s.edges.truncated_rank
    node, stage, nodes = s.faults.slow_node, s.faults.slow_stage, -(-s.world // s.node_size)
    without_files = _said(
        (node is not None and not 0 <= node < nodes, f"--slow-node {node}: the job runs on {nodes} nodes, from 0"),
        (stage is not None and not 0 <= stage < s.pp, f"--slow-stage {stage}: the job has {s.pp} stages, from 0"),
        (missing == 0 and s.world == 1, "--missing-rank 0 leaves a job of one rank without any file; raise --dp"),
        (missing is not None and missing == truncated, f"rank {missing} cannot be both missing and truncated"),
    )
    return [*without_files, *_captured_faults(s)] + [
        f"{what}: rank {rank} is outside the world of {s.world} ranks"
        for what, rank in named.items()
        if rank is not None and not 0 <= rank < s.world
    ]


def _captured_faults(s: JobSettings) -> list[str]:
    """What is wrong with the choice of ranks to write."""
    given = s.edges.captured_ranks
    if given is None:
        return []
    if not re.fullmatch(r"\s*\d{1,6}(-\d{1,6})?(\s*,\s*\d{1,6}(-\d{1,6})?)*\s*", given, re.ASCII):
        return [f"--captured-ranks {given}: write ranks such as 0-3,8"]
    beyond = [rank for rank in unspanned(given) if rank >= s.world]
    return _said(
        (bool(beyond), f"--captured-ranks {given}: the world has ranks 0 to {s.world - 1}"),
        (not beyond and not s.ranks_with_files, f"--captured-ranks {given} leaves no file to write"),
    )


def _format_faults(s: JobSettings) -> list[str]:
    if s.format is Format.KINETO:
        return []
    edges = s.edges
    rankwise = (
        edges.missing_rank,
        edges.captured_ranks,
        edges.truncated_rank,
        edges.duplicate_rank,
        edges.without_distributed_info,
    )
    return _said(
        (s.layout is not Layout.ITERATION, "--layout is of Kineto traces; leave it out with --format nsys"),
        (s.edges.cuts, "windows and marks are of Kineto traces; leave them out with --format nsys"),
        (s.cuda_sync, "--cuda-sync is of Kineto traces; leave it out with --format nsys"),
        (not s.stacks, "exports of Nsight Systems hold no call stacks; leave out --no-stacks with --format nsys"),
        (
            any(rank is not None for rank in rankwise),
            "an export holds the ranks of a whole node: missing and damaged files of single ranks need --format kineto",
        ),
    )
