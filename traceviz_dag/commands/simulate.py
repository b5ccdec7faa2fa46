"""``traceviz simulate``: traces of a Megatron training job that never ran, with the truth beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, TaskID

from traceviz_dag.commands.common.output import terminal
from traceviz_dag.simulate.settings import (
    ContextExchange,
    Dispatcher,
    Edges,
    Era,
    Faults,
    Format,
    Graphs,
    JobSettings,
    Layout,
    Recompute,
    Transformer,
)

_PARALLEL, _MODEL, _OVERLAP, _CAPTURE = "Parallelism", "Model and schedule", "Overlap", "Capture"
_FAULTS, _EDGES = "Faults", "Oddities of real files"


def simulate(
    out: Annotated[Path, typer.Argument(help="Run folder to create.", file_okay=False)],
    tp: Annotated[int, typer.Option(help="Tensor parallel size.", rich_help_panel=_PARALLEL)] = 1,
    cp: Annotated[int, typer.Option(help="Context parallel size.", rich_help_panel=_PARALLEL)] = 1,
    ep: Annotated[int, typer.Option(help="Expert parallel size.", rich_help_panel=_PARALLEL)] = 1,
    etp: Annotated[
        int | None, typer.Option(help="Expert tensor parallel size; default: that of --tp.", rich_help_panel=_PARALLEL)
    ] = None,
    dp: Annotated[int, typer.Option(help="Data parallel size.", rich_help_panel=_PARALLEL)] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline parallel size.", rich_help_panel=_PARALLEL)] = 1,
    vpp: Annotated[int, typer.Option(help="Model chunks per rank (interleaving).", rich_help_panel=_PARALLEL)] = 1,
    order: Annotated[
        str, typer.Option(help="Rank order, the fastest dimension first.", rich_help_panel=_PARALLEL)
    ] = "tp-cp-ep-dp-pp",
    node_size: Annotated[int, typer.Option(help="GPUs per node.", rich_help_panel=_PARALLEL)] = 8,
    microbatches: Annotated[int, typer.Option(help="Micro-batches per step.", rich_help_panel=_MODEL)] = 8,
    layers: Annotated[int, typer.Option(help="Transformer layers.", rich_help_panel=_MODEL)] = 16,
    hidden: Annotated[int, typer.Option(help="Hidden size.", rich_help_panel=_MODEL)] = 4096,
    sequence: Annotated[int, typer.Option(help="Sequence length, tokens.", rich_help_panel=_MODEL)] = 4096,
    experts: Annotated[
        int, typer.Option(help="Experts per layer; 0 = none, or twice --ep if that is above 1.", rich_help_panel=_MODEL)
    ] = 0,
    persistent: Annotated[
        bool, typer.Option(help="Run persistent kernels: products of one name and grid.", rich_help_panel=_MODEL)
    ] = False,
    wide_layers: Annotated[
        int, typer.Option(help="Last layers whose products are twice as wide.", rich_help_panel=_MODEL)
    ] = 0,
    iterations: Annotated[int, typer.Option(help="Profiled training steps.", rich_help_panel=_MODEL)] = 1,
    recompute: Annotated[
        Recompute, typer.Option(help="Activations to recompute.", rich_help_panel=_MODEL)
    ] = Recompute.NONE,
    transformer: Annotated[
        Transformer, typer.Option(help="Implementation of the layers.", rich_help_panel=_MODEL)
    ] = Transformer.TRANSFORMER_ENGINE,
    context_exchange: Annotated[
        ContextExchange, typer.Option(help="How context parallelism moves keys and values.", rich_help_panel=_MODEL)
    ] = ContextExchange.POINT_TO_POINT,
    cuda_graphs: Annotated[
        Graphs, typer.Option(help="Parts to replay as CUDA graphs.", rich_help_panel=_MODEL)
    ] = Graphs.NONE,
    overlap_grad_reduce: Annotated[
        bool, typer.Option(help="Reduce gradients during the backward pass.", rich_help_panel=_OVERLAP)
    ] = True,
    overlap_param_gather: Annotated[
        bool, typer.Option(help="Gather parameters during the forward pass.", rich_help_panel=_OVERLAP)
    ] = True,
    overlap_p2p: Annotated[
        bool, typer.Option(help="Overlap pipeline communication (needs --vpp).", rich_help_panel=_OVERLAP)
    ] = False,
    overlap_expert: Annotated[
        bool, typer.Option(help="Overlap expert all-to-alls (combined 1F1B).", rich_help_panel=_OVERLAP)
    ] = False,
    overlap_tensor: Annotated[
        bool,
        typer.Option(help="Use Transformer Engine's userbuffers for tensor parallelism.", rich_help_panel=_OVERLAP),
    ] = False,
    dispatcher: Annotated[
        Dispatcher, typer.Option(help="Communication that carries tokens to experts.", rich_help_panel=_OVERLAP)
    ] = Dispatcher.ALL_TO_ALL,
    distributed_optimizer: Annotated[
        bool, typer.Option(help="Shard the optimizer over data parallelism.", rich_help_panel=_OVERLAP)
    ] = True,
    format: Annotated[
        Format,
        typer.Option(
            help="A PyTorch trace per rank and step, or an Nsight Systems export per node.", rich_help_panel=_CAPTURE
        ),
    ] = Format.KINETO,
    era: Annotated[
        Era, typer.Option(help="PyTorch version that writes the traces.", rich_help_panel=_CAPTURE)
    ] = Era.TORCH_2_7,
    stacks: Annotated[bool, typer.Option(help="Record Python call stacks.", rich_help_panel=_CAPTURE)] = True,
    shapes: Annotated[
        bool, typer.Option(help="Record the sizes of operators' inputs.", rich_help_panel=_CAPTURE)
    ] = False,
    cuda_sync: Annotated[
        bool,
        typer.Option(
            help="Write cuda_sync rows, with the CUDA events and waits behind them.", rich_help_panel=_CAPTURE
        ),
    ] = False,
    memory: Annotated[
        bool,
        typer.Option(
            help="Write a snapshot of GPU memory beside each trace; with --format nsys what the driver allocates.",
            rich_help_panel=_CAPTURE,
        ),
    ] = False,
    layout: Annotated[
        Layout, typer.Option(help="Layout of folders and file names.", rich_help_panel=_CAPTURE)
    ] = Layout.ITERATION,
    gzip: Annotated[bool, typer.Option(help="Compress the traces.", rich_help_panel=_CAPTURE)] = True,
    clock_skew: Annotated[
        float,
        typer.Option(help="Largest difference between node clocks, ms: 0 to 3,600,000.", rich_help_panel=_CAPTURE),
    ] = 0.0,
    clock_drift: Annotated[
        float, typer.Option(help="Largest drift of a node clock, ppm: up to 10,000.", rich_help_panel=_CAPTURE)
    ] = 0.0,
    slow_gpu: Annotated[int | None, typer.Option(help="Rank with a slow GPU.", rich_help_panel=_FAULTS)] = None,
    slow_link: Annotated[int | None, typer.Option(help="Rank with slow links.", rich_help_panel=_FAULTS)] = None,
    data_stall: Annotated[
        int | None, typer.Option(help="Rank (first or last stage) whose data loader stalls.", rich_help_panel=_FAULTS)
    ] = None,
    gc_pause: Annotated[
        int | None, typer.Option(help="Rank whose host collects garbage in each step.", rich_help_panel=_FAULTS)
    ] = None,
    expert_imbalance: Annotated[
        float,
        typer.Option(help="Share of all tokens that go to the first experts in addition.", rich_help_panel=_FAULTS),
    ] = 0.0,
    bad_stage_split: Annotated[
        int, typer.Option(help="Layers to move from other stages to the first.", rich_help_panel=_FAULTS)
    ] = 0,
    hidden_sync: Annotated[
        int | None, typer.Option(help="Rank that waits for its GPU in each forward step.", rich_help_panel=_FAULTS)
    ] = None,
    pageable_copy: Annotated[
        int | None,
        typer.Option(help="Rank that copies from pageable memory in each forward step.", rich_help_panel=_FAULTS),
    ] = None,
    graph_break: Annotated[
        int | None,
        typer.Option(help="Rank whose compiled code breaks off in each forward step.", rich_help_panel=_FAULTS),
    ] = None,
    tiny_kernels: Annotated[
        int | None,
        typer.Option(help="Rank that launches many tiny kernels in each forward step.", rich_help_panel=_FAULTS),
    ] = None,
    throttle: Annotated[
        int | None,
        typer.Option(
            help="Rank whose GPU is throttled from --throttle-from to --throttle-to.", rich_help_panel=_FAULTS
        ),
    ] = None,
    slow_group: Annotated[
        int | None, typer.Option(help="Rank whose tensor-parallel group has slow GPUs.", rich_help_panel=_FAULTS)
    ] = None,
    slow_node: Annotated[int | None, typer.Option(help="Node whose GPUs are slow.", rich_help_panel=_FAULTS)] = None,
    slow_stage: Annotated[
        int | None, typer.Option(help="Pipeline stage whose GPUs are slow.", rich_help_panel=_FAULTS)
    ] = None,
    slow_nic: Annotated[
        int | None, typer.Option(help="Rank whose network card is slow.", rich_help_panel=_FAULTS)
    ] = None,
    slow_memory: Annotated[
        int | None, typer.Option(help="Rank whose memory-bound kernels are slow.", rich_help_panel=_FAULTS)
    ] = None,
    other_algorithm: Annotated[
        int | None, typer.Option(help="Rank that multiplies by another, slower algorithm.", rich_help_panel=_FAULTS)
    ] = None,
    loader_late: Annotated[
        int | None,
        typer.Option(
            help="Rank (first or last stage) whose data loader is late with each micro-batch.", rich_help_panel=_FAULTS
        ),
    ] = None,
    throttle_from: Annotated[
        float, typer.Option(help="When throttling begins, ms into the step.", rich_help_panel=_FAULTS)
    ] = 40.0,
    throttle_to: Annotated[
        float, typer.Option(help="When throttling ends, ms into the step.", rich_help_panel=_FAULTS)
    ] = 120.0,
    varying_sequences: Annotated[
        float, typer.Option(help="Share of their length by which sequences may be shorter.", rich_help_panel=_FAULTS)
    ] = 0.0,
    bursts: Annotated[
        float, typer.Option(help="Share of the time in which all links are congested.", rich_help_panel=_FAULTS)
    ] = 0.0,
    slow_factor: Annotated[
        float | None,
        typer.Option(help="How many times as long slow or throttled work takes.", rich_help_panel=_FAULTS),
    ] = None,
    missing_launches: Annotated[
        float,
        typer.Option(help="Share of launch rows to leave out, as if the profiler lost them.", rich_help_panel=_EDGES),
    ] = 0.0,
    zero_durations: Annotated[
        bool, typer.Option(help="Give some kernels a duration of 0 ns.", rich_help_panel=_EDGES)
    ] = False,
    early_kernels: Annotated[
        bool, typer.Option(help="Add kernels that ran before the first step.", rich_help_panel=_EDGES)
    ] = False,
    missing_rank: Annotated[
        int | None, typer.Option(help="Rank whose file to leave out.", rich_help_panel=_EDGES)
    ] = None,
    truncated_rank: Annotated[
        int | None, typer.Option(help="Rank whose file to cut off.", rich_help_panel=_EDGES)
    ] = None,
    window_from: Annotated[
        float,
        typer.Option(help="Share of a file's steps at which the profiler starts.", rich_help_panel=_EDGES),
    ] = 0.0,
    window_to: Annotated[
        float, typer.Option(help="Share of a file's steps at which the profiler stops.", rich_help_panel=_EDGES)
    ] = 1.0,
    shifted_marks: Annotated[
        float, typer.Option(help="Share of a step by which ProfilerStep marks come late.", rich_help_panel=_EDGES)
    ] = 0.0,
    lost_rows_from: Annotated[
        float, typer.Option(help="Share of a file's steps from which host rows are lost.", rich_help_panel=_EDGES)
    ] = 0.0,
    lost_rows_to: Annotated[float, typer.Option(help="Share up to which they are lost.", rich_help_panel=_EDGES)] = 0.0,
    window_rank: Annotated[
        int | None,
        typer.Option(help="Only rank whose window, marks or rows are so; default: all.", rich_help_panel=_EDGES),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 1,
    workers: Annotated[int, typer.Option(help="Processes that write traces.", min=1)] = 2,
) -> None:
    """Simulate Megatron training: write profiler traces, and beside them tables of what really happened.

    OUT gets iteration_N/ with a trace per rank, the topology text file, and truth/ with Parquet tables of kernels,
    edges between streams, micro-batches, pipelines, clocks and injected faults. Leave a fault out and keep --seed:
    nothing else changes. With --format nsys it gets node0.sqlite … in place of traces, as nsys export writes them: try
    traceviz nsys without a GPU.

    Simulate up to 16,384 ranks, 500,000 runs of layers (ranks x layers / pp x micro-batches) in steps that are written
    together, and 1,000,000 ranks x steps. A rank takes 1.3 MB of memory, a run of a layer 40 kB.
    """
    from traceviz_dag.simulate import simulate as run

    settings = JobSettings(
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp,
        dp=dp,
        pp=pp,
        vpp=vpp,
        order=order,
        microbatches=microbatches,
        layers=layers,
        hidden=hidden,
        heads=max(hidden // 128, 1),
        feed_forward=4 * hidden,
        sequence=sequence,
        experts=experts,
        persistent=persistent,
        wide_layers=wide_layers,
        distributed_optimizer=distributed_optimizer,
        overlap_grad_reduce=overlap_grad_reduce,
        overlap_param_gather=overlap_param_gather,
        overlap_p2p=overlap_p2p,
        overlap_expert=overlap_expert,
        overlap_tensor=overlap_tensor,
        dispatcher=dispatcher,
        context_exchange=context_exchange,
        recompute=recompute,
        cuda_graphs=cuda_graphs,
        transformer=transformer,
        era=era,
        stacks=stacks,
        shapes=shapes,
        cuda_sync=cuda_sync,
        node_size=node_size,
        iterations=iterations,
        clock_skew_ms=clock_skew,
        clock_drift_ppm=clock_drift,
        memory=memory,
        format=format,
        layout=layout,
        gzip=gzip,
        faults=_slowed(
            slow_factor,
            throttle=throttle,
            throttle_from_ms=throttle_from,
            throttle_to_ms=throttle_to,
            slow_group=slow_group,
            slow_node=slow_node,
            slow_stage=slow_stage,
            slow_nic=slow_nic,
            slow_memory=slow_memory,
            other_algorithm=other_algorithm,
            loader_late=loader_late,
            varying_sequences=varying_sequences,
            bursts=bursts,
            slow_gpu=slow_gpu,
            slow_link=slow_link,
            data_stall=data_stall,
            garbage_collection=gc_pause,
            expert_imbalance=expert_imbalance,
            bad_stage_split=bad_stage_split,
            hidden_synchronisation=hidden_sync,
            pageable_copy=pageable_copy,
            graph_break=graph_break,
            tiny_kernels=tiny_kernels,
        ),
        edges=Edges(
            missing_launches=missing_launches,
            zero_durations=zero_durations,
            early_kernels=early_kernels,
            missing_rank=missing_rank,
            truncated_rank=truncated_rank,
            window_from=window_from,
            window_to=window_to,
            shifted_marks=shifted_marks,
            lost_rows_from=lost_rows_from,
            lost_rows_to=lost_rows_to,
            window_rank=window_rank,
        ),
        seed=seed,
    )
    started = time.monotonic()
    with _shown_progress() as progress:
        run(settings, out, workers=workers, progress=progress)
    edges = settings.edges
    oddities = "".join(
        f"; {what} {rank}"
        for what, rank in (("no file of rank", edges.missing_rank), ("a truncated file of rank", edges.truncated_rank))
        if rank is not None
    )
    ranks = "1 rank" if settings.world == 1 else f"{settings.world} ranks"
    steps = "1 step" if iterations == 1 else f"{iterations} steps"
    typer.echo(f"{ranks}, {steps} in {time.monotonic() - started:.1f} s: {out}{oddities}")


def _slowed(factor: float | None, **faults: Any) -> Faults:
    """Faults, of which all that slow something do so by one factor, if one is given."""
    if factor is not None:
        faults |= {field.name: factor for field in fields(Faults) if field.name.endswith("_factor")}
    return Faults(**faults)


@contextmanager
def _shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr, where stderr is a terminal."""
    console = terminal(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield update
