"""Named queries over one iteration: what its tables say together, as SQL that any DuckDB client can run, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import pyarrow as pa

from traceviz_dag.lake.lake import Lake
from traceviz_dag.spans import expected_ranks, spanned
from traceviz_dag.tables import ITERATIONS, RUNS
from traceviz_dag.tables.rows import rows_of
from traceviz_dag.vocabulary import TraceStatus

AGGREGATED_TABLES = ("iterations", "runs")
"""The tables that one query each makes of an iteration's others, in the order in which they are written."""

_STALE_RANKS = """stale AS (
    SELECT rank FROM stale_tables
    WHERE run = $run AND iteration = $iteration AND stage = 'ranks' AND cause <> 'gone'
),
unmade AS (
    SELECT rank FROM stale_tables
    WHERE run = $run AND iteration = $iteration AND stage = 'ranks' AND cause NOT IN ('gone', 'unlisted')
)"""
"""Ranks whose tables no measure counts, as something newer exists; those of them whose trace could not be computed."""

_WHOLE_RANKS = """
    AND rank NOT IN (SELECT rank FROM traces WHERE run = $run AND iteration = $iteration AND status <> 'read')"""

TAKEN_STEPS_SQL = "CASE WHEN list_contains(steps, $iteration) THEN [$iteration] ELSE steps END"
"""Of a row of ``traces``, the training steps that it covers: a file of several, each taken for itself, holds this
iteration among others."""

_BY_RANK = """WITH {stale},
windows AS (
    SELECT * FROM overlap
    WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND window_name IN ('step', 'kernels'){ranks}
        AND rank NOT IN (FROM stale)
    -- A device with training steps is measured by them, another one from its first kernel to its last.
    QUALIFY window_name = 'step' OR count(*) FILTER (window_name = 'step') OVER (PARTITION BY rank, device) = 0
),
by_rank AS (
    SELECT
        rank,
        max(window_end_ns - window_start_ns) AS step_ns,
        avg(compute_ns) AS compute_ns,
        avg(communication_ns) AS communication_ns,
        avg(hidden_ns) AS hidden_ns,
        avg(exposed_ns) AS exposed_ns,
        avg(idle_ns) AS idle_ns,
        sum(hidden_ns) AS hidden_sum_ns,
        sum(communication_ns) AS communication_sum_ns
    FROM windows GROUP BY rank
)
"""
"""Each counted rank's own measures: its longest training step, and means over its steps and devices."""

_ITERATIONS_SQL = f"""
{_BY_RANK.rstrip()}
SELECT
    CAST(count(*) AS INTEGER) AS ranks,
    CAST(list(rank ORDER BY rank) AS INTEGER[]) AS covered_ranks,
    max(step_ns) AS step_ns,
    CAST(round(avg(compute_ns)) AS BIGINT) AS compute_ns,
    CAST(round(avg(communication_ns)) AS BIGINT) AS communication_ns,
    CAST(round(avg(hidden_ns)) AS BIGINT) AS hidden_ns,
    CAST(round(avg(exposed_ns)) AS BIGINT) AS exposed_ns,
    CAST(round(avg(idle_ns)) AS BIGINT) AS idle_ns,
    sum(hidden_sum_ns) / nullif(sum(communication_sum_ns), 0) AS hidden_share,
    (SELECT rank FROM by_rank WHERE compute_ns > 0 ORDER BY by_rank.compute_ns DESC, rank LIMIT 1)
        AS longest_computation_rank,
    (
        SELECT 1 - sum(classified_ns) / nullif(sum(kernel_ns), 0) FROM traces
        WHERE run = $run AND iteration = $iteration AND rank IN (SELECT rank FROM by_rank)
    ) AS unclassified_share,
    (
        SELECT CASE WHEN count(DISTINCT step_kind) = 1 AND count(*) = count(step_kind) THEN any_value(step_kind) END
        FROM traces WHERE run = $run AND iteration = $iteration AND rank IN (SELECT rank FROM by_rank)
    ) AS step_kind
FROM by_rank
HAVING count(*) > 0
"""

ITERATIONS_SQL = _ITERATIONS_SQL.format(ranks=_WHOLE_RANKS, stale=_STALE_RANKS)
"""Over the ranks that were read whole."""

RANK_MEASURES_SQL = _BY_RANK.format(ranks="", stale=_STALE_RANKS) + (
    "SELECT rank, step_ns, compute_ns, exposed_ns FROM by_rank"
)
"""The measures of each rank that those of the iteration are made of."""

ITERATIONS_WITH_PARTIAL_SQL = _ITERATIONS_SQL.format(ranks="", stale=_STALE_RANKS)
"""Over all ranks with tables, those that were read in part among them."""

