"""The critical path through a job's recorded operations: back from each step's end, always to what came last.

The walk is that of the path through kernels. An operation's own time is *work* or, after all members of a communication
have arrived, *transfer*; what passes between the latest of all it waited for and its start is *unexplained*: records do
not show what the host did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceviz_dag.analyze.causes.critical_path import CAUSES
from traceviz_dag.analyze.causes.graph import NEVER_LATE, NO_EDGE
from traceviz_dag.analyze.causes.records_work import RecordsWork
from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.read.records.pipeline_records import OPERATIONS
from traceviz_dag.vocabulary import PathCause


@dataclass(frozen=True, slots=True)
class RecordsPath:
    """Segments of all steps in the order of time, without gaps within a step; one entry a segment.

    Attributes:
        operation: place of the operation in ``RecordsWork``. cause: place in ``CAUSES``.
        start_ns: from the begin of the step. duration_ns: above zero.
    """

    operation: Int64
    cause: Int64
    start_ns: Int64
    duration_ns: Int64


def records_path(work: RecordsWork) -> RecordsPath:
    """The critical paths of all steps; the durations of a step's segments add up to the step."""
    ends = replayed_ends(work, work.own_ns)
    binding = work.graph.binding(ends, work.lag_ns)
    rows: list[tuple[int, int, int, int]] = []
    for low, high in step_bounds(work):
        rows += list(_walk(work, ends, binding, low + int(ends[low:high].argmax())))[::-1]
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return RecordsPath(*columns)


def slack_of(work: RecordsWork, own: Int64, lags: Int64, cut: Bool | None = None) -> Int64:
    """Per operation, by how much it may end later without a longer step.

    Args:
        own, lags: as ``replayed_ends`` takes them. cut: edges over which nothing shall be held up; none by default.
    """
    ends = replayed_ends(work, own, lags)
    latest = np.full(work.graph.nodes, np.iinfo(np.int64).max // 4)
    for low, high in step_bounds(work):
        latest[low:high] = ends[low:high].max()
    durations = np.concatenate([own, np.zeros(work.graph.nodes - len(work), np.int64)])
    held = lags if cut is None else np.where(cut, NEVER_LATE, lags)
    return np.asarray((work.graph.latest(latest, durations, held) - ends)[: len(work)], dtype=np.int64)


def replayed_ends(work: RecordsWork, own: Int64, lags: Int64 | None = None) -> Int64:
    """When every node ends, from the begin of its step.

    Args:
        own: per operation, instead of ``own_ns``. lags: per edge; as recorded by default.
    """
    durations = np.concatenate([own, np.zeros(work.graph.nodes - len(work), np.int64)])
    return work.graph.ends(durations, work.lag_ns if lags is None else lags)


def segment_rows(work: RecordsWork, path: RecordsPath) -> list[dict[str, Any]]:
    """The segments as rows: whose operation it is, which, why the time passes, when and how long, ns."""
    place = path.operation
    columns: dict[str, Sequence[Any]] = {
        "step": work.step[place].tolist(),
        "rank": work.rank[place].tolist(),
        "data_parallel_rank": work.data_parallel_rank[place].tolist(),
        "stage": work.stage[place].tolist(),
        "operation": [OPERATIONS[code].value for code in work.operation[place].tolist()],
        "chunk": [None if chunk < 0 else chunk for chunk in work.chunk[place].tolist()],
        "microbatch": [None if number < 0 else number for number in work.microbatch[place].tolist()],
        "cause": [CAUSES[code].value for code in path.cause.tolist()],
        "start_ns": path.start_ns.tolist(),
        "duration_ns": path.duration_ns.tolist(),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def profile(rows: Sequence[Mapping[str, Any]], by: str) -> list[dict[str, Any]]:
    """Time on the paths by one column of the segments, the longest first; the times add up to the steps."""
    sums: dict[Any, int] = defaultdict(int)
    for row in rows:
        sums[row[by]] += row["duration_ns"]
    total = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda part: (-part[1], str(part[0])))
    return [{by: key, "path_ns": length, "share": length / total} for key, length in ordered]


def step_bounds(work: RecordsWork) -> list[tuple[int, int]]:
    """Where the operations of each step begin and end."""
    first = np.flatnonzero(np.diff(work.step, prepend=work.step[0] - 1))
    return list(zip(first.tolist(), [*first[1:].tolist(), len(work)], strict=True))


def _walk(work: RecordsWork, ends: Int64, binding: Int64, last: int) -> Iterator[tuple[int, int, int, int]]:
    """Segments of one step, from its end back."""
    node, now = last, int(ends[last])
    while now > 0:
        if node < len(work):
            begin = max(int(ends[node] - work.own_ns[node]), 0)
            if begin < now:
                runs = PathCause.TRANSFER if work.join[node] >= 0 else PathCause.WORK
                yield node, CAUSES.index(runs), begin, now - begin
                now = begin
        edge = int(binding[node])
        if edge == NO_EDGE:
            break
        node = int(work.waited_for[edge])
        source = max(int(ends[node]), 0)
        if source < now:
            yield int(work.waits[edge]), CAUSES.index(PathCause.UNEXPLAINED), source, now - source
            now = source
