"""How right the classification is: a matrix of simulated jobs, each kernel compared with what really happened.

Run: ``python benchmarks/accuracy.py`` (a few minutes on two cores). It simulates every job of the matrix, classifies
its traces the way the pipeline does, prints the table and writes it to ``docs/accuracy.md``. ``--only PATTERN`` runs
part of the matrix and writes nothing; ``--explain`` says of each job what is wrong or unknown, and by which rule.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.accuracy_page import PAGE, paragraph, write_classification
from traceviz_dag.analyze.accuracy import (
    ASPECTS,
    NOTHING_COMPARED,
    TableAgreement,
    by_category,
    compared,
    shares,
    span_agreement,
    spanning_graphs,
    told_and_right,
)
from traceviz_dag.analyze.microbatches import microbatches_table
from traceviz_dag.classify.kernels import Classification
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import rank_traces, read_topology
from traceviz_dag.pipeline.ranks import classify_trace, read_events
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.read.truth import read_truth, truth_folder
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import (
    ContextExchange,
    Dispatcher,
    Edges,
    Era,
    Faults,
    Format,
    Graphs,
    Layout,
    Offload,
    Precision,
    Recompute,
    Transformer,
)

COMMAND = "python benchmarks/accuracy.py"

SMALL = JobSettings(
    layers=4,
    microbatches=4,
    hidden=1024,
    heads=8,
    feed_forward=4096,
    sequence=1024,
    vocabulary=8192,
    node_size=4,
    clock_skew_ms=1.0,
)
PIPELINE = replace(SMALL, tp=2, pp=2, dp=2)
INTERLEAVED = replace(PIPELINE, vpp=2)
EXPERTS = replace(SMALL, pp=2, dp=2, ep=2)
COMBINED = replace(EXPERTS, vpp=2, overlap_expert=True)
OLD = Era.TORCH_2_3
RECENT = Era.TORCH_2_4

WITH_STACKS = {
    "tp2 dp2": replace(SMALL, tp=2, dp=2),
    "1F1B pp4": replace(SMALL, pp=4, microbatches=8),
    "1F1B tp2 pp2 dp2": PIPELINE,
    "interleaved tp2 pp2 dp2 vpp2": INTERLEAVED,
    "interleaved pp4 vpp2": replace(SMALL, pp=4, vpp=2, layers=8),
    "interleaved pp2 vpp4, 8 micro-batches": replace(SMALL, pp=2, dp=2, vpp=4, layers=8, microbatches=8),
    "rank order with pp before dp": replace(PIPELINE, order="tp-cp-ep-pp-dp"),
    "full recompute, 1F1B": replace(PIPELINE, recompute=Recompute.FULL),
    "full recompute, interleaved, Megatron's own layers": replace(
        INTERLEAVED, recompute=Recompute.FULL, transformer=Transformer.LOCAL, sequence_parallel=False
    ),
    "full recompute, experts": replace(EXPERTS, recompute=Recompute.FULL),
    "selective recompute": replace(PIPELINE, recompute=Recompute.SELECTIVE),
    "output-discarding recompute": replace(PIPELINE, recompute=Recompute.OUTPUT_DISCARD),
    "output-discarding recompute, interleaved": replace(
        INTERLEAVED, recompute=Recompute.OUTPUT_DISCARD, transformer=Transformer.LOCAL
    ),
    "no overlap": replace(PIPELINE, overlap_grad_reduce=False, overlap_param_gather=False),
    "no distributed optimizer": replace(PIPELINE, distributed_optimizer=False),
    "overlapped P2P": replace(INTERLEAVED, overlap_p2p=True),
    "overlapped P2P, pp4": replace(SMALL, pp=4, vpp=2, layers=8, overlap_p2p=True),
    "userbuffers": replace(PIPELINE, overlap_tensor=True),
    "cp2 ring": replace(SMALL, tp=2, cp=2, pp=2, dp=2),
    "cp2 ring, no pipelining": replace(SMALL, tp=2, cp=2),
    "cp2 gathered keys, interleaved": replace(SMALL, cp=2, pp=2, vpp=2, context_exchange=ContextExchange.ALL_GATHER),
    "experts ep2 pp2": EXPERTS,
    "experts etp1 tp2 ep4": replace(SMALL, tp=2, pp=2, dp=4, ep=4, etp=1),
    "experts etp4 tp2 ep2": replace(SMALL, tp=2, dp=4, ep=2, etp=4),
    "experts with cp2, interleaved": replace(SMALL, cp=2, pp=2, dp=2, vpp=2, ep=2),
    "experts over DeepEP": replace(EXPERTS, dispatcher=Dispatcher.DEEPEP),
    "combined 1F1B": replace(SMALL, dp=4, ep=2, overlap_expert=True),
    "combined 1F1B, torch 2.4-2.6": replace(SMALL, dp=4, ep=2, overlap_expert=True, era=RECENT),
    "combined 1F1B, interleaved": COMBINED,
    "combined 1F1B, interleaved pp4": replace(SMALL, pp=4, vpp=2, layers=8, dp=2, ep=2, overlap_expert=True),
    "combined 1F1B, selective recompute": replace(COMBINED, tp=2, recompute=Recompute.SELECTIVE),
    "combined 1F1B, overlapped P2P": replace(COMBINED, overlap_p2p=True),
    "combined 1F1B, DeepEP, vpp4": replace(COMBINED, vpp=4, layers=8, microbatches=8, dispatcher=Dispatcher.DEEPEP),
    "graphs of layers": replace(PIPELINE, cuda_graphs=Graphs.LAYER),
    "graphs of layers, interleaved": replace(INTERLEAVED, cuda_graphs=Graphs.LAYER),
    "graphs of layers with cp2, torch 2.4-2.6": replace(SMALL, cp=2, pp=2, tp=2, cuda_graphs=Graphs.LAYER, era=RECENT),
    "graph of a whole step": replace(PIPELINE, cuda_graphs=Graphs.ITERATION),
    "torch 2.4-2.6, interleaved": replace(INTERLEAVED, era=RECENT),
    "torch 2.4-2.6, experts": replace(EXPERTS, era=RECENT, tp=2, etp=1),
    "fault: slow GPU": replace(PIPELINE, faults=Faults(slow_gpu=3)),
    "fault: slow link": replace(PIPELINE, faults=Faults(slow_link=1)),
    "fault: data stall": replace(PIPELINE, faults=Faults(data_stall=0)),
    "fault: garbage collection": replace(INTERLEAVED, faults=Faults(garbage_collection=2)),
    "fault: expert imbalance": replace(EXPERTS, faults=Faults(expert_imbalance=0.5)),
    "fault: bad stage split": replace(PIPELINE, layers=6, faults=Faults(bad_stage_split=1)),
    "fault: hidden synchronisation": replace(PIPELINE, faults=Faults(hidden_synchronisation=3)),
    "fault: throttled GPU": replace(PIPELINE, faults=Faults(throttle=3, throttle_from_ms=5.0, throttle_to_ms=15.0)),
    "fault: slow group": replace(INTERLEAVED, faults=Faults(slow_group=3)),
    "fault: slow node": replace(PIPELINE, faults=Faults(slow_node=1)),
    "fault: slow stage": replace(INTERLEAVED, faults=Faults(slow_stage=1)),
    "fault: slow network card": replace(PIPELINE, faults=Faults(slow_nic=3)),
    "fault: slow memory": replace(INTERLEAVED, faults=Faults(slow_memory=3)),
    "fault: other algorithm": replace(PIPELINE, faults=Faults(other_algorithm=3)),
    "fault: varying sequences": replace(INTERLEAVED, faults=Faults(varying_sequences=0.5)),
    "fault: bursts": replace(PIPELINE, faults=Faults(bursts=0.4, bursts_every_ms=5.0)),
    "fault: late loader": replace(INTERLEAVED, faults=Faults(loader_late=0, loader_late_ms=2.0)),
    "edges: lost launches": replace(PIPELINE, edges=Edges(missing_launches=0.05)),
    "edges: early kernels, 0 ns, control characters": replace(
        PIPELINE, edges=Edges(early_kernels=True, zero_durations=True, control_characters=True)
    ),
    "edges: no header facts, missing rank": replace(PIPELINE, edges=Edges(without_distributed_info=2, missing_rank=5)),
    "edges: truncated file": replace(PIPELINE, edges=Edges(truncated_rank=6)),
    "two steps in one file": replace(INTERLEAVED, iterations=2, layout=Layout.TORCH_PROFILE),
}

WITHOUT_STACKS = {
    name: replace(settings, stacks=False)
    for name, settings in {
        "tp2 dp2": replace(SMALL, tp=2, dp=2),
        "1F1B pp4": replace(SMALL, pp=4, microbatches=8),
        "1F1B tp2 pp2 dp2": PIPELINE,
        "interleaved tp2 pp2 dp2 vpp2": INTERLEAVED,
        "interleaved pp4 vpp2": replace(SMALL, pp=4, vpp=2, layers=8, microbatches=8),
        "full recompute, 1F1B": replace(PIPELINE, recompute=Recompute.FULL),
        "full recompute, interleaved": replace(INTERLEAVED, recompute=Recompute.FULL),
        "selective recompute, Megatron's own layers": replace(
            PIPELINE, recompute=Recompute.SELECTIVE, transformer=Transformer.LOCAL
        ),
        "output-discarding recompute": replace(PIPELINE, recompute=Recompute.OUTPUT_DISCARD),
        "no overlap": replace(PIPELINE, overlap_grad_reduce=False, overlap_param_gather=False),
        "no distributed optimizer": replace(PIPELINE, distributed_optimizer=False),
        "overlapped P2P": replace(INTERLEAVED, overlap_p2p=True),
        "cp2 ring": replace(SMALL, tp=2, cp=2, pp=2, dp=2),
        "experts ep2 pp2": EXPERTS,
        "experts etp1 tp2 ep4": replace(SMALL, tp=2, pp=2, dp=4, ep=4, etp=1),
        "combined 1F1B": replace(SMALL, dp=4, ep=2, overlap_expert=True),
        "combined 1F1B, interleaved": COMBINED,
        "graphs of layers": replace(PIPELINE, cuda_graphs=Graphs.LAYER),
        "graph of a whole step": replace(PIPELINE, cuda_graphs=Graphs.ITERATION),
        "torch 2.4-2.6, interleaved": replace(INTERLEAVED, era=RECENT),
        "fault: hidden synchronisation": replace(PIPELINE, faults=Faults(hidden_synchronisation=3)),
        "fault: garbage collection": replace(PIPELINE, faults=Faults(garbage_collection=2)),
        "edges: lost launches": replace(PIPELINE, edges=Edges(missing_launches=0.05)),
        "two steps in one file": replace(INTERLEAVED, iterations=2, layout=Layout.TORCH_PROFILE),
    }.items()
}

WITHOUT_DESCRIPTIONS = {
    name: replace(settings, era=OLD)
    for name, settings in {
        "1F1B tp2 pp2 dp2": PIPELINE,
        "interleaved": INTERLEAVED,
        "tp2 dp4, one stage": replace(SMALL, tp=2, dp=4),
        "cp2": replace(SMALL, tp=2, cp=2, pp=2, dp=2),
        "experts": replace(SMALL, tp=2, pp=2, dp=4, ep=4, etp=1),
        "1F1B, stacks off": replace(PIPELINE, stacks=False),
        "1F1B, no topology file": PIPELINE,
        "experts, no topology file": replace(SMALL, tp=2, pp=2, dp=4, ep=4, etp=1),
        "1F1B, no topology file, stacks off": replace(PIPELINE, stacks=False),
    }.items()
}

NSYS = replace(SMALL, iterations=2, format=Format.NSYS)
NSYS_PIPELINE = replace(NSYS, tp=2, pp=2, dp=2)
NSYS_EXPERTS = replace(NSYS, tp=2, pp=2, dp=4, ep=4, etp=1)
AS_NSYS_EXPORTS = {
    "1F1B tp2 pp2 dp2": NSYS_PIPELINE,
    "1F1B tp2 pp2 dp2, no topology file": NSYS_PIPELINE,
    "interleaved tp2 pp2 dp2 vpp2": replace(NSYS_PIPELINE, vpp=2),
    "interleaved tp2 pp2 dp2 vpp2, no topology file": replace(NSYS_PIPELINE, vpp=2),
    "1F1B pp4": replace(NSYS, pp=4, microbatches=8),
    "1F1B pp4, no topology file": replace(NSYS, pp=4, microbatches=8),
    "tp2 dp4": replace(NSYS, tp=2, dp=4),
    "tp2 dp4, no topology file": replace(NSYS, tp=2, dp=4),
    "full recompute": replace(NSYS_PIPELINE, recompute=Recompute.FULL),
    "selective recompute, Megatron's own layers": replace(
        NSYS_PIPELINE, recompute=Recompute.SELECTIVE, transformer=Transformer.LOCAL
    ),
    "no overlap": replace(NSYS_PIPELINE, overlap_grad_reduce=False, overlap_param_gather=False),
    "no distributed optimizer": replace(NSYS_PIPELINE, distributed_optimizer=False),
    "overlapped P2P": replace(NSYS_PIPELINE, vpp=2, overlap_p2p=True),
    "cp2 ring": replace(NSYS_PIPELINE, cp=2),
    "cp2 ring, no topology file": replace(NSYS_PIPELINE, cp=2),
    "cp2 gathered keys, no topology file": replace(NSYS, cp=2, pp=2, context_exchange=ContextExchange.ALL_GATHER),
    "userbuffers, no topology file": replace(NSYS_PIPELINE, overlap_tensor=True),
    "experts ep2 pp2": replace(NSYS, pp=2, dp=2, ep=2),
    "experts ep2 pp2, no topology file": replace(NSYS, pp=2, dp=2, ep=2),
    "experts tp2 etp2 ep2": replace(NSYS_PIPELINE, ep=2),
    "experts tp2 etp2 ep2, no topology file": replace(NSYS_PIPELINE, ep=2),
    "experts etp1 tp2 ep2": replace(NSYS_PIPELINE, ep=2, etp=1),
    "experts etp1 tp2 ep2, no topology file": replace(NSYS_PIPELINE, ep=2, etp=1),
    "experts etp4 tp2 ep2, no topology file": replace(NSYS, tp=2, dp=4, ep=2, etp=4),
    "experts with cp2, interleaved, no topology file": replace(NSYS, cp=2, pp=2, dp=2, vpp=2, ep=2),
    "experts etp1 tp2 ep4": NSYS_EXPERTS,
    "experts etp1 tp2 ep4, no topology file": NSYS_EXPERTS,
    "experts over DeepEP": replace(NSYS, pp=2, dp=2, ep=2, dispatcher=Dispatcher.DEEPEP),
    "combined 1F1B": replace(NSYS, dp=4, ep=2, overlap_expert=True),
    "graphs of layers": replace(NSYS_PIPELINE, cuda_graphs=Graphs.LAYER),
    "graph of a whole step": replace(NSYS_PIPELINE, cuda_graphs=Graphs.ITERATION),
}

WITHOUT_STACKS_AND_GROUPS = {
    name: replace(settings, stacks=False)
    for name, settings in {
        "tp2 dp2": replace(SMALL, tp=2, dp=2),
        "1F1B pp4": replace(SMALL, pp=4, microbatches=8),
        "1F1B tp2 pp2 dp2": PIPELINE,
        "1F1B with agreement after the optimizer": replace(PIPELINE, agreement=True),
        "interleaved tp2 pp2 dp2 vpp2": INTERLEAVED,
        "full recompute, interleaved": replace(INTERLEAVED, recompute=Recompute.FULL),
        "no overlap": replace(PIPELINE, overlap_grad_reduce=False, overlap_param_gather=False),
        "no distributed optimizer": replace(PIPELINE, distributed_optimizer=False),
        "cp2 ring": replace(SMALL, cp=2, pp=2, dp=2),
        "experts ep2 pp2": EXPERTS,
        "combined 1F1B": replace(SMALL, dp=4, ep=2, overlap_expert=True),
        "combined 1F1B, interleaved, overlapped P2P": replace(COMBINED, overlap_p2p=True),
        "torch 2.4-2.6, interleaved": replace(INTERLEAVED, era=RECENT),
        "two steps in one file": replace(INTERLEAVED, iterations=2, layout=Layout.TORCH_PROFILE),
    }.items()
}

SUBSETS = {
    "1F1B tp2 pp2 dp2, rank 0": (PIPELINE, (0,)),
    "1F1B tp2 pp2 dp2, ranks 3 and 4": (PIPELINE, (3, 4)),
    "1F1B with agreement after the optimizer, stacks off, rank 7": (
        replace(PIPELINE, agreement=True, stacks=False),
        (7,),
    ),
    "interleaved, stacks off, rank 5": (replace(INTERLEAVED, stacks=False), (5,)),
    "experts, no topology file, rank 0": (EXPERTS, (0,)),
    "experts, no topology file, stacks off, ranks 1 and 2": (replace(EXPERTS, stacks=False), (1, 2)),
    "combined 1F1B, interleaved, stacks off, rank 3": (replace(COMBINED, stacks=False), (3,)),
    "torch 2.3, no topology file, stacks off, rank 2": (replace(PIPELINE, era=OLD, stacks=False), (2,)),
}

BRIEF = replace(SMALL, microbatches=2)
FEATURES = {
    "Megatron-FSDP, tp2 dp2": replace(BRIEF, tp=2, dp=2, fsdp=True),
    "Megatron-FSDP, full recompute, dp4, Megatron's own layers": replace(
        BRIEF, dp=4, fsdp=True, recompute=Recompute.FULL, transformer=Transformer.LOCAL
    ),
    "Megatron-FSDP, interleaved, experts": replace(SMALL, pp=2, vpp=2, dp=4, ep=2, fsdp=True),
    "offloaded modules, interleaved tp2 pp2 vpp2": replace(SMALL, tp=2, pp=2, vpp=2, layers=8, offload=Offload.MODULES),
    "offloaded layers, dp2": replace(BRIEF, dp=2, offload=Offload.LAYERS),
    "FP8, delayed scaling, tp2 pp2 dp2": replace(PIPELINE, precision=Precision.FP8),
    "FP8, current scaling, tp2 pp2, experts": replace(SMALL, tp=2, pp=2, dp=2, ep=2, precision=Precision.FP8_CURRENT),
    "FP8, blocks, full recompute": replace(BRIEF, dp=2, precision=Precision.FP8_BLOCKWISE, recompute=Recompute.FULL),
    "MXFP8, interleaved pp2 vpp2": replace(SMALL, pp=2, vpp=2, dp=2, precision=Precision.MXFP8),
    "NVFP4, Megatron-FSDP, offloaded modules, tp2 dp2": replace(
        BRIEF, tp=2, dp=2, precision=Precision.NVFP4, fsdp=True, offload=Offload.MODULES
    ),
}
"""What Megatron-core added in 2025 and 2026 to how it shards, moves and multiplies."""

TODAY = {
    "stacks": {**FEATURES, "Megatron-FSDP, torch 2.4-2.6": replace(BRIEF, dp=4, fsdp=True, era=RECENT)},
    "no stacks": {name: replace(settings, stacks=False) for name, settings in FEATURES.items()},
    "no descriptions": {
        name: replace(settings, era=OLD)
        for name, settings in {
            "FP8, delayed scaling": replace(PIPELINE, precision=Precision.FP8),
            "FP8, delayed scaling, stacks off": replace(BRIEF, tp=2, dp=2, precision=Precision.FP8, stacks=False),
            "FP8, delayed scaling, no topology file": replace(PIPELINE, precision=Precision.FP8),
            "FP8, delayed scaling, no topology file, stacks off": replace(
                BRIEF, tp=2, dp=2, precision=Precision.FP8, stacks=False
            ),
            "offloaded layers": replace(BRIEF, dp=2, offload=Offload.LAYERS),
        }.items()
    },
    "nsys": {
        "Megatron-FSDP, NVFP4, offloaded modules": replace(
            NSYS, tp=2, dp=2, microbatches=2, precision=Precision.NVFP4, fsdp=True, offload=Offload.MODULES
        ),
        "FP8, delayed scaling": replace(NSYS_PIPELINE, precision=Precision.FP8),
    },
    "no stacks, no groups": {
        name: replace(settings, stacks=False)
        for name, settings in {
            "Megatron-FSDP, dp4": replace(BRIEF, dp=4, fsdp=True),
            "Megatron-FSDP, tp2 dp2": replace(BRIEF, tp=2, dp=2, fsdp=True),
            "FP8, delayed scaling, tp2 dp2": replace(BRIEF, tp=2, dp=2, precision=Precision.FP8),
            "FP8, current scaling, tp2 dp2": replace(BRIEF, tp=2, dp=2, precision=Precision.FP8_CURRENT),
        }.items()
    },
}
"""Of each part, jobs with these features."""

TWO_STEPS = {"iterations": 2, "layout": Layout.TORCH_PROFILE}
CUTS: dict[str, tuple[dict[str, Any], Edges]] = {
    "starts in a step": ({}, Edges(window_from=0.4)),
    "stops in a step": ({}, Edges(window_to=0.6)),
    "starts and stops in a step": ({}, Edges(window_from=0.2, window_to=0.7)),
    "from step to step": (TWO_STEPS, Edges(window_from=0.2, window_to=0.7)),
    "shifted marks": (TWO_STEPS, Edges(shifted_marks=0.4)),
    "one shifted mark": (TWO_STEPS, Edges(shifted_marks=0.7, window_from=0.35, window_to=0.85)),
    "lost rows": ({}, Edges(lost_rows_from=0.3, lost_rows_to=0.45)),
    "one rank starts in a step": ({}, Edges(window_from=0.4, window_rank=1)),
}
CUT_JOBS = {
    "no pipelining": replace(SMALL, tp=2),
    "1F1B": replace(SMALL, pp=2),
    "interleaved": replace(SMALL, pp=2, vpp=2),
}
CUT_WINDOWS = {
    f"{cut}, {job}{'' if stacks else ', stacks off'}": replace(
        settings, microbatches=8, stacks=stacks, edges=edges, **changes
    )
    for job, settings in CUT_JOBS.items()
    for stacks in (True, False)
    for cut, (changes, edges) in CUTS.items()
}

HYBRIDEP = replace(EXPERTS, dispatcher=Dispatcher.HYBRIDEP)
WIDE_HYBRIDEP = replace(SMALL, tp=2, dp=4, ep=4, dispatcher=Dispatcher.HYBRIDEP)
FURTHER = replace(PIPELINE, mtp_layers=1)
HYBRID = replace(PIPELINE, layers=8, hybrid_pattern="M-M*")
HYBRID_CONTEXT = replace(SMALL, cp=2, pp=2, layers=8, hybrid_pattern="M-M*")
SIZED = replace(SMALL, dp=4, pp=2, dynamic_context=True)
SIZED_TENSOR = replace(SMALL, tp=2, cp=2, dp=2, dynamic_context=True)
MODELS_OF_TODAY: dict[str, dict[str, JobSettings]] = {
    "stacks": {
        "experts over HybridEP": HYBRIDEP,
        "experts over HybridEP, tp2 etp2 ep4": WIDE_HYBRIDEP,
        "combined 1F1B, HybridEP": replace(COMBINED, dispatcher=Dispatcher.HYBRIDEP),
        "multi-token prediction": FURTHER,
        "two further tokens, interleaved, experts": replace(EXPERTS, vpp=2, mtp_layers=2),
        "hybrid model": HYBRID,
        "hybrid model with experts, interleaved": replace(EXPERTS, vpp=2, layers=8, hybrid_pattern="ME*-"),
        "hybrid model, cp2": HYBRID_CONTEXT,
        "dynamic context": SIZED,
        "dynamic context, tp2 cp2 dp2": SIZED_TENSOR,
    },
    "no stacks": {
        "experts over HybridEP": replace(HYBRIDEP, stacks=False),
        "experts over HybridEP, tp2 etp2 ep4": replace(WIDE_HYBRIDEP, stacks=False),
        "combined 1F1B, HybridEP": replace(COMBINED, dispatcher=Dispatcher.HYBRIDEP, stacks=False),
        "multi-token prediction": replace(FURTHER, stacks=False),
        "multi-token prediction, full recompute": replace(FURTHER, recompute=Recompute.FULL, stacks=False),
        "two further tokens, interleaved, experts": replace(EXPERTS, vpp=2, mtp_layers=2, stacks=False),
        "hybrid model": replace(HYBRID, stacks=False),
        "hybrid model, full recompute": replace(HYBRID, recompute=Recompute.FULL, stacks=False),
        "hybrid model, cp2": replace(HYBRID_CONTEXT, stacks=False),
        "hybrid model with experts, cp2": replace(
            HYBRID_CONTEXT, dp=2, ep=2, hybrid_pattern="MEM*", layers=4, stacks=False
        ),
        "dynamic context": replace(SIZED, stacks=False),
        "dynamic context, tp2 cp2 dp2": replace(SIZED_TENSOR, stacks=False),
        "dynamic context, gathered keys, interleaved": replace(
            SIZED, vpp=2, context_exchange=ContextExchange.ALL_GATHER, stacks=False
        ),
    },
    "no descriptions": {
        "multi-token prediction, stacks off": replace(FURTHER, era=OLD, stacks=False),
        "hybrid model, cp2, no topology file, stacks off": replace(HYBRID_CONTEXT, era=OLD, stacks=False),
        "hybrid model with experts, cp2, stacks off": replace(
            HYBRID_CONTEXT, dp=2, ep=2, hybrid_pattern="MEM*", layers=4, era=OLD, stacks=False
        ),
        "dynamic context, stacks off": replace(SIZED, era=OLD, stacks=False),
        "dynamic context, no topology file, stacks off": replace(SIZED, era=OLD, stacks=False),
    },
    "nsys": {
        "experts over HybridEP": replace(NSYS, pp=2, dp=2, ep=2, dispatcher=Dispatcher.HYBRIDEP),
        "multi-token prediction": replace(NSYS, pp=2, dp=2, mtp_layers=1),
        "hybrid model": replace(NSYS, pp=2, dp=2, layers=8, hybrid_pattern="M-M*"),
        "dynamic context": replace(NSYS, pp=2, dp=4, dynamic_context=True),
    },
    "no stacks, no groups": {
        "experts over HybridEP": replace(HYBRIDEP, stacks=False),
        "multi-token prediction": replace(FURTHER, stacks=False),
        "hybrid model, cp2": replace(HYBRID_CONTEXT, stacks=False),
        "dynamic context": replace(SIZED, stacks=False),
    },
}
"""What has come to Megatron in 2026; at the end of the matrix, so that the jobs before keep their seeds."""


@dataclass(frozen=True, slots=True)
class Target:
    """What one part of the matrix must reach, as shares of kernel time; None where nothing is asked."""

    title: str
    aim: str
    right: dict[str, float] = field(default_factory=dict)
    microbatch_with_stages: float | None = None
    each_category: float | None = None
    wrong: float = 0.001
    wrong_aspects: tuple[str, ...] = ASPECTS


TARGETS = {
    "stacks": Target(
        "Call stacks on",
        "at least 99.9 % of kernel time in the right category and micro-batch, at least 99 % of each category's own",
        right={"category": 0.999, "microbatch": 0.999},
        each_category=0.99,
    ),
    "no stacks": Target(
        "Call stacks off, operators and threads on",
        "phase and dimension at least 99 %, micro-batch at least 95 % with several stages",
        right={"phase": 0.99, "dimension": 0.99},
        microbatch_with_stages=0.95,
    ),
    "no descriptions": Target(
        "No group descriptions (torch 2.3)",
        "what several groups could be stays unknown with its candidates",
    ),
    "nsys": Target(
        "Nsight Systems exports",
        "phase and dimension at least 99 %, micro-batch at least 95 % with several stages; if a graph holds whole "
        "steps, right or unknown",
        right={"phase": 0.99, "dimension": 0.99},
        microbatch_with_stages=0.95,
    ),
    "no stacks, no groups": Target(
        "Neither call stacks nor process groups",
        "what kernel names, operators and threads show",
    ),
    "subsets": Target("Traces of some ranks only", "what the ranks that were read show"),
    "cut windows": Target(
        "Windows that do not hold whole training steps",
        "no wrong micro-batch; what the window does not show is unknown",
        wrong_aspects=("microbatch", "chunk"),
    ),
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """One job of the matrix, and the part that it belongs to."""

    part: str
    name: str
    settings: JobSettings
    ranks: tuple[int, ...] | None = None

    @property
    def topology_file(self) -> bool:
        return self.groups and "no topology file" not in self.name

    @property
    def groups(self) -> bool:
        """Whether the traces name process groups."""
        return self.part != "no stacks, no groups"


def matrix() -> list[Configuration]:
    """All jobs; each has a seed of its own, so that line numbers, frames between and durations vary."""
    parts = {
        "stacks": WITH_STACKS,
        "no stacks": WITHOUT_STACKS,
        "no descriptions": WITHOUT_DESCRIPTIONS,
        "nsys": AS_NSYS_EXPORTS,
        "no stacks, no groups": WITHOUT_STACKS_AND_GROUPS,
    }
    rows: list[tuple[str, str, JobSettings, tuple[int, ...] | None]] = [
        (part, name, settings, None) for part, jobs in parts.items() for name, settings in jobs.items()
    ]
    rows += [("subsets", name, settings, ranks) for name, (settings, ranks) in SUBSETS.items()]
    rows += [("cut windows", name, settings, None) for name, settings in CUT_WINDOWS.items()]
    # Last, so that the others keep their seeds.
    todays = [(part, jobs) for table in (TODAY, MODELS_OF_TODAY) for part, jobs in table.items()]
    rows += [(part, name, settings, None) for part, jobs in todays for name, settings in jobs.items()]
    return [
        Configuration(part, name, replace(settings, seed=101 + index), ranks)
        for index, (part, name, settings, ranks) in enumerate(rows)
    ]


@dataclass(frozen=True, slots=True)
class Score:
    """One job's figures; shares are of kernel time.

    Attributes:
        spanning: the share of kernel time in CUDA graphs that span micro-batches, which the other figures leave out.
        right, wrong: per aspect; what is neither is not reported. Wrong is the larger share: of all kernel time,
            and of the time of computation and memory, which long waits of communication would hide.
        unknown: the share of which category, phase, dimension, micro-batch or chunk is not known, where that is most.
        non_communication: of computation and memory, the share right in category and micro-batch.
        spans: micro-batches whose start and end equal the truth, to the nanosecond.
        right_category_and_microbatch: both at once.
        worst_category: (category, share of its own time that is right).
        candidates: of the time of communications of unknown dimension, the share that names its candidates.
        findings: what is wrong or not reported, as text.
    """

    configuration: Configuration
    kernels: int
    spanning: float
    read: float
    right: dict[str, float]
    wrong: dict[str, float]
    unknown: float
    non_communication: float
    spans: TableAgreement
    right_category_and_microbatch: float
    worst_category: tuple[str, float]
    candidates: float
    findings: str = ""

    @property
    def complete(self) -> bool:
        """Whether nothing is unknown, and no graph leaves out micro-batches."""
        return self.read == 1 and self.spanning == 0 and all(self.right[aspect] == 1 for aspect in ASPECTS)

    def misses(self) -> list[str]:
        """Which targets of its part the job misses."""
        target = TARGETS[self.configuration.part]
        wrong = [f"wrong {aspect}" for aspect in target.wrong_aspects if self.wrong[aspect] >= target.wrong]
        if self.configuration.part == "nsys" and self.spanning > 0.5:
            # Only ends of iterations are left, whose borders the optimizer's kernels alone show: unknown is no miss.
            return wrong
        found = [aspect for aspect, least in target.right.items() if self.right[aspect] < least]
        if "microbatch" in target.right and self.right_category_and_microbatch < target.right["microbatch"]:
            found.append("category and microbatch")
        stages = self.configuration.settings.pp > 1
        if stages and target.microbatch_with_stages and self.right["microbatch"] < target.microbatch_with_stages:
            found.append("microbatch")
        if self.complete and self.spans.equal < self.spans.expected + self.spans.unexpected:
            found.append("spans")
        if target.each_category and self.worst_category[1] < target.each_category:
            found.append(self.worst_category[0])
        return found + wrong


def compared_exports(folder: Path, home: Path) -> Compared:
    """Every kernel of the truth beside what the classification of the job's Nsight Systems exports says of it."""
    rules = load_rules()
    tables = []
    # The events of a rank are those of the whole capture, whichever of its iterations is asked for.
    inputs = inputs_below([folder], home=home)[0]
    topology = read_topology(inputs, home=home)
    for trace in rank_traces(inputs, {entry.rank for entry in inputs.ranks}, home):
        classified = classify_trace(read_events(trace, topology, rules), trace.rank, topology, rules)
        truth = read_truth(truth_folder(folder), trace.rank).to_pandas()
        tables.append(_compared_file(classified, truth, trace.rank, trace.rank))
    return _united(tables)