_STATED_SQL = """
WITH {stale},
files AS (
    SELECT * FROM traces
    WHERE run = $run AND iteration = $iteration AND status <> 'failed' AND rank NOT IN (FROM stale)
),
measured AS (
    SELECT bool_or(window_name = 'step') AS has_step FROM overlap
    WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND window_name IN ('step', 'kernels'){ranks}
        AND rank NOT IN (FROM stale)
    GROUP BY rank, device
)
SELECT
    coalesce(list(DISTINCT settings ORDER BY settings) FILTER (settings IS NOT NULL), []) AS settings,
    coalesce(list(DISTINCT device_name ORDER BY device_name) FILTER (device_name IS NOT NULL), []) AS devices,
    greatest(
        max(world_size),
        (SELECT nullif(count(*), 0) FROM topology WHERE run = $run AND iteration = $iteration)
    ) AS expected_ranks,
    coalesce((SELECT bool_and(has_step) FROM measured), FALSE) AS steps_marked,
    coalesce((SELECT bool_or(status <> 'read') FROM files WHERE TRUE{ranks}), FALSE) AS in_part
FROM files
"""

STATED_SQL = _STATED_SQL.format(ranks=_WHOLE_RANKS, stale=_STALE_RANKS)
"""What the traces state of the job, and whether the ranks that were read whole have a training step marked each."""

STATED_WITH_PARTIAL_SQL = _STATED_SQL.format(ranks="", stale=_STALE_RANKS)
"""The same, of all ranks with tables."""

FILES_SQL = f"""
WITH {_STALE_RANKS}
SELECT
    rank, file, status, fault, world_size, captured_ranks, pipeline, stage, backend, device_name,
    has_stacks, has_shapes, has_groups, has_host_rows, steps, {TAKEN_STEPS_SQL} AS taken_steps,
    forward_microbatches, backward_microbatches,
    coalesce(settings LIKE '%"hybrid_context_parallel": "True"%', false) AS uneven
FROM (FROM traces WHERE run = $run AND iteration = $iteration AND rank NOT IN (FROM stale)) AS traces
    LEFT JOIN (SELECT rank, pipeline, stage FROM topology WHERE run = $run AND iteration = $iteration) USING (rank)
ORDER BY rank
"""
"""How the trace of each rank was read that is not stale, and what it states of the job."""

_UNMADE_SQL = f"WITH {_STALE_RANKS} SELECT rank FROM unmade"

_DESCRIBED_SQL = "SELECT count(*) AS ranks FROM topology WHERE run = $run AND iteration = $iteration"


def iterations(
    lake: Lake, run: str, iteration: int, *, with_partial: bool = False, files: TraceFiles | None = None
) -> pa.Table:
    """What table ``iterations`` measures of one iteration; no row where no rank's overlap was measured.

    Ranks that were read in part are left out, as their times are too short, unless ``with_partial`` asks for them; the
    row is ``partial`` in either case. A rank with several steps or devices in the iteration enters the means with its
    own mean. ``partial`` is NULL where nothing was lost and nothing states how many ranks there should be.

    Args:
        files: its traces, where they were asked already.

    Returns:
        The columns of the table up to ``step_kind``.
    """
    sql = ITERATIONS_WITH_PARTIAL_SQL if with_partial else ITERATIONS_SQL
    measured = lake.query_iteration(sql, run=run, iteration=iteration)
    files = files or trace_files(lake, run, iteration)
    partial = pa.array([files.partial] * measured.num_rows, pa.bool_())
    measured = measured.add_column(measured.column_names.index("covered_ranks") + 1, "partial", partial)
    return measured.cast(pa.schema([ITERATIONS.schema.field(name) for name in measured.column_names]))


class StatedRow(TypedDict):
    """What the traces of an iteration state of its job.

    Attributes:
        settings: JSON objects as column ``settings`` of table ``traces`` has them, each once.
        devices: names of GPUs, each once.
        expected_ranks: ranks of the job; None where nothing states them.
        steps_marked: whether every device that is measured has a training step.
        in_part: whether ranks are measured whose trace was read, or whose training step was recorded, in part.
    """

    settings: list[str]
    devices: list[str]
    expected_ranks: int | None
    steps_marked: bool
    in_part: bool


def stated(lake: Lake, run: str, iteration: int, *, with_partial: bool = False) -> StatedRow:
    """What the traces that could be read state, for the measures that :func:`iterations` does not take of kernels."""
    sql = STATED_WITH_PARTIAL_SQL if with_partial else STATED_SQL
    (row,) = rows_of(lake.query_iteration(sql, run=run, iteration=iteration), StatedRow)
    return row


