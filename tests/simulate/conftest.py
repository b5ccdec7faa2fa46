"""Small simulated jobs that several tests look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from isal import igzip

from tests.made_once import made_once
from tests.sets import fast
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import (
    ContextExchange,
    Dispatcher,
    Era,
    Faults,
    Graphs,
    Offload,
    Precision,
    Recompute,
    Transformer,
)

SMALL = JobSettings(
    layers=4, microbatches=4, hidden=1024, heads=8, feed_forward=4096, sequence=1024, vocabulary=8192, node_size=4
)


def small(**changes) -> JobSettings:
    """A small job; the changes make it the one that a test needs."""
    return replace(SMALL, **changes)


def told(**changes) -> JobSettings:
    """A small job whose traces have rows of synchronisation."""
    return small(cuda_sync=True, **changes)


CONFIGURATIONS = {
    "single": small(),
    "plain_pipeline": small(pp=4, recompute=Recompute.FULL),
    "megatron_layers": small(
        tp=2, pp=2, vpp=2, recompute=Recompute.FULL, sequence_parallel=False, transformer=Transformer.LOCAL
    ),
    "interleaved": small(tp=2, pp=2, dp=2, vpp=2, recompute=Recompute.FULL),
    "no_overlap": told(
        tp=2, pp=2, dp=2, overlap_grad_reduce=False, overlap_param_gather=False, recompute=Recompute.SELECTIVE
    ),
    "overlapped_p2p": told(pp=2, vpp=2, tp=2, overlap_p2p=True, recompute=Recompute.OUTPUT_DISCARD),
    "experts": told(tp=2, dp=4, ep=4, etp=1),
    "experts_on_wider_tensor": small(tp=2, dp=4, ep=2, etp=4, layers=2, faults=Faults(expert_imbalance=0.3)),
    "deepep": told(pp=2, dp=2, ep=2, dispatcher=Dispatcher.DEEPEP),
    "hybridep": told(tp=2, dp=4, ep=4, dispatcher=Dispatcher.HYBRIDEP),
    "combined": told(pp=2, vpp=2, dp=2, ep=2, overlap_expert=True),
    "combined_overlapped_p2p": told(pp=2, vpp=2, dp=2, ep=2, overlap_expert=True, overlap_p2p=True),
    "combined_alone": small(dp=2, ep=2, overlap_expert=True, era=Era.TORCH_2_4),
    "further_tokens": told(tp=2, pp=2, vpp=2, mtp_layers=2, recompute=Recompute.FULL),
    "hybrid": small(tp=2, cp=2, pp=2, dp=2, ep=2, etp=1, hybrid_pattern="ME*-"),
    "dynamic_context": told(tp=2, cp=2, dp=2, pp=2, dynamic_context=True),
    "ring_attention": told(cp=2, tp=2, pp=2, layers=2),
    "gathered_attention": small(cp=4, context_exchange=ContextExchange.ALL_GATHER),
    "userbuffers": told(tp=2, pp=2, overlap_tensor=True),
    "layer_graphs": small(tp=2, pp=2, cuda_graphs=Graphs.LAYER),
    "whole_graph": small(tp=2, pp=2, cuda_graphs=Graphs.ITERATION),
    "old_torch": small(tp=2, pp=2, dp=2, layers=2, era=Era.TORCH_2_3),
    "without_stacks": told(tp=2, pp=2, dp=2, vpp=2, stacks=False),
    "skewed": small(tp=2, pp=2, dp=2, layers=2, clock_skew_ms=3.0, clock_drift_ppm=20.0, faults=Faults(slow_gpu=3)),
    "faulty_hosts": told(pp=2, dp=2, faults=Faults(data_stall=0, garbage_collection=1, hidden_synchronisation=3)),
    "slow_link": small(pp=2, dp=2, faults=Faults(slow_link=1)),
    "sharded": told(tp=2, dp=2, layers=3, microbatches=2, fsdp=True, offload=Offload.MODULES, precision=Precision.FP8),
    "offloaded_layers": told(dp=2, microbatches=2, offload=Offload.LAYERS, precision=Precision.FP8_CURRENT),
    "bad_split": small(pp=2, layers=6, faults=Faults(bad_stage_split=1)),
}

SOME_CONFIGURATIONS = fast(CONFIGURATIONS, *list(CONFIGURATIONS)[1::3])
"""All, of which a third is in the fast set: pipelines, experts, context rings, graphs, traces without stacks."""


@dataclass(frozen=True)
class Job:
    """A simulated job on disk."""

    settings: JobSettings
    folder: Path

    @property
    def iteration(self) -> int:
        return self.settings.first_iteration

    def trace_path(self, rank: int) -> Path:
        return next((self.folder / f"iteration_{self.iteration}").glob(f"rank_{rank:04d}_*"))

    def trace(self, rank: int) -> dict:
        return _decoded(self.trace_path(rank))

    def truth(self, rank: int) -> pd.DataFrame:
        return pd.read_parquet(self.folder / "truth" / f"rank_{rank:04d}.parquet")

    def truths(self) -> pd.DataFrame:
        return pd.concat([self.truth(rank) for rank in range(self.settings.world)], ignore_index=True)


@cache
def _decoded(path: Path) -> dict:
    return decode(path.read_bytes())


def decode(raw: bytes) -> dict:
    """A trace with exact times: JSON numbers with a fraction become Decimals."""
    text = igzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    return msgspec.json.Decoder(float_hook=Decimal).decode(text)


def nanoseconds(value) -> int:
    """A time of a trace as integer ns."""
    return int(Decimal(value) * 1000)


@pytest.fixture(scope="session")
def job_of() -> Callable[[str], Job]:
    """Configuration name → its job, simulated once a run of the tests."""

    def get(name: str) -> Job:
        settings = CONFIGURATIONS[name]
        return Job(settings, made_once(f"simulated_{name}", lambda folder: simulate(settings, folder, workers=1)))

    return get
