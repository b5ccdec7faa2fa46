"""Joins the snapshots of an iteration with its micro-batches, rank by rank, from the tables of the lake."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from traceviz_dag.analyze.memory.schedule import (
    Activation,
    Alignment,
    Interval,
    Model,
    Span,
    StageMemory,
    alignment,
    longest_sequence,
    stage_memory,
)
from traceviz_dag.lake.lake import Lake

_SPANS = """
    SELECT rank, phase, chunk, microbatch, host_start_ns, host_end_ns FROM microbatches
    WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND phase IN ('forward', 'backward')
        AND host_start_ns IS NOT NULL
    ORDER BY rank, host_start_ns
"""
# The optimizer's phase is longer than its step: it begins with the gradients' norm and ends with copies. Its own
# kernels are inside the step, where their name shows them.
_LAUNCHES = """
    WITH launched AS (
        SELECT rank, launch_start_ns AS start_ns, launch_start_ns + launch_duration_ns AS end_ns,
            regexp_matches(name, '(?i)adam|sgd|lamb|adagrad|rmsprop|lion|muon') AS is_own FROM kernels
        WHERE run = $run AND iteration = $iteration AND phase = 'optimizer' AND launch_start_ns IS NOT NULL
            AND step IS NOT DISTINCT FROM (
                SELECT max(step) FROM kernels WHERE run = $run AND iteration = $iteration AND phase = 'optimizer'
            )
    )
    SELECT rank, coalesce(min(start_ns) FILTER (is_own), min(start_ns)) AS start_ns,
        coalesce(max(end_ns) FILTER (is_own), max(end_ns)) AS end_ns
    FROM launched GROUP BY rank
"""
_STEPS = """
    SELECT rank, start_ns, end_ns FROM memory_steps
    WHERE run = $run AND iteration = $iteration AND start_ns IS NOT NULL AND end_ns IS NOT NULL
        AND name NOT LIKE 'ProfilerStep#%'
"""
_ACTIVATIONS = """
    SELECT rank, requested_bytes, alloc_time_ns, free_time_ns FROM memory_blocks
    WHERE run = $run AND iteration = $iteration AND category = 'activation' AND alloc_time_ns IS NOT NULL
"""
_PEAKS = """
    WITH windows AS (
        SELECT rank, min(host_start_ns) AS a, max(host_end_ns) AS b FROM microbatches
        WHERE run = $run AND iteration = $iteration GROUP BY rank
    )
    SELECT rank, max(requested_bytes) FILTER (within) AS requested_bytes,
        min_by(time_ns, (-requested_bytes, event_id)) FILTER (within) AS time_ns, max(reserved_bytes) AS reserved_bytes
    FROM (
        SELECT rank, event_id, time_ns, requested_bytes, reserved_bytes,
            coalesce(time_ns BETWEEN a AND b, FALSE) AS within
        FROM memory_events JOIN windows USING (rank) WHERE run = $run AND iteration = $iteration
    ) GROUP BY rank
"""
_LAYERS = """
    SELECT rank, CASE WHEN min(layers) = max(layers) THEN min(layers) END AS layers FROM (
        SELECT rank, chunk, count(DISTINCT layer) AS layers FROM kernels
        WHERE run = $run AND iteration = $iteration AND phase = 'forward' AND chunk IS NOT NULL
        GROUP BY rank, chunk
    ) GROUP BY rank
"""
_RECOMPUTE = """
    SELECT rank, sum(compute_ns) AS ns FROM microbatches
    WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND phase = 'recompute' GROUP BY rank
"""
_STAGES = "SELECT rank, stage, stages FROM topology WHERE run = $run AND iteration = $iteration"
_RANKS = "SELECT DISTINCT rank FROM memory_peaks WHERE run = $run AND iteration = $iteration ORDER BY rank"


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What is known of one rank's memory in an iteration.

    Attributes:
        memory: None where the clocks do not allow to join; ``alignment`` says why.
        peak_requested_bytes: the most in the iteration's forward and backward steps.
        reserved_bytes: the most in the recording, the optimizer's steps included.
        formula_bytes: what the formula says a layer keeps of a micro-batch; None without sizes of the model.
        headroom_bytes: of the GPU's memory not reserved; headroom_microbatches: as many of one chunk fit there;
            longest_sequence: tokens of a sample with which the activations in flight would fill it, growing as the
            formula says; None without sizes of the model.
        recompute_ns: computation of recomputed forward passes in the iteration; None without any.
        saved_bytes: what recomputation keeps out of memory per layer and micro-batch, by the formula.
    """

    rank: int
    stage: int | None
    stages: int | None
    alignment: Alignment
    memory: StageMemory | None
    peak_requested_bytes: int | None
    reserved_bytes: int | None
    formula_bytes: int | None
    headroom_bytes: int | None
    headroom_microbatches: int | None
    longest_sequence: int | None
    recompute_ns: int | None
    saved_bytes: int | None

    def as_row(self) -> dict[str, Any]:
        """All of it, flat."""
        found = asdict(self)
        return {**found, **found.pop("alignment"), **(found.pop("memory") or {})}