Compared = tuple[pd.DataFrame, TableAgreement]
"""Kernels beside their truth, and how the spans of micro-batches agree."""


def _compared_file(classified: Classification, truth: pd.DataFrame, rank: int, file: int) -> Compared:
    table = compared(classified.kernels.to_pandas(), truth).assign(rank=rank, file=file)
    in_one_microbatch = table[~spanning_graphs(table)]
    return table, span_agreement(in_one_microbatch, microbatches_table(classified.kernels))


def _united(parts: list[Compared]) -> Compared:
    tables, spans = zip(*parts, strict=True)
    return pd.concat(tables, ignore_index=True), sum(spans, NOTHING_COMPARED)


def compared_job(settings: JobSettings, folder: Path) -> Compared:
    """Every kernel of the truth beside what the classification says of it; see ``analyze.accuracy.compared``."""
    rules = load_rules()
    tables = []
    files: set[str] = set()
    for inputs in inputs_below([folder]):
        topology = read_topology(inputs)
        for entry in inputs.ranks:
            if entry.path not in files:
                files.add(entry.path)
                classified = classify_trace(read_kineto(Path(entry.path)), entry.rank, topology, rules)
                of_file = inputs.iteration if settings.layout is Layout.ITERATION else None
                truth = read_truth(truth_folder(folder), entry.rank, of_file).to_pandas()
                tables.append(_compared_file(classified, truth, entry.rank, len(files)))
    return _united(tables)


