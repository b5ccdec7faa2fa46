"""The table ``pipelines``: what the bubble of each stage is made of, for every schedule, and where the stage idles.

The observed order of work is replayed with zero latency, four times: T0 = m times the mean time of a micro-batch, T1 =
every stage at the mean forward and backward time, T2 = each stage and chunk at its own means, T3 = actual durations.
Then T - T0 = (T1 - T0) fill and drain + (T2 - T1) imbalance + (T3 - T2) jitter + (T - T3) stall, to the nanosecond.
T and T1 to T3 are the span of the same stage; the mean times are over all stages of the pipeline.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.causes.graph import AnyTimes
from traceviz_dag.analyze.pipelines.replay import Structure, replay, stage_spans, structure_of
from traceviz_dag.analyze.pipelines.work_items import BACKWARD, COMBINED, FORWARD, WorkItems, work_items
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import PIPELINES

_PARTS = ("ideal_ns", "bubble_ns", "fill_drain_ns", "imbalance_ns", "jitter_ns", "stall_ns")


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """One pipeline group in one ProfilerStep: the items of each stage, None for a stage without any."""

    number: int
    step: int
    ranks: tuple[int, ...]
    stages: tuple[WorkItems | None, ...]

    @property
    def chunks(self) -> int:
        chunks = [
            each[each != MISSING]
            for items in self.stages
            if items
            for each in (items.forward_chunk, items.backward_chunk)
        ]
        return int(max((each.max(initial=0) for each in chunks), default=0)) + 1

    def fault(self) -> str | None:
        """Why it cannot be replayed."""
        absent = [stage for stage, items in enumerate(self.stages) if items is None]
        if absent:
            return f"no forward and backward steps are known of stage {', '.join(map(str, absent))}"
        if any(
            (items.forward_chunk == MISSING).all() or (items.backward_chunk == MISSING).all()
            for items in self.stages
            if items
        ):
            return "a stage has no backward steps"
        return None


@dataclass(frozen=True, slots=True)
class _Replays:
    """T0 of one pipeline, and T1, T2 and T3 of each of its stages."""

    ideal_ns: int
    spans_ns: list[list[int]]


def pipelines_table(microbatches: pa.Table, topology: Topology) -> pa.Table:
    """Measure every stage of every pipeline group.

    Args:
        microbatches: the table ``microbatches`` of all ranks, with a column ``rank``.
        topology: gives the pipelines and the dense replicas.

    Returns:
        The table ``pipelines``: a row per ProfilerStep × pipeline × stage whose rank has steps. The parts of the bubble
        are NULL, with the reason, where a stage of the pipeline is missing or the order cannot be replayed.
    """
    items = work_items(microbatches)
    pipelines = _pipelines(items, topology)
    faults = {place: pipeline.fault() for place, pipeline in enumerate(pipelines)}
    structures = _structures(pipelines, faults)
    parts: dict[int, _Replays] = {}
    for structure, places in structures:
        replayed = _replays(structure, [pipelines[place] for place in places])
        parts |= dict(zip(places, replayed, strict=True))
    replicas = {rank: number for number, ranks in enumerate(topology.replicas.dense_by_dp) for rank in ranks}
    rows: dict[str, list[object]] = defaultdict(list)
    for place, pipeline in enumerate(pipelines):
        for row in _rows(pipeline, parts.get(place), faults[place], replicas):
            for name, value in row.items():
                rows[name].append(value)
    return PIPELINES.from_columns({name: rows[name] for name in PIPELINES.schema.names})


def no_bubble(microbatches: pa.Table, topology: Topology) -> tuple[str, bool] | None:
    """Why a job has no row in the table ``pipelines``.

    Args:
        microbatches: as ``pipelines_table`` takes it.

    Returns:
        The reason, and whether it is certain: a job without pipeline parallelism has no bubble to part, while one whose
        pipelines or micro-batches nothing shows may well have one. None where there are rows.
    """
    items = work_items(microbatches)
    if _pipelines(items, topology):
        return None
    if not topology.pipelines:
        return "no pipeline is known: neither process groups nor a topology text file name one", False
    if all(len(ranks) < 2 for ranks in topology.pipelines):
        return "no pipeline of two or more stages: the job has no pipeline parallelism", True
    if not len(items):
        return "no micro-batch is known in these traces, so neither its pipelines' bubble nor idle time", False
    return "the ranks whose micro-batches are known are in no pipeline of two or more stages", False


def _pipelines(items: WorkItems, topology: Topology) -> list[_Pipeline]:
    """All pipelines of two or more stages, step by step; those of which no rank has steps are left out."""
    edges = items.edges()
    of_queue: dict[tuple[int, int], WorkItems] = {}
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        of_queue[int(items.rank[low]), int(items.step[low])] = items.take(np.arange(low, high))
    found = []
    for step in sorted({step for _, step in of_queue}):
        for number, ranks in enumerate(topology.pipelines):
            stages = tuple(of_queue.get((rank, step)) for rank in ranks)
            if len(ranks) > 1 and any(stage is not None for stage in stages):
                found.append(_Pipeline(number, step, ranks, stages))
    return found


def _structures(pipelines: list[_Pipeline], faults: dict[int, str | None]) -> list[tuple[Structure, list[int]]]:
    """Group the pipelines that can be replayed by structure; note the fault of the others."""
    alike: dict[bytes, list[int]] = defaultdict(list)
    for place, pipeline in enumerate(pipelines):
        if faults[place] is None:
            alike[_shape(pipeline)].append(place)
    result = []
    for places in alike.values():
        first = pipelines[places[0]]
        structure = structure_of([items for items in first.stages if items], first.chunks)
        if structure is None:
            faults |= dict.fromkeys(places, "the order of forward and backward steps cannot be replayed")
        else:
            result.append((structure, places))
    return result


def _shape(pipeline: _Pipeline) -> bytes:
    parts = [np.array([len(items) for items in pipeline.stages if items], dtype=np.int64)]
    for items in pipeline.stages:
        if items:
            parts += [items.forward_chunk, items.forward_microbatch, items.backward_chunk, items.backward_microbatch]
    return np.concatenate(parts).tobytes()


def _replays(structure: Structure, pipelines: list[_Pipeline]) -> list[_Replays]:
    """Replay some pipelines of one structure.

    Means are rational numbers: times a common multiple of what they divide by, all is integer and nothing is lost
    before the result is rounded. Where that passes the range of integers, floating point has to do.
    """
    kind, own = _classes(pipelines[0])
    actual = np.stack([np.concatenate([each.duration_ns for each in p.stages if each]) for p in pipelines], axis=1)
    total = actual.sum(axis=0)
    scale = math.lcm(*np.bincount(kind).tolist(), *np.bincount(own).tolist())
    fits = int(total.max()) * scale < np.iinfo(np.int64).max
    durations: AnyTimes = actual if fits else actual.astype(np.float64)
    cases = np.concatenate([_means(durations, kind, scale), _means(durations, own, scale), durations * scale], axis=1)
    spans = stage_spans(structure, *replay(structure, cases))
    count, stages = len(pipelines), len(spans)
    return [
        _Replays(
            ideal_ns=round(Fraction(int(total[case]), stages)),
            spans_ns=[
                [round(Fraction(int(span), scale)) for span in of_stage[case::count].tolist()] for of_stage in spans
            ],
        )
        for case in range(count)
    ]


def _classes(pipeline: _Pipeline) -> tuple[Int64, Int64]:
    """Numbers of items that T1 (kind of item) and T2 (kind, stage and chunks) give one duration."""
    stages = [items for items in pipeline.stages if items]
    kind = np.concatenate([items.kind for items in stages])
    stage = np.repeat(np.arange(len(stages)), [len(items) for items in stages])
    chunks = [
        np.concatenate([getattr(items, name) for items in stages]) for name in ("forward_chunk", "backward_chunk")
    ]
    return number_groups(kind)[1], number_groups(stage, kind, *chunks)[1]


def _means(durations: AnyTimes, group: Int64, scale: int) -> AnyTimes:
    """For each item the mean of its group, times ``scale``, which all counts divide."""
    sums = np.zeros((int(group.max()) + 1, durations.shape[1]), dtype=durations.dtype)
    np.add.at(sums, group, durations)
    factors = np.array([scale // count for count in np.bincount(group).tolist()], dtype=durations.dtype)
    means: AnyTimes = np.multiply(sums, factors[:, None])[group]
    return means


def _rows(
    pipeline: _Pipeline, replayed: _Replays | None, fault: str | None, replicas: Mapping[int, int]
) -> list[dict[str, object]]:
    stages, chunks = len(pipeline.stages), pipeline.chunks
    rows: list[dict[str, object]] = []
    for stage, items in enumerate(pipeline.stages):
        if items is None:
            continue
        span = int(items.end_ns.max() - items.start_ns[0])
        count = _microbatches(items)
        fill = (stages - 1 - stage) / chunks
        row: dict[str, object] = {
            "step": None if pipeline.step == MISSING else pipeline.step,
            "pipeline": pipeline.number,
            "stage": stage,
            "stages": stages,
            "chunks": chunks,
            "rank": pipeline.ranks[stage],
            "dense_replica": replicas.get(pipeline.ranks[stage]),
            "schedule": _schedule(items, stages, stage, chunks),
            "microbatches": count,
            "span_ns": span,
            "ideal_share": fill / (count + fill),
            "microbatch_ns": round(float(items.duration_ns.sum()) / count),
            "refusal": fault,
            **_idle(items, span),
            **_by_direction(items, count),
            **dict.fromkeys((*_PARTS, "bubble_share")),
        }
        if replayed is not None:
            row |= _bubble(span, replayed.ideal_ns, replayed.spans_ns[stage])
        rows.append(row)
    return rows


def _bubble(span: int, ideal: int, replays: list[int]) -> dict[str, object]:
    equal, own_means, actual = replays
    return {
        "ideal_ns": ideal,
        "bubble_ns": span - ideal,
        "fill_drain_ns": equal - ideal,
        "imbalance_ns": own_means - equal,
        "jitter_ns": actual - own_means,
        "stall_ns": span - actual,
        "bubble_share": (span - ideal) / span if span else None,
    }


def _idle(items: WorkItems, span: int) -> dict[str, object]:
    """Idle time between items, by where it lies: up to the first backward step, after the last forward one, between."""
    gaps = items.start_ns[1:] - items.end_ns[:-1]
    has_backward, has_forward = items.kind != FORWARD, items.kind != BACKWARD
    after = np.arange(1, len(items))
    first_backward = int(np.argmax(has_backward)) if has_backward.any() else len(items)
    last_forward = len(items) - 1 - int(np.argmax(has_forward[::-1])) if has_forward.any() else -1
    warmup = after <= first_backward
    cooldown = ~warmup & (after > last_forward)
    busy = int(items.duration_ns.sum())
    return {
        "busy_ns": busy,
        "idle_ns": span - busy,
        "idle_share": (span - busy) / span if span else None,
        "warmup_idle_ns": int(gaps[warmup].sum()),
        "steady_idle_ns": int(gaps[~warmup & ~cooldown].sum()),
        "cooldown_idle_ns": int(gaps[cooldown].sum()),
    }


def _by_direction(items: WorkItems, count: int) -> dict[str, object]:
    if (items.kind == COMBINED).any():
        return {"forward_ns": None, "backward_ns": None}
    forward, backward = (int(items.duration_ns[items.kind == kind].sum()) for kind in (FORWARD, BACKWARD))
    return {"forward_ns": round(forward / count), "backward_ns": round(backward / count)}


def _microbatches(items: WorkItems) -> int:
    known = np.concatenate((items.forward_microbatch, items.backward_microbatch))
    return max(len(np.unique(known[known != MISSING])), 1)


def _schedule(items: WorkItems, stages: int, stage: int, chunks: int) -> str:
    if (items.kind == COMBINED).any():
        return "combined"
    if (items.kind == FORWARD).all():
        return "forward_only"
    if chunks > 1:
        return "interleaved"
    count = int((items.kind == FORWARD).sum())
    warmup = min(stages - 1 - stage, count)
    steady = np.tile([FORWARD, BACKWARD], count - warmup)
    plain: npt.NDArray[np.int64] = np.concatenate((np.full(warmup, FORWARD), steady, np.full(warmup, BACKWARD)))
    return "1f1b" if np.array_equal(items.kind, plain) else "other"