def memory_by_stage(
    lake: Lake, run: str, iteration: int, model: Model | None = None, gpu_bytes: int | None = None
) -> list[RankMemory]:
    """Every rank of an iteration that has a snapshot, by stage and rank; none where no rank has one.

    Args:
        model: sizes for the formula; without tensor-parallel ones.
        gpu_bytes: memory of a GPU; without it the headroom is unknown.
    """
    if not lake.partitions("memory_peaks", run, iteration):
        return []

    def by_rank(sql: str) -> defaultdict[int, list[dict[str, Any]]]:
        found: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in lake.query_iteration(sql, run=run, iteration=iteration).to_pylist():
            found[row.pop("rank")].append(row)
        return found

    spans, launches, steps, activations = map(by_rank, (_SPANS, _LAUNCHES, _STEPS, _ACTIVATIONS))
    peaks, layers, recompute, stages = map(by_rank, (_PEAKS, _LAYERS, _RECOMPUTE, _STAGES))
    found = []
    for rank in by_rank(_RANKS):
        place = _only(stages[rank])
        mine, clocks = _aligned(spans[rank], launches[rank], steps[rank])
        if not lake.partitions("traces", run, iteration, rank):
            clocks = Alignment(None, "it has no trace in this iteration")
        peak = _only(peaks[rank])
        memory = None
        if clocks.refusal is None:
            memory = stage_memory(
                mine,
                [Activation(*row.values()) for row in activations[rank]],
                peak.get("time_ns"),
                place.get("stage"),
                place.get("stages"),
                _only(layers[rank]).get("layers"),
            )
        reserved = peak.get("reserved_bytes") if clocks.refusal is None else None
        headroom = max(gpu_bytes - reserved, 0) if gpu_bytes is not None and reserved is not None else None
        recomputed = int(ns) if (ns := _only(recompute[rank]).get("ns")) else None
        found.append(
            RankMemory(
                rank,
                place.get("stage"),
                place.get("stages"),
                clocks,
                memory,
                peak.get("requested_bytes") if clocks.refusal is None else None,
                reserved,
                model.layer_bytes if model else None,
                headroom,
                headroom // memory.chunk_bytes if headroom is not None and memory and memory.chunk_bytes else None,
                longest_sequence(model, memory.in_flight_bytes, headroom)
                if model and memory and headroom is not None
                else None,
                recomputed,
                _saved(model) if recomputed is not None else None,
            )
        )
    return sorted(found, key=lambda one: (one.stage is None, one.stage or 0, one.rank))


@dataclass(frozen=True, slots=True)
class HostSteps:
    """The host's steps of a rank beside its snapshot.

    Attributes:
        spans: forward and backward steps of the iteration; none where the clocks do not allow to join them.
        window_ns: from the first of them to the end of the optimizer's step behind them; None without any.
        refusal: why there are none.
    """

    spans: list[Span]
    window_ns: tuple[int, int] | None
    refusal: str | None


def host_steps(lake: Lake, run: str, iteration: int, rank: int) -> HostSteps:
    """The host's steps of one rank, on the clock of its snapshot."""

    def of_rank(sql: str) -> list[dict[str, Any]]:
        rows = lake.query_iteration(f"FROM ({sql}) WHERE rank = {int(rank)}", run=run, iteration=iteration).to_pylist()
        return [{name: value for name, value in row.items() if name != "rank"} for row in rows]

    steps = of_rank(_STEPS)
    spans, clocks = _aligned(of_rank(_SPANS), of_rank(_LAUNCHES), steps)
    if clocks.refusal is not None:
        return HostSteps([], None, clocks.refusal)
    first, last = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    behind = sorted(row["end_ns"] for row in steps if row["end_ns"] >= last)
    return HostSteps(spans, (first, behind[0] if behind else last), None)


def _aligned(
    spans: list[dict[str, Any]], launches: list[dict[str, Any]], steps: list[dict[str, Any]]
) -> tuple[list[Span], Alignment]:
    """The host's forward and backward steps of one rank, and how well its clocks agree."""
    found = [Span(*row.values()) for row in spans]
    optimizer = _only(launches)
    clocks = alignment(
        [Interval(row["start_ns"], row["end_ns"]) for row in steps],
        Interval(optimizer["start_ns"], optimizer["end_ns"]) if optimizer else None,
        min((span.end_ns - span.start_ns for span in found), default=None),
    )
    return found, clocks


def _saved(model: Model | None) -> int | None:
    if model is None or not model.recompute:
        return None
    kept = Model(model.sequence, model.hidden, model.heads, model.batch, model.tensor, model.stored_scores)
    return kept.layer_bytes - model.layer_bytes


def _only(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return rows[0] if rows else {}