def score(configuration: Configuration, comparison: Compared) -> Score:
    """The figures of one job."""
    table, spans = comparison
    read = table.kernel_id.notna()
    table = table[read]
    wrong = shares(table).wrong
    of_the_rest = shares(table[table.kind_true != "communication"]).wrong
    wrong = {aspect: max(wrong[aspect], of_the_rest[aspect]) for aspect in ASPECTS}
    spanning = spanning_graphs(table, ("rank", "file"))
    in_graphs = float(table.duration_ns_true[spanning].sum() / max(int(table.duration_ns_true.sum()), 1))
    table = table[~spanning]
    time_ns = table.duration_ns_true
    total = max(int(time_ns.sum()), 1)
    correct = {aspect: told_and_right(table, aspect)[1] for aspect in ASPECTS}
    right = shares(table).right
    worst = min((row for row in by_category(table) if row["time_ns"]), key=lambda row: row["right"])
    unknown = (table.kind_true == "communication") & (table.dimension == "unknown")
    with_candidates = unknown & table.dimension_candidates.notna()
    whole = correct["category"] & correct["microbatch"]
    rest = table.kind_true != "communication"
    return Score(
        configuration=configuration,
        kernels=len(table),
        spanning=in_graphs,
        read=float(read.mean()),
        right=right,
        wrong=wrong,
        unknown=max(1 - right[aspect] - shares(table).wrong[aspect] for aspect in ASPECTS),
        non_communication=float(time_ns[whole & rest].sum() / max(int(time_ns[rest].sum()), 1)),
        spans=spans,
        right_category_and_microbatch=float(time_ns[whole].sum() / total),
        worst_category=(worst["category"], worst["right"]),
        candidates=float(time_ns[with_candidates].sum() / time_ns[unknown].sum()) if time_ns[unknown].sum() else 1.0,
        findings=_findings(table, correct, total),
    )


