"""Rows of small tables, typed, for code that reads them one by one; a large table is read by its columns.

A row is a mapping from column to value: what a command prints as JSON is the row that it read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict, TypeGuard, TypeVar, cast

import pyarrow as pa

Row = TypeVar("Row")


class TopologyRow(TypedDict):
    """One rank in table ``topology``."""

    rank: int
    tp: int | None
    cp: int | None
    dp: int | None
    pp: int | None
    ep: int | None
    etp: int | None
    edp: int | None
    stage: int | None
    stages: int | None
    pipeline: int | None
    dense_replica: int | None
    expert_replica: int | None
    model_replica: int | None
    source: str | None


class ProcessGroupRow(TypedDict):
    """One group in table ``process_groups``."""

    group_name: str | None
    description: str | None
    dimension: str
    size: int
    ranks: list[int]
    source: str
    disagreement: str | None


class RankClockRow(TypedDict):
    """One rank in table ``rank_clocks``."""

    rank: int
    component: int
    reference_rank: int | None
    offset_ns: int | None
    drift_ppm: float | None
    reference_ns: int | None
    matches: int
    span_ns: int | None
    residual_p05_ns: int | None
    residual_p95_ns: int | None
    early_receives: int | None
    refusal: str | None


class TraceStatusRow(TypedDict):
    """How the trace of one rank was read, from table ``traces``."""

    rank: int
    file: str
    status: str
    fault: str | None


class OverlapRow(TypedDict):
    """The measures of one window, device and dimension of a rank, from table ``overlap``."""

    device: str
    window_name: str
    step: int | None
    dimension: str
    window_start_ns: int
    window_end_ns: int
    compute_ns: int
    communication_ns: int
    hidden_ns: int
    exposed_ns: int
    memory_ns: int
    busy_ns: int
    idle_ns: int


class LostRanksRow(TypedDict):
    """The ranks that an iteration's figures do not cover wholly, from table ``runs``."""

    failed_ranks: list[int]
    partial_ranks: list[int]
    missing_ranks: list[int]


class PipelineRow(TypedDict):
    """The bubble of one stage, from table ``pipelines``; its parts are None where ``refusal`` says why."""

    step: int | None
    pipeline: int
    stage: int
    rank: int
    schedule: str | None
    microbatches: int | None
    span_ns: int
    ideal_ns: int | None
    bubble_ns: int | None
    fill_drain_ns: int | None
    imbalance_ns: int | None
    jitter_ns: int | None
    stall_ns: int | None
    bubble_share: float | None
    ideal_share: float | None
    idle_share: float | None
    refusal: str | None


class PartedPipelineRow(PipelineRow):
    """The same where the bubble is known."""

    ideal_ns: int  # type: ignore[misc]
    bubble_ns: int  # type: ignore[misc]
    fill_drain_ns: int  # type: ignore[misc]
    imbalance_ns: int  # type: ignore[misc]
    jitter_ns: int  # type: ignore[misc]
    stall_ns: int  # type: ignore[misc]
    bubble_share: float  # type: ignore[misc]
    ideal_share: float  # type: ignore[misc]


def is_parted(row: PipelineRow) -> TypeGuard[PartedPipelineRow]:
    """Whether the bubble of a stage is known."""
    return row["bubble_ns"] is not None


class IterationRow(TypedDict):
    """The one row of an iteration in table ``iterations``."""

    ranks: int
    covered_ranks: list[int]
    partial: bool | None
    step_ns: int
    compute_ns: int
    communication_ns: int
    hidden_ns: int
    exposed_ns: int
    idle_ns: int
    hidden_share: float | None
    longest_computation_rank: int
    unclassified_share: float | None
    step_kind: str | None
    model_flops_per_gpu: int | None
    peak_format: str | None
    peak_flops_per_s: int | None
    mfu: float | None
    mfu_refusal: str | None


def columns_of(row: type[Row]) -> list[str]:
    """The columns that a kind of row has, in its order."""
    return [*row.__annotations__]


def rows_of(table: pa.Table, row: type[Row]) -> list[Row]:
    """All rows of a small table.

    Args:
        table: has at least the columns of ``row``; others are left out.
        row: a TypedDict.

    Raises:
        KeyError: a column is missing.
    """
    return cast("list[Row]", table.select(columns_of(row)).to_pylist())


def of_ranks(table: pa.Table, ranks: Iterable[int]) -> pa.Table:
    """The rows of some ranks, of a table with a column ``rank``."""
    # Takes a tenth of the start of a small command, most of which ask for no ranks.
    import pyarrow.compute as pc

    return table.filter(pc.is_in(table["rank"], pa.array(list(ranks), table["rank"].type)))
