"""Advice on an iteration: its steps, what its GPUs hold, and what its capture cannot tell."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from traceviz_dag.analyze.advice.memory import StageUse
from traceviz_dag.analyze.advice.placement import placed
from traceviz_dag.analyze.advice.search import Advisor, not_predictable
from traceviz_dag.analyze.causes.gains import mean_gains
from traceviz_dag.analyze.causes.reordered import Change
from traceviz_dag.analyze.causes.what_if import WhatIf
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.causes import ranked_steps
from traceviz_dag.pipeline.memory_schedule import memory_by_stage
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.pipeline.two_sizes import two_sizes

_COUNTED = """
    WITH windows AS (
        SELECT rank, min(host_start_ns) AS a, max(host_end_ns) AS b FROM microbatches
        WHERE run = $run AND iteration = $iteration AND host_start_ns IS NOT NULL GROUP BY rank
    )
    SELECT rank, any_value(stage) AS stage, max(reserved_bytes) AS peak, greatest(
        max(allocated_bytes) FILTER (time_ns BETWEEN a AND b)
        - coalesce(arg_max(allocated_bytes, time_ns) FILTER (time_ns < a), min(allocated_bytes)), 0) AS rise
    FROM memory_events JOIN windows USING (rank) JOIN (
        SELECT rank, stage FROM topology WHERE run = $run AND iteration = $iteration
    ) USING (rank)
    WHERE run = $run AND iteration = $iteration AND allocated_bytes IS NOT NULL AND reserved_bytes IS NOT NULL
    GROUP BY rank, device ORDER BY peak DESC
"""
"""Per GPU, the most that its trace says to be reserved, and by how much allocations rose in micro-batches."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """The training steps of an iteration: their mean, and the bar of ``over_steps``."""

    what_ifs: Sequence[WhatIf]

    def gains(self, change: Change) -> tuple[int, int, int, int]:
        """See ``Predicts``."""
        return mean_gains([one.predict(one.reorder(change)).as_row() for one in self.what_ifs])


def advisor_of(
    iteration: StoredIteration, keep: Collection[str], gpu_bytes: int | None, beside: StoredIteration | None = None
) -> tuple[Advisor, list[str]]:
    """An iteration's advisor, and what the capture cannot tell.

    Args:
        keep: of ``search.KEEPS``. gpu_bytes: memory of a GPU; None: as the traces state it.
        beside: the same job with micro-batches of another size.

    Raises:
        NoEvidenceError: no step can be replayed, its micro-batches are in no known order, or the two captures differ in
            more than the size of micro-batches.
    """
    steps = ranked_steps(iteration, iteration.table("collectives"), iteration.table("messages"))
    what_ifs = [ranked.what_if() for ranked in steps]
    if not what_ifs:
        raise NoEvidenceError("no training step is known")
    first = what_ifs[0]
    if (why := first.unseen(first.reorder(Change()))) is not None:
        raise NoEvidenceError(why)
    _read_memory(iteration)
    uses = _uses(iteration, gpu_bytes)
    sized = None if beside is None else two_sizes(iteration, beside, what_ifs)
    other = placed(iteration.topology, iteration.nodes(), what_ifs)
    advisor = Advisor(first.items, _Steps(what_ifs), uses, frozenset(keep), sized, other)
    return advisor, not_predictable(advisor, first.dimensions())


def _read_memory(iteration: StoredIteration) -> None:
    """Read the memory of traces that were given, as ``traceviz analyze`` does for a home; what cannot be read stays
    unknown."""
    if iteration.inputs is None:
        return
    from traceviz_dag.pipeline.engines import default_workers
    from traceviz_dag.pipeline.memory import mark_mismatched, memory_sources, store_memory

    sources = memory_sources(iteration.lake, iteration.inputs)
    for _ in store_memory(iteration.lake, iteration.run, iteration.iteration, sources, default_workers()):
        pass
    mark_mismatched(iteration.lake, iteration.inputs)


def _uses(stored: StoredIteration, gpu_bytes: int | None) -> dict[int, StageUse]:
    """What the fullest GPU of each stage holds, of those that have a snapshot; else of those whose traces count it."""
    lake, run, iteration = stored.lake, stored.run, stored.iteration
    stated = {row["rank"]: row["device_memory_bytes"] for row in stored.files.rows}
    result: dict[int, StageUse] = {}
    for one in memory_by_stage(lake, run, iteration):
        if one.stage is None or one.memory is None or one.reserved_bytes is None:
            continue
        if one.stage not in result or one.reserved_bytes > result[one.stage].peak:
            memory = stated.get(one.rank) if gpu_bytes is None else gpu_bytes
            result[one.stage] = StageUse(one.reserved_bytes, one.memory.in_flight_bytes, memory)
    if not lake.partitions("memory_events", run, iteration):
        return result
    for row in lake.query_iteration(_COUNTED, run=run, iteration=iteration).to_pylist():
        if row["stage"] is not None and row["rise"] is not None:
            memory = stated.get(row["rank"]) if gpu_bytes is None else gpu_bytes
            result.setdefault(row["stage"], StageUse(row["peak"], row["rise"], memory, counted=True))
    return result
