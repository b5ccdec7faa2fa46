"""The tables of a step's causes: its edges between streams, its critical path, its items, and what edits would gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.causes.critical_path import CAUSES, CriticalPath, slacks
from traceviz_dag.analyze.causes.rank_kernels import PHASES
from traceviz_dag.analyze.causes.rank_work import EDGE_KINDS, EVIDENCES, EdgeKind, RankWork
from traceviz_dag.analyze.causes.step_work import StepWork, Times
from traceviz_dag.analyze.causes.usual_times import own_work
from traceviz_dag.analyze.causes.what_if import Edit, Prediction
from traceviz_dag.analyze.clocks.clocks import solved_clocks
from traceviz_dag.analyze.matching.communications import nullable, word_column
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.buffered_sends import buffered_sends
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import MESSAGES, PATH_EDGES, PATH_ITEMS, PATH_SEGMENTS, WHAT_IF, Table

CRITICAL_SHARE = 0.01
"""Work whose slack is within this share of the step is critical."""

_ACTIVATION, _GRADIENT = "activation", "gradient"


def messages_table(matches: Matches, rank_clocks: pa.Table) -> pa.Table:
    """The matched messages of an iteration: the table ``messages``.

    Args:
        rank_clocks: the table of that name of the same matches.
    """
    buffered = buffered_sends(matches, solved_clocks(rank_clocks))
    rows, found = matches.rows, matches.messages
    kernel = rows.integers("kernel_id")
    carries = np.where(found.backward == MISSING, -1, found.backward)
    return MESSAGES.from_columns(
        {
            "sender_rank": rows.rank[found.sender],
            "sender_kernel_id": kernel[found.sender],
            "receiver_rank": rows.rank[found.receiver],
            "receiver_kernel_id": kernel[found.receiver],
            "communication": matches.communication[found.sender],
            "carries": word_column(carries, (_ACTIVATION, _GRADIENT)).cast(pa.string()),
            "virtual_stage": nullable(found.virtual),
            "microbatch": nullable(found.microbatch),
            "buffered": pa.array(buffered == 1, mask=buffered == MISSING),
        }
    )


def path_edges(step: StepWork, number: int) -> pa.Table:
    """The edges between streams, and between the GPU and the host: the table ``path_edges``.

    Args:
        number: of the ProfilerStep; ``MISSING`` for none.
    """
    parts = []
    for place, work in enumerate(step.works):
        kernels = work.kernels
        chosen = np.flatnonzero((work.kind == EdgeKind.EVENT) | (work.kind == EdgeKind.SYNCHRONISATION))
        waiting, waited_for = work.waiting[chosen], work.waited_for[chosen]
        last = np.append(work.first[1:], len(kernels)) - 1
        source = last[waited_for]
        host = work.kind[chosen] == EdgeKind.SYNCHRONISATION
        arrives = (waiting >= work.segments) & ~host
        kernel = work.first[np.where(host | arrives, 0, waiting)] if work.segments else waiting
        if len(work.joined):
            kernel = np.where(arrives, work.joined[np.where(arrives, waiting - work.arrivals, 0)], kernel)
        called = work.section_ns[np.where(host, waiting - work.sections, 0)]
        count = len(chosen)
        parts.append(
            PATH_EDGES.from_columns(
                {
                    "step": nullable(np.full(count, number)),
                    "rank": np.full(count, step.ranks[place]),
                    "kind": word_column(work.kind[chosen], EDGE_KINDS),
                    "edge_evidence": word_column(work.evidence[chosen], EVIDENCES),
                    "waiting_kernel_id": nullable(np.where(host, MISSING, kernels.kernel_id[kernel])),
                    "waited_for_kernel_id": kernels.kernel_id[source],
                    "waiting_ns": nullable(np.where(host, called, kernels.start_ns[kernel])),
                    "ended_ns": kernels.end_ns[source],
                }
            )
        )
        parts.append(_unknown_edges(step.ranks[place], work, number))
    return _together(parts, PATH_EDGES.schema)


def _unknown_edges(rank: int, work: RankWork, number: int) -> pa.Table:
    """Communications of which nothing shows what waited for them, and kernels that waited for what nothing shows."""
    kernels = work.kernels
    nothing = [np.full(len(each), MISSING) for each in (work.unknown, work.untold)]
    count = len(work.unknown) + len(work.untold)
    return PATH_EDGES.from_columns(
        {
            "step": nullable(np.full(count, number)),
            "rank": np.full(count, rank),
            "kind": word_column(np.full(count, int(EdgeKind.EVENT)), EDGE_KINDS),
            "edge_evidence": word_column(np.zeros(count, np.int64), ("unknown",)),
            "waiting_kernel_id": nullable(np.concatenate([nothing[0], kernels.kernel_id[work.untold]])),
            "waited_for_kernel_id": nullable(np.concatenate([kernels.kernel_id[work.unknown], nothing[1]])),
            "waiting_ns": nullable(np.concatenate([nothing[0], kernels.start_ns[work.untold]])),
            "ended_ns": nullable(np.concatenate([kernels.end_ns[work.unknown], nothing[1]])),
        }
    )


def path_segments(
    step: StepWork, path: CriticalPath, stages: Sequence[int], number: int, modules: Callable[[int], pa.Table]
) -> pa.Table:
    """The critical path: the table ``path_segments``.

    Args:
        path: of the step. stages: stage of each rank, ``MISSING`` where unknown.
        modules: gives columns ``kernel_id`` and ``module`` of one rank's kernels.
    """
    count = len(path.rank)
    column: dict[str, Int64] = {name: np.full(count, MISSING) for name in ("kernel_id", "chunk", "microbatch")}
    word: dict[str, npt.NDArray[np.object_]] = {
        name: np.full(count, None, dtype=object) for name in ("category", "dimension", "phase", "module")
    }
    for place in np.unique(path.rank).tolist():
        kernels = step.works[place].kernels
        mine = np.flatnonzero((path.rank == place) & (path.kernel >= 0))
        kernel = path.kernel[mine]
        column["kernel_id"][mine] = kernels.kernel_id[kernel]
        for name in ("chunk", "microbatch"):
            column[name][mine] = getattr(kernels, name)[kernel]
        word["category"][mine] = np.array([*kernels.categories, None], dtype=object)[kernels.category[kernel]]
        word["dimension"][mine] = np.array([*kernels.dimensions, None], dtype=object)[
            np.where(kernels.communicates[kernel], kernels.dimension[kernel], -1)
        ]
        word["phase"][mine] = np.array(PHASES, dtype=object)[kernels.phase[kernel]]
        told = modules(step.ranks[place])
        known = dict(zip(told["kernel_id"].to_pylist(), told["module"].to_pylist(), strict=True))
        word["module"][mine] = [known.get(each) for each in column["kernel_id"][mine].tolist()]
    entered = np.where(path.entered_by < 0, len(EDGE_KINDS), path.entered_by)
    return PATH_SEGMENTS.from_columns(
        {
            "step": nullable(np.full(count, number)),
            "segment": np.arange(count),
            "rank": np.array(step.ranks, np.int64)[path.rank],
            "stage": nullable(np.array(stages, np.int64)[path.rank]),
            "cause": word_column(path.cause, [each.value for each in CAUSES]),
            "entered_by": word_column(entered, (*EDGE_KINDS, "begin")),
            "start_ns": path.start_ns,
            "duration_ns": path.duration_ns,
            **{name: nullable(values) for name, values in column.items()},
            **{name: pa.array(values.tolist(), pa.string()) for name, values in word.items()},
        }
    )


def path_items(
    step: StepWork, times: Sequence[Times], path: CriticalPath, stages: Sequence[int], number: int
) -> pa.Table:
    """What of each micro-batch's steps is on the step's critical path, and their slack: the table ``path_items``."""
    slack = slacks(step, times)
    limit = step.step_ns(step.replay(times)) * CRITICAL_SHARE
    parts = []
    for place, work in enumerate(step.works):
        kernels = work.kernels
        if not len(kernels):
            continue
        on_path = np.zeros(len(kernels), np.int64)
        mine = (path.rank == place) & (path.kernel >= 0)
        np.add.at(on_path, path.kernel[mine], path.duration_ns[mine])
        first, group = number_groups(kernels.chunk, kernels.microbatch, kernels.phase)
        own = np.where(own_work(work), kernels.duration_ns, 0)
        least = np.full(len(first), np.iinfo(np.int64).max)
        np.minimum.at(least, group, slack[place])
        sums = [np.zeros(len(first), np.int64) for _ in range(2)]
        for total, values in zip(sums, (own, on_path), strict=True):
            np.add.at(total, group, values)
        parts.append(
            PATH_ITEMS.from_columns(
                {
                    "step": nullable(np.full(len(first), number)),
                    "rank": np.full(len(first), step.ranks[place]),
                    "stage": nullable(np.full(len(first), stages[place])),
                    "chunk": nullable(kernels.chunk[first]),
                    "microbatch": nullable(kernels.microbatch[first]),
                    "phase": word_column(kernels.phase[first], PHASES),
                    "own_ns": sums[0],
                    "path_ns": sums[1],
                    "slack_ns": least,
                    "critical": least <= limit,
                }
            )
        )
    return _together(parts, PATH_ITEMS.schema)


def what_if_table(predictions: Sequence[Prediction], refused: Sequence[tuple[Edit, str]], number: int) -> pa.Table:
    """Predictions of single edits, and why others cannot be: the table ``what_if``."""
    told = [{**one.as_row(), "replay_error": one.replay_error} for one in predictions]
    reasons = [
        {"edit": edit.name, "rank": edit.rank, "ranks": edit.ranks, "dimension": edit.dimension, "factor": edit.factor}
        | {"refusal": reason}
        for edit, reason in refused
    ]
    return rows_of_step(WHAT_IF, [*told, *reasons], number)


def refused_what_if(reason: str, number: int) -> pa.Table:
    """The table ``what_if`` of a step of which nothing can be predicted."""
    return rows_of_step(WHAT_IF, [{"refusal": reason}], number)


def rows_of_step(table: Table, rows: Sequence[Mapping[str, object]], number: int) -> pa.Table:
    """Rows of a table with a column ``step``; other columns that they lack are NULL.

    Args:
        number: of the ProfilerStep; ``MISSING`` for none.
    """
    step = None if number == MISSING else number
    names = [column.name for column in table.columns]
    whole = [{name: row.get(name) for name in names} | {"step": step} for row in rows]
    return pa.Table.from_pylist(whole, schema=table.schema)


def _together(parts: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *parts]).unify_dictionaries().combine_chunks()