def _findings(table: pd.DataFrame, correct: dict[str, pd.Series], total: int) -> str:
    """What is not right, grouped, in percent of kernel time."""
    lines = []
    for aspect, same in correct.items():
        columns = [aspect, f"{aspect}_true", "kind_true", "phase", "phase_true", "phase_rule", "dimension_true"]
        columns += ["dimension", "dimension_rule", "role"]
        columns = list(dict.fromkeys(columns))
        bad = table[~same]
        if not len(bad):
            continue
        groups = bad.groupby(columns, dropna=False).duration_ns_true.agg(["size", "sum"]).reset_index()
        groups["percent"] = groups.pop("sum") / total * 100
        lines.append(f"{aspect}:\n{groups.sort_values('percent', ascending=False).head(12).to_string(index=False)}")
    return "\n".join(lines)


GROUP_FACTS = ("Process Group Name", "Process Group Description", "Process Group Ranks", "Group size")


def take_groups_out(folder: Path) -> None:
    """Take from each trace below a folder all that it says of process groups."""
    for path in folder.rglob("*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        for name in ("pg_config", "pg_count"):
            trace.get("distributedInfo", {}).pop(name, None)
        for event in trace["traceEvents"]:
            for name in GROUP_FACTS:
                event.get("args", {}).pop(name, None)
        path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


def keep_ranks(folder: Path, ranks: tuple[int, ...]) -> None:
    """Delete the traces of all other ranks."""
    for path in folder.glob("iteration_*/rank_*.json.gz"):
        if int(path.name.split("_")[1]) not in ranks:
            path.unlink()


def run(configuration: Configuration) -> Score:
    """Simulate one job in a temporary folder, classify it, compare."""
    with tempfile.TemporaryDirectory() as name:
        folder = simulate(configuration.settings, Path(name) / "run", workers=1)
        if not configuration.topology_file:
            for path in folder.glob("unique_parallel_groups_*.txt"):
                path.unlink()
        if not configuration.groups:
            take_groups_out(folder)
        if configuration.ranks is not None:
            keep_ranks(folder, configuration.ranks)
        if configuration.part == "nsys":
            return score(configuration, compared_exports(folder, Path(name) / "home"))
        return score(configuration, compared_job(configuration.settings, folder))


def scores(configurations: list[Configuration], workers: int) -> Iterator[Score]:
    """The scores of some jobs, in order."""
    if workers == 1:
        yield from map(run, configurations)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(run, configurations)


COLUMNS = (
    "job",
    "kernels",
    "category",
    "phase",
    "dimension",
    "micro-batch",
    "chunk",
    "non-communication time",
    "micro-batch spans",
    "least category",
    "unknown",
    "wrong",
    "",
)
_WHOLE = (*["100"] * 8, "0", "0", "")
"""The cells behind the kernels where all is right."""


def row(one: Score) -> list[str]:
    """A score as cells of the table."""
    worst = max(ASPECTS, key=lambda aspect: one.wrong[aspect])
    cells = [one.configuration.name, f"{one.kernels:,}"]
    cells += [percent(one.right[aspect]) for aspect in ASPECTS]
    cells.append(percent(one.non_communication))
    expected = one.spans.expected + one.spans.unexpected
    cells.append(percent(one.spans.equal / expected) if expected else "-")
    cells.append(f"{percent(one.worst_category[1])} {one.worst_category[0]}" if one.worst_category[1] < 1 else "100")
    cells.append(share_of(one.unknown))
    cells.append(f"{share_of(one.wrong[worst])} {worst}" if one.wrong[worst] else "0")
    return [*cells, f"misses: {', '.join(one.misses())}" if one.misses() else ""]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a part, with the columns that differ from 100; jobs in which nothing does are only named."""
    whole = [one[0] for one in rows if tuple(one[2:]) == _WHOLE]
    rest = [one for one in rows if tuple(one[2:]) != _WHOLE]
    alike = Counter(map(_differing, rest))
    lines = [_in_words(one) for one in rest if alike[_differing(one)] == 1]
    in_table = [one for one in rest if alike[_differing(one)] > 1]
    if in_table:
        columns = [0, *sorted({column for one in in_table for column in _differing(one)})]
        lines += [""] * bool(lines) + ["| " + " | ".join(COLUMNS[column] for column in columns) + " |"]
        lines += ["| --- " + "| ---: " * (len(columns) - 1) + "|"]
        lines += ["| " + " | ".join(one[column] for column in columns) + " |" for one in in_table]
    if whole:
        text = f"All is right in {len(whole)} jobs: {'; '.join(whole)}."
        lines += [*[""] * bool(lines), paragraph(text)]
    return lines


def _differing(cells: Sequence[str]) -> tuple[int, ...]:
    """The columns of a row that are not those of a job in which all is right."""
    return tuple(column for column, cell in enumerate(cells[2:], 2) if cell != _WHOLE[column - 2])


def _in_words(cells: Sequence[str]) -> str:
    named = [(COLUMNS[column], cells[column]) for column in _differing(cells)]
    words = (f"no {name}" if cell == "-" else f"{name} {cell}".strip() for name, cell in named)
    return paragraph(f"- {cells[0]}: {', '.join(words)}", indent="  ")


def worst_of_jobs(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Per window and use of call stacks, the worst cell of each column over the jobs of ``CUT_JOBS``."""
    windows: dict[str, list[Sequence[str]]] = {}
    for one in rows:
        cut, _, *stacks = one[0].split(", ")
        windows.setdefault(", ".join((cut, *stacks)), []).append(one)
    worst = []
    for name, jobs in windows.items():
        columns = list(zip(*jobs, strict=True))[2:]
        choices = [min] * (len(columns) - 3) + [max] * 2
        cells = [choose(column, key=_number) for choose, column in zip(choices, columns, strict=False)]
        worst.append([name, "", *cells, "; ".join(filter(None, columns[-1]))])
    return worst


def _number(cell: str) -> float:
    return float(cell.split(maxsplit=1)[0])


def percent(share: float) -> str:
    """A share in percent; only a whole reads 100."""
    text = f"{np.floor(share * 100_000) / 1000:.3f}"
    return text.rstrip("0").rstrip(".")


def share_of(share: float) -> str:
    """A share in percent that is small at best; only nothing reads 0."""
    return "0" if share < 1e-12 else f"{np.ceil(share * 100_000) / 1000:g}"


def markdown(found: list[Score], seconds: float) -> str:
    """The document."""
    lines = [
        "# Accuracy",
        "",
        paragraph(
            "How far to trust what traceviz prints. Each section compares it with jobs whose truth is known, and names "
            "the program that does so. Except under the headings that say *real*, the jobs are "
            "[simulated](simulator.md): they follow Megatron's sources, and no machine ran them."
        ),
        "",
        "## Classification",
        "",
        paragraph(
            f"`{COMMAND}` simulates {len(found)} Megatron jobs of up to {max(one.kernels for one in found):,} "
            "kernels, classifies them as the pipeline does, and compares every kernel with what the simulator knows "
            f"of it ({seconds:.0f} s on two cores). Shares are percent of kernel time."
        ),
        "",
        "| column | meaning |",
        "| --- | --- |",
        "| category, phase, dimension, micro-batch, chunk | right in this aspect |",
        "| unknown | not classified, in the aspect with the largest share |",
        "| wrong | reported but untrue, in the aspect with the largest share (of all or of non-communication time) |",
        "| non-communication time | computation and memory kernels that are right in category and micro-batch |",
        "| micro-batch spans | forward, backward and recompute spans whose start and end are right to the nanosecond |",
        "| least category | the category with the lowest share, and that share |",
        "",
        "Columns are left out where they are 100, or 0 for unknown and wrong.",
        "",
        paragraph(
            "If one launch of a CUDA graph spans several micro-batches, its kernels stay unknown. The columns leave "
            "them out, but untrue reports about them count as wrong."
        ),
        "",
        paragraph(
            "Without call stacks the result rests in part on sequence numbers, which the simulator writes more "
            "cleanly than a real capture. On recorded jobs whose stacks were removed, "
            "`tests/classify/test_ground_truth.py` accepts less: unknown under 1 %, wrong under 0.1 %."
        ),
    ]
    for part, target in TARGETS.items():
        of_part = [one for one in found if one.configuration.part == part]
        if not of_part:
            continue
        aspects = "" if target.wrong_aspects == ASPECTS else f"{' and '.join(target.wrong_aspects)} "
        aim = f"Aim: {target.aim}; {aspects.replace('microbatch', 'micro-batch')}wrong under 0.1 %."
        lines += ["", f"### {target.title}", "", paragraph(aim), ""]
        rows = [row(one) for one in of_part]
        if part == "cut windows":
            lines += [f"Each row has the worst figures of three jobs: {', '.join(CUT_JOBS)}.", ""]
            rows = worst_of_jobs(rows)
        lines += table(rows)
        if part == "no stacks, no groups":
            lines += [
                "",
                paragraph(
                    "These traces have no names, descriptions, ranks or sizes of process groups. A communication "
                    "whose dimension neither operators nor kernel names show stays unknown. So does its micro-batch, "
                    "if it could belong to the whole step."
                ),
            ]
        if part == "no descriptions":
            least = min(one.candidates for one in of_part)
            lines += [
                "",
                f"Candidates are named for at least {percent(least)} % of the time of unknown dimension, in each job.",
            ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="run the jobs whose 'part: name' matches this glob, and write nothing")
    parser.add_argument("--explain", action="store_true", help="say what is wrong or unknown, and by which rule")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    chosen = [one for one in matrix() if not given.only or fnmatch(f"{one.part}: {one.name}", given.only)]
    started = time.perf_counter()
    found = []
    for one in scores(chosen, given.workers):
        found.append(one)
        print(f"{one.configuration.part:16}", " | ".join(row(one)), flush=True)
        if one.read < 1:
            print(f"{'':16}  read {percent(one.read)} % of the kernels")
        if given.explain and one.findings:
            print(one.findings, flush=True)
    seconds = time.perf_counter() - started
    if not given.only:
        write_classification(markdown(found, seconds), given.out)
    missed = [one for one in found if one.misses()]
    print(f"{len(found)} jobs in {seconds:.0f} s, {len(missed)} miss a target")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
