"""What kind of step a rank ran: training, a forward pass alone, inference, or replays of CUDA graphs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.classify.autograd_links import AUTOGRAD_NODE
from traceviz_dag.read.events import TraceEvents
from traceviz_dag.vocabulary import Kind, Phase, StepKind

_SERVING = re.compile(r"vllm::|vllm/|sglang/|execute_context_\d|tensorrt_llm/|trtllm::")
"""Operators, files and annotations of engines that serve models."""
_MOST = 0.5


def step_kind(
    events: TraceEvents, kernels: pa.Table, windows: Sequence[tuple[int, int, int]], *, whole: bool
) -> StepKind | None:
    """The kind of what some kernels of a trace ran, or None where nothing shows.

    Args:
        kernels: rows of table ``kernels``, of one iteration.
        windows: (number, start, end) of its training steps, ns.
        whole: whether the trace holds this iteration from its start to its end.
    """
    if not kernels.num_rows:
        return None
    phase = kernels["phase"].cast(pa.string())
    phases = set(pc.unique(phase).to_pylist())
    if phases & {Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER}:
        return StepKind.TRAINING
    computation = pc.equal(kernels["kind"].cast(pa.string()), Kind.COMPUTATION)
    untold = pc.and_(computation, pc.and_(pc.is_valid(kernels["graph_id"]), pc.equal(phase, Phase.UNKNOWN)))
    duration = kernels["duration_ns"]
    replayed = pc.sum(duration.filter(untold)).as_py() or 0
    if replayed > _MOST * (pc.sum(duration.filter(computation)).as_py() or 0):
        return StepKind.GRAPH_REPLAY
    if any(_SERVING.search(name) for name in events.strings):
        return StepKind.INFERENCE
    return _without_backward(events, phases, windows) if whole else None


def _without_backward(
    events: TraceEvents, phases: set[str], windows: Sequence[tuple[int, int, int]]
) -> StepKind | None:
    is_node = np.array([name.startswith(AUTOGRAD_NODE) for name in events.strings], dtype=bool)
    nodes = events.host.start_ns[is_node[events.host.name]]
    if not len(nodes):
        return StepKind.FORWARD_ONLY if Phase.FORWARD in phases else None
    # The trace records backward passes; a whole step has none where no node of autograd runs in it.
    inside = any(bool(((start <= nodes) & (nodes < end)).any()) for _, start, end in windows)
    return StepKind.FORWARD_ONLY if windows and not inside else None
