"""What the tables of one iteration say together: how its traces were read, and the measures of its ranks as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import floor
from typing import Any, TypedDict, cast

import pyarrow as pa

from traceviz_dag.lake.lake import Lake
from traceviz_dag.spans import expected_ranks, spanned
from traceviz_dag.tables import ITERATIONS, RUNS
from traceviz_dag.tables.rows import columns_of
from traceviz_dag.vocabulary import StaleCause, StaleStage, TraceStatus

AGGREGATED_TABLES = ("iterations", "runs")
"""The tables with one row that are made of an iteration's others, in the order in which they are written."""


class RankMeasures(TypedDict):
    """A rank's own measures: its longest training step, and means over its steps and devices, ns.

    Attributes:
        hidden_sum_ns, communication_sum_ns: over them together.
        marked: whether every device has a training step.
    """

    rank: int
    step_ns: int
    compute_ns: float
    communication_ns: float
    hidden_ns: float
    exposed_ns: float
    idle_ns: float
    hidden_sum_ns: int
    communication_sum_ns: int
    marked: bool


_MEANS = ("compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "idle_ns")
_WINDOW = ("rank", "device", "window_name", "dimension", "window_start_ns", "window_end_ns", *_MEANS)


def rank_measures(lake: Lake, run: str, iteration: int) -> list[RankMeasures]:
    """The measures of each rank that those of the iteration are made of, by rank.

    A device with training steps is measured by them, another one from its first kernel to its last.
    """
    return _of_ranks(_windows(lake, run, iteration))


def step_measures(lake: Lake, run: str, iteration: int) -> list[list[RankMeasures]]:
    """The measures of each rank in each training step of an iteration, in order; the longest alone, as of
    :func:`rank_measures`, where not every device of every rank has equally many."""
    windows = _windows(lake, run, iteration)
    counts = {len(rows) if rows[0]["window_name"] == "step" else 1 for rows in windows.values()}
    if len(counts) != 1 or counts == {1}:
        return [_of_ranks(windows)] if windows else []
    return [_of_ranks({of: [rows[number]] for of, rows in windows.items()}) for number in range(counts.pop())]


def _windows(lake: Lake, run: str, iteration: int) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """(Rank, device) → its windows that are measured, by start."""
    import pyarrow.compute as pc

    overlap = lake.rows("overlap", run, iteration, _WINDOW)
    whole = pc.equal(overlap["dimension"].cast(pa.string()), "all")
    of_device: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in overlap.filter(whole).to_pylist():
        if row["window_name"] in ("step", "kernels"):
            of_device.setdefault((row["rank"], row["device"]), []).append(row)
    return {
        of: sorted(
            [row for row in rows if row["window_name"] == "step"] or rows, key=lambda row: row["window_start_ns"]
        )
        for of, rows in sorted(of_device.items())
    }


def _of_ranks(windows: Mapping[tuple[int, str], list[dict[str, Any]]]) -> list[RankMeasures]:
    of_rank: dict[int, list[list[dict[str, Any]]]] = {}
    for (rank, _), rows in windows.items():
        of_rank.setdefault(rank, []).append(rows)
    return [_measures(rank, list(chain(*devices)), devices) for rank, devices in of_rank.items()]


def _measures(rank: int, rows: Sequence[dict[str, Any]], devices: Sequence[Sequence[dict[str, Any]]]) -> RankMeasures:
    sums = {name: sum(row[name] for row in rows) for name in _MEANS}
    return RankMeasures(
        rank=rank,
        step_ns=max(row["window_end_ns"] - row["window_start_ns"] for row in rows),
        hidden_sum_ns=sums["hidden_ns"],
        communication_sum_ns=sums["communication_ns"],
        marked=all(rows[0]["window_name"] == "step" for rows in devices),
        **{name: value / len(rows) for name, value in sums.items()},  # type: ignore[typeddict-item]
    )


def iterations(
    lake: Lake,
    run: str,
    iteration: int,
    *,
    with_partial: bool = False,
    files: TraceFiles | None = None,
    measures: Sequence[RankMeasures] | None = None,
) -> pa.Table:
    """What table ``iterations`` measures of one iteration; no row where no rank's overlap was measured.

    Ranks that were read in part are left out, as their times are too short, unless ``with_partial`` asks for them; the
    row is ``partial`` in either case. A rank with several steps or devices in the iteration enters the means with its
    own mean. ``partial`` is NULL where nothing was lost and nothing states how many ranks there should be.

    Args:
        files, measures: its traces, and what its ranks measure, where they were asked already.

    Returns:
        The columns of the table up to ``step_kind``.
    """
    files = files or trace_files(lake, run, iteration)
    measures = rank_measures(lake, run, iteration) if measures is None else measures
    left_out = set() if with_partial else {*files.in_part, *files.failed}
    counted = [one for one in measures if one["rank"] not in left_out]
    schema = pa.schema([ITERATIONS.schema.field(at) for at in range(ITERATIONS.schema.names.index("step_kind") + 1)])
    if not counted:
        return schema.empty_table()
    covered = [one["rank"] for one in counted]
    traces = [row for row in files.rows if row["rank"] in set(covered)]
    kernel_ns = sum(row["kernel_ns"] or 0 for row in traces)
    communication_ns = sum(one["communication_sum_ns"] for one in counted)
    longest = min(counted, key=lambda one: (-one["compute_ns"], one["rank"]))
    kinds = {row["step_kind"] for row in traces}
    row = {
        "ranks": len(counted),
        "covered_ranks": covered,
        "partial": files.partial,
        "step_ns": max(one["step_ns"] for one in counted),
        # Halves go up.
        **{name: floor(sum(one[name] for one in counted) / len(counted) + 0.5) for name in _MEANS},  # type: ignore[literal-required]
        "hidden_share": sum(one["hidden_sum_ns"] for one in counted) / communication_ns if communication_ns else None,
        "longest_computation_rank": longest["rank"] if longest["compute_ns"] > 0 else None,
        "unclassified_share": 1 - sum(row["classified_ns"] or 0 for row in traces) / kernel_ns if kernel_ns else None,
        "step_kind": kinds.pop() if len(kinds) == 1 else None,
    }
    return pa.Table.from_pylist([row], schema)


class FileRow(TypedDict):
    """How the trace of a rank was read, and what it states: columns of table ``traces``, and more.

    Attributes:
        taken_steps: the training steps that were taken of the file: of several, each taken for itself, its own.
        pipeline: its ordinal; stage: its place in it.
        uneven: whether replicas may run different numbers of micro-batches.
    """

    rank: int
    file: str
    status: str
    fault: str | None
    world_size: int | None
    captured_ranks: str | None
    host_clock_ns: int | None
    pipeline: int | None
    stage: int | None
    format: str | None
    framework: str | None
    backend: str | None
    device_name: str | None
    device_memory_bytes: int | None
    nccl_version: str | None
    runtime_version: str | None
    driver_version: str | None
    driver_release: str | None
    profiler_version: str | None
    has_stacks: bool | None
    has_shapes: bool | None
    has_groups: bool | None
    has_host_rows: bool | None
    settings: str | None
    kernel_ns: int | None
    classified_ns: int | None
    step_kind: str | None
    steps: list[int] | None
    cut_steps: list[int] | None
    taken_steps: list[int] | None
    forward_microbatches: list[int | None] | None
    backward_microbatches: list[int | None] | None
    uneven: bool


_PLACE, _FOLLOWING = ("pipeline", "stage"), ("taken_steps", "uneven")
_UNEVEN = '"hybrid_context_parallel": "True"'


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
    def readable(self) -> list[FileRow]:
        """The traces of which something could be used."""
        return [row for row in self.rows if row["status"] != TraceStatus.FAILED.value]

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
        stated = [row["captured_ranks"] for row in self.readable]
        return set(expected_ranks(stated, self.expected, {row["rank"] for row in self.rows} | self.unmade))

    @property
    def missing(self) -> list[int]:
        """Those of them that have none."""
        return sorted(self.wanted - {row["rank"] for row in self.rows} - self.unmade)


def trace_files(lake: Lake, run: str, iteration: int) -> TraceFiles:
    """How each trace of an iteration was read."""
    marks = [row for row in lake.stale(run, iteration) if row.stage == StaleStage.RANKS and not row.is_counted]
    places = {row["rank"]: row for row in lake.rows("topology", run, iteration, ["rank", *_PLACE]).to_pylist()}
    columns = [name for name in columns_of(FileRow) if name not in (*_PLACE, *_FOLLOWING)]
    rows = []
    for row in lake.rows("traces", run, iteration, columns).to_pylist():
        place = places.get(row["rank"], dict.fromkeys(_PLACE))
        several = iteration in (row["steps"] or ())
        row |= {"taken_steps": [iteration] if several else row["steps"], "uneven": _UNEVEN in (row["settings"] or "")}
        rows.append({name: place[name] if name in _PLACE else row[name] for name in columns_of(FileRow)})
    unmade = frozenset(row.rank for row in marks if row.rank is not None and row.cause != StaleCause.UNLISTED)
    return TraceFiles(tuple(cast("list[FileRow]", rows)), len(places), unmade)


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
    readable = files.readable
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