class FileRow(TypedDict):
    """A row of ``FILES_SQL``: columns of table ``traces``, and one more.

    Attributes:
        taken_steps: the training steps that were taken of the file.
        pipeline: its ordinal; stage: its place in it.
        uneven: whether replicas may run different numbers of micro-batches.
    """

    rank: int
    file: str
    status: str
    fault: str | None
    world_size: int | None
    captured_ranks: str | None
    pipeline: int | None
    stage: int | None
    backend: str | None
    device_name: str | None
    has_stacks: bool | None
    has_shapes: bool | None
    has_groups: bool | None
    has_host_rows: bool | None
    steps: list[int] | None
    taken_steps: list[int] | None
    forward_microbatches: list[int | None] | None
    backward_microbatches: list[int | None] | None
    uneven: bool


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """The traces of an iteration, those that failed among them, and the ranks that there should be.

    Attributes:
        rows: by rank, without those whose tables are stale.
        described: ranks in the topology.
        unmade: ranks whose trace of now could not be computed.
    """

    rows: tuple[FileRow, ...]
    described: int
    unmade: frozenset[int]

    @property
    def expected(self) -> int | None:
        """Ranks of the job: the larger of what headers and topology state; None where neither does."""
        stated = [self.described, *(row["world_size"] or 0 for row in self.rows)]
        return max(stated) or None if self.rows or self.unmade else None

    @property
    def failed(self) -> list[int]:
        """Ranks of which nothing could be used."""
        return sorted(self.unmade | {row["rank"] for row in self.rows if row["status"] == TraceStatus.FAILED.value})

    @property
    def in_part(self) -> list[int]:
        """Ranks of which a part was read."""
        return [row["rank"] for row in self.rows if row["status"] == TraceStatus.PARTIAL.value]

    @property
    def partial(self) -> bool | None:
        """Whether a rank is missing or was not read wholly, or ranks hold different training steps; None where nothing
        was lost, and nothing states how many ranks there should be."""
        failed = set(self.failed)
        steps = {str(row["taken_steps"]) for row in self.rows if row["taken_steps"] and row["rank"] not in failed}
        if failed or self.in_part or self.missing or len(steps) > 1:
            return True
        return None if self.expected is None else False

    @property
    def is_sample(self) -> bool:
        """Whether the capture meant to record some of the job's ranks alone."""
        return self.expected is not None and len(self.wanted) < self.expected

    @property
    def wanted(self) -> set[int]:
        """Ranks that should have a trace: those that the capture meant to record, else those of the job."""
        stated = [row["captured_ranks"] for row in self.rows if row["status"] != TraceStatus.FAILED.value]
        return set(expected_ranks(stated, self.expected, {row["rank"] for row in self.rows} | self.unmade))

    @property
    def missing(self) -> list[int]:
        """Those of them that have none."""
        return sorted(self.wanted - {row["rank"] for row in self.rows} - self.unmade)


def trace_files(lake: Lake, run: str, iteration: int) -> TraceFiles:
    """How each trace of an iteration was read."""
    queries = (FILES_SQL, _DESCRIBED_SQL, _UNMADE_SQL)
    files, described, unmade = lake.query_iteration_each(queries, run=run, iteration=iteration)
    (ranks,) = described["ranks"].to_pylist()
    return TraceFiles(tuple(rows_of(files, FileRow)), ranks, frozenset(unmade["rank"].to_pylist()))


def runs(lake: Lake, run: str, iteration: int, files: TraceFiles | None = None) -> pa.Table:
    """The row of table ``runs`` for one iteration; no row where no trace of it was ingested.

    ``parity`` compares call stacks, shapes, process groups, host rows and the profiled steps over the readable ranks. A
    rank whose trace does not state its backend or device contradicts nobody.

    Args:
        files: as of :func:`iterations`.
    """
    files = files or trace_files(lake, run, iteration)
    if not files.rows and not files.unmade:
        return RUNS.schema.empty_table()
    readable = [row for row in files.rows if row["status"] != TraceStatus.FAILED.value]
    missing = None if files.expected is None else files.missing
    recorded = {
        (row["has_stacks"], row["has_shapes"], row["has_groups"], row["has_host_rows"], str(row["steps"]))
        for row in readable
    }
    told = {
        "ranks": len(readable),
        "failed_ranks": files.failed,
        "partial_ranks": files.in_part,
        "missing_ranks": missing,
        "expected_ranks": files.expected,
        "captured_ranks": spanned(files.wanted) if files.is_sample else None,
        "complete": None if missing is None else not (missing or files.failed or files.in_part),
        "parity": len(recorded) == 1 if readable else None,
    }
    for column in ("backend", "device_name", "has_stacks", "has_shapes", "has_groups"):
        told[column] = _agreed([row[column] for row in readable])
    return pa.Table.from_pylist([told], RUNS.schema)


def _agreed(said: Sequence[str | bool | None]) -> str | bool | None:
    """What all say who say something; None where they say different things, or nothing."""
    different = set(said) - {None}
    return different.pop() if len(different) == 1 else None
