"""Numbers of a partition that Dagster plots on the asset's page: one series over the iterations each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from traceviz_dag.system.duckdb_memory import scratch_database


@dataclass(frozen=True, slots=True)
class Plot:
    """One number of a partition.

    Attributes:
        sql: an aggregate over the rows of the partition; what is NULL is not plotted.
        says: what it is, with its unit, as a part of a sentence.
    """

    sql: str
    says: str


_OF_ALL_RANKS = "WHERE replica IS NULL AND dimension IS NULL AND factor ="
_FACTORS = {
    "parallel_efficiency": "what the mean rank computes, as a share of the step",
    "load_balance": "useful time of the mean rank as a share of the longest",
    "serialisation": "the longest useful time as a share of the step without transfers and hosts",
    "transfer": "the step without transfers as a share of that with them",
    "host": "the step without hosts as a share of that with them",
}

PLOTS: Mapping[str, Mapping[str, Plot]] = {
    "iterations": {
        "exposed_share": Plot(
            "any_value(exposed_ns) / nullif(any_value(step_ns), 0)",
            "exposed communication, mean over the ranks, as a share of the longest step",
        ),
        "mfu": Plot("any_value(mfu)", "model FLOP utilisation of the longest step, 1 being the peak of all GPUs"),
    },
    "collectives": {
        "matched_share": Plot(
            "count(*) FILTER (WHERE fault IS NULL) / nullif(count(*), 0)", "share of rows without a fault"
        ),
        "exposed_wait_ns": Plot("sum(exposed_wait_ns)", "exposed waits of all ranks, as far as they are known, ns"),
    },
    "rank_clocks": {
        "solved_ranks": Plot("count(*) FILTER (WHERE refusal IS NULL)", "ranks whose clock is solved"),
    },
    "late_ranks": {
        "blamed_ranks": Plot("count(*) FILTER (WHERE blamed)", "ranks that are to blame"),
        "longest_own_ns": Plot("max(own_ns)", "the longest delay of a rank's own, ns"),
    },
    "links": {"slow_ranks": Plot("count(*) FILTER (WHERE slow)", "ranks with slow links")},
    "link_groups": {"slow_groups": Plot("count(*)", "groups with a slow link that no rank is named for")},
    "expert_loads": {"highest_load": Plot("max(load)", "the highest load; 1 is even")},
    "rank_speeds": {
        "slow_ranks": Plot("count(*) FILTER (WHERE slow)", "ranks that compute slowly"),
        "highest_ratio": Plot("max(ratio)", "the slowest rank's time to that of its median peer"),
    },
    "stage_speeds": {
        "highest_ratio": Plot("max(ratio)", "the slowest stage's kernels to the same on the other stages"),
    },
    "group_speeds": {
        "slow_groups": Plot("count(*) FILTER (WHERE slow)", "groups, nodes and stages that are slow as a whole"),
        "highest_ratio": Plot("max(ratio)", "the slowest one's time to that of ranks outside"),
    },
    "utilization": {
        "hfu": Plot(
            "min(hfu) FILTER (WHERE part = 'job')",
            "hardware FLOP utilisation of the step, 1 being the peak of all GPUs",
        ),
        "tokens_per_s": Plot("min(tokens_per_s)", "tokens per second of the whole job"),
    },
    "pipelines": {
        "bubble_share": Plot(
            "sum(bubble_ns) FILTER (WHERE refusal IS NULL) / nullif(sum(span_ns) FILTER (WHERE refusal IS NULL), 0)",
            "bubble of all stages whose bubble is in parts, as a share of their spans",
        ),
        "fill_drain_ns": Plot("sum(fill_drain_ns)", "of the bubble: fill and drain, all stages together, ns"),
        "imbalance_ns": Plot("sum(imbalance_ns)", "of the bubble: imbalance, all stages together, ns"),
        "jitter_ns": Plot("sum(jitter_ns)", "of the bubble: jitter, all stages together, ns"),
        "stall_ns": Plot("sum(stall_ns)", "of the bubble: stall, all stages together, ns"),
    },
    "periods": {
        "lowest_score": Plot(
            "min(overlap_score) FILTER (WHERE kind = 'stages')", "the lowest OverlapScore of neighbouring stages"
        ),
        "median_period_ns": Plot(
            "CAST(round(median(period_ns) FILTER (WHERE kind = 'stages')) AS BIGINT)",
            "the median period of neighbouring stages, ns",
        ),
    },
    "period_percentiles": {
        "overlap_score_stages": Plot(
            "min(score_p50) FILTER (WHERE kind = 'stages')", "the lowest median OverlapScore of neighbouring stages"
        ),
        "overlap_score_dimensions": Plot(
            "min(score_p50) FILTER (WHERE kind = 'dimension')",
            "the lowest median OverlapScore of computation and a dimension",
        ),
        "overlap_score_named": Plot(
            "min(score_p50) FILTER (WHERE kind = 'named')", "the lowest median OverlapScore of a named pair"
        ),
    },
    "path_segments": {
        "work_share": Plot(
            "sum(duration_ns) FILTER (WHERE cause = 'work') / nullif(sum(duration_ns), 0)",
            "work of ranks as a share of the critical path",
        ),
        "transfer_share": Plot(
            "sum(duration_ns) FILTER (WHERE cause = 'transfer') / nullif(sum(duration_ns), 0)",
            "transfers as a share of the critical path",
        ),
    },
    "critical_imbalance": {"imbalance_ns": Plot("sum(imbalance_ns)", "critical imbalance of all categories, ns")},
    "efficiencies": {
        factor: Plot(
            f"sum(ideal_ns) FILTER ({_OF_ALL_RANKS} '{factor}')"
            f" / nullif(sum(time_ns) FILTER ({_OF_ALL_RANKS} '{factor}'), 0)",
            f"{words}, all steps together",
        )
        for factor, words in _FACTORS.items()
    },
    "delay_costs": {
        "cost_ns": Plot("sum(cost_ns)", "all waits of ranks for one another, ns"),
        "largest_share": Plot(
            "max(cost_ns) / nullif(sum(cost_ns), 0)", "the largest cost of one rank and cause, as a share of all waits"
        ),
    },
    "what_if": {
        "largest_gain_ns": Plot("max(gain_ns)", "the largest predicted gain of one edit, ns"),
        "largest_gain_share": Plot(
            "max(gain_ns / nullif(step_ns, 0))", "the largest predicted gain as a share of its step"
        ),
    },
    "advice": {
        "best_speed": Plot(
            "max(tokens_per_second) FILTER (WHERE same_batch)", "tokens per second of the best change, relative to now"
        ),
    },
    "findings": {
        "findings": Plot("count(*) FILTER (WHERE severity = 'finding')", "findings that are no notes"),
        "faults": Plot(
            "count(*) FILTER (WHERE severity = 'finding' AND class = 'fault')",
            "of these, faults: a deviation from peers",
        ),
    },
}
"""Table → name in Dagster → what is plotted."""


def plotted(table: str, rows: pa.Table) -> dict[str, int | float]:
    """The numbers of one partition, without those that its rows do not show."""
    plots = PLOTS.get(table, {})
    if not plots:
        return {}
    selected = ", ".join(plot.sql for plot in plots.values())
    with scratch_database() as connection:
        connection.register("partition_rows", rows)
        found = connection.execute(f"SELECT {selected} FROM partition_rows").fetchall()[0]
    return {name: value for name, value in zip(plots, found, strict=True) if value is not None}
