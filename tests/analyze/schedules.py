"""Pipelines made by hand: perfect schedules of given step times, as the tables microbatches and kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from tests.analyze.across_ranks import EPOCH_NS, microbatch_rows, topology
from tests.analyze.naive_measures import kernel, kernel_table
from traceviz_dag.classify.topology.types import Topology

Step = tuple[str, int, int]
"""(F or B, chunk, micro-batch)."""


def one_forward_one_backward(stages: int, stage: int, count: int) -> list[Step]:
    warmup = min(stages - 1 - stage, count)
    order = [("F", 0, index) for index in range(warmup)]
    for index in range(count - warmup):
        order += [("F", 0, warmup + index), ("B", 0, index)]
    return order + [("B", 0, index) for index in range(count - warmup, count)]


def interleaved(stages: int, stage: int, count: int, chunks: int) -> list[Step]:
    """Megatron's interleaved order: micro-batches in groups of ``stages``, chunk by chunk."""

    def virtual(index: int, backward: bool) -> tuple[int, int]:
        group, rest = divmod(index, stages * chunks)
        chunk, place = divmod(rest, stages)
        return (chunks - 1 - chunk if backward else chunk), group * stages + place

    total = count * chunks
    warmup = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    order: list[Step] = [("F", *virtual(index, False)) for index in range(warmup)]
    for index in range(total - warmup):
        order += [("F", *virtual(warmup + index, False)), ("B", *virtual(index, True))]
    return order + [("B", *virtual(index, True)) for index in range(total - warmup, total)]


def perfect(
    orders: Sequence[Sequence[Step]], chunks: int, duration: Callable[[int, Step], int], latency: int = 0
) -> list[dict[Step, tuple[int, int]]]:
    """Start and end of each step of each stage, every step as early as its inputs allow."""
    stages, last = len(orders), len(orders) * chunks - 1
    times: list[dict[Step, tuple[int, int]]] = [{} for _ in orders]
    cursors, free = [0] * stages, [0] * stages
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while cursors[stage] < len(order):
                step = order[cursors[stage]]
                kind, chunk, index = step
                virtual = chunk * stages + stage
                if kind == "F":
                    source = None if virtual == 0 else ("F", virtual - 1)
                else:
                    source = ("F", last) if virtual == last else ("B", virtual + 1)
                ready = 0
                if source is not None:
                    at = source[1] % stages
                    feed = times[at].get((source[0], source[1] // stages, index))
                    if feed is None:
                        break
                    ready = feed[1] + (latency if at != stage else 0)
                begin = max(free[stage], ready)
                free[stage] = begin + duration(stage, step)
                times[stage][step] = (begin, free[stage])
                cursors[stage] += 1
                moved = True
    assert all(cursor == len(order) for cursor, order in zip(cursors, orders, strict=True)), "the schedule hangs"
    return times


def as_microbatches(orders: Sequence[Sequence[Step]], times: list[dict[Step, tuple[int, int]]]) -> pa.Table:
    """The table microbatches; rank = stage."""
    rows = []
    for stage, order in enumerate(orders):
        for place, step in enumerate(order):
            start, end = times[stage][step]
            rows.append(
                {
                    "rank": stage,
                    "device": f"gpu:{stage}",
                    "step": 7,
                    "stage": stage,
                    "chunk": step[1],
                    "microbatch": step[2],
                    "phase": "forward" if step[0] == "F" else "backward",
                    "dimension": "all",
                    "order_in_rank": place,
                    "span_start_ns": EPOCH_NS + start,
                    "span_end_ns": EPOCH_NS + end,
                }
            )
    return microbatch_rows(rows)


def as_kernels(times: dict[Step, tuple[int, int]]) -> pa.Table:
    """One computation kernel a step."""
    return kernel_table([kernel(EPOCH_NS + start, end - start, "computation") for start, end in times.values()])


def one_pipeline(stages: int) -> Topology:
    return topology(pipelines=(tuple(range(stages)),), world=stages)
