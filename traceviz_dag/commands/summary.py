"""What the main job prints of an iteration: step time, shares, exposed communication, the slowest stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traceviz_dag.commands.across import blame_statement
from traceviz_dag.commands.output import milliseconds, percent, print_table
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.summaries import (
    category_shares,
    communication_by_dimension,
    ranks_against_stage,
    stage_computation,
)

if TYPE_CHECKING:
    from traceviz_dag.completeness import Completeness
    from traceviz_dag.orchestrate import IterationResult


SLOW_RANK = 0.05
"""Computation beyond the median of its stage from which a rank is named."""

MOST_SLOW_RANKS = 5


def iteration_summary(home: Path, result: IterationResult, completeness: Completeness | None = None) -> dict[str, Any]:
    """The figures of one iteration, from its tables; see each named query for its definition.

    Args:
        completeness: what of the iteration was not read; by default as the lake tells it.
    """
    from traceviz_dag.completeness import stored_completeness

    lake = open_lake(home)
    completeness = completeness or stored_completeness(lake, result.run, result.iteration)
    summary: dict[str, Any] = {
        "run": result.run,
        "iteration": result.iteration,
        "ranks_computed": len(result.computed),
        "ranks_skipped": len(result.skipped),
        "ranks_failed": sorted(result.failed),
        "faults": {str(rank): fault for rank, fault in sorted(result.faults.items())},
        "aggregated": result.aggregated,
        **completeness.as_json(),
        "mark": completeness.mark,
    }
    if result.aggregated and lake.exists("iterations", run=result.run, iteration=result.iteration):
        rows = lake.table("iterations", result.run, result.iteration).arrow().to_pylist()
        summary["figures"] = rows[0] if rows else None
    summary["categories"] = category_shares(lake, result.run, result.iteration).to_pylist()
    summary["communication"] = communication_by_dimension(lake, result.run, result.iteration).to_pylist()
    summary["stages"] = stage_computation(lake, result.run, result.iteration).to_pylist()
    summary["ranks"] = ranks_against_stage(lake, result.run, result.iteration).to_pylist()
    summary["blamed"] = _blamed(lake, result.run, result.iteration)
    return summary


def print_summary(summary: dict[str, Any], *, tables: bool = True) -> None:
    """Print the figures for people: what the iteration shows first, then (with ``tables``) the tables behind it."""
    unreadable = len(summary["ranks_failed"])
    ranks = f"{summary['ranks_computed'] - unreadable} ranks computed, {summary['ranks_skipped']} unchanged"
    if unreadable:
        ranks += f", {unreadable} unreadable"
    mark = f" · {summary['mark']}" if summary["mark"] else ""
    typer.echo(f"\n{summary['run']} · iteration {summary['iteration']} · {ranks}{mark}")
    for line in _statements(summary):
        typer.echo(f"  {line}")
    if not tables:
        return
    ranks = _counted(summary)
    if summary["categories"]:
        print_table(
            f"Kernel time by category (sums of durations over {ranks})",
            ["category", "kernels", "time ms", "share"],
            [
                [row["category"], row["kernels"], milliseconds(row["time_ns"]), percent(row["share"])]
                for row in summary["categories"]
            ],
        )
    if summary["communication"]:
        print_table(
            f"Communication by dimension (unions, mean over {ranks})",
            ["dimension", "communication ms", "hidden ms", "exposed ms", "hidden"],
            [
                [
                    row["dimension"],
                    milliseconds(row["communication_ns"]),
                    milliseconds(row["hidden_ns"]),
                    milliseconds(row["exposed_ns"]),
                    percent(row["hidden_share"]),
                ]
                for row in summary["communication"]
            ],
        )


def _counted(summary: dict[str, Any]) -> str:
    """Which ranks figures across ranks speak of, in words."""
    from traceviz_dag.completeness import ranks_in_words

    if not summary["mark"]:
        return "all ranks"
    figures = summary.get("figures")
    return f"{ranks_in_words(figures['covered_ranks'])} alone" if figures else "the ranks that were read whole"


def _statements(summary: dict[str, Any]) -> list[str]:
    """One line a statement, each with the table it can be checked in."""
    from traceviz_dag.completeness import ranks_in_words

    lines = []
    figures = summary.get("figures")
    if figures is None and not summary["aggregated"]:
        lines.append("not aggregated: some ranks could not be read; --allow-partial goes on without them")
    elif figures is None:
        lines.append("no figures across ranks: no rank was read whole; --allow-partial counts those read in part")
    if figures:
        share = figures["exposed_ns"] / figures["step_ns"] if figures["step_ns"] else None
        counted = sorted(set(summary["partial_ranks"]) & set(figures["covered_ranks"]))
        if counted:
            lines.append(f"{ranks_in_words(counted)} read in part, and counted all the same (--allow-partial)")
        partial = ", PARTIAL" if figures["partial"] else ""
        lines += [
            f"step {milliseconds(figures['step_ns'])} ms over {figures['ranks']} ranks{partial} (table iterations)",
            f"exposed communication {milliseconds(figures['exposed_ns'])} ms a rank, {percent(share)} of the step; "
            f"{percent(figures['hidden_share'])} of communication is hidden (table overlap)",
        ]
        if figures["unclassified_share"]:
            unclassified = percent(figures["unclassified_share"])
            lines.append(f"{unclassified} of kernel time has no category: the evidence does not say (traceviz doctor)")
    of = " of those that were read" if summary["mark"] else ""
    lines += _slowest_stage(summary["stages"], of) + _slow_ranks(summary["ranks"])
    return lines + [f"{blame_statement(row)} (traceviz waits)" for row in summary["blamed"][:MOST_SLOW_RANKS]]


def _blamed(lake: Lake, run: str, iteration: int) -> list[dict[str, Any]]:
    """The ranks that made their peers wait, the longest delay first; none where the waits are not known."""
    from traceviz_dag.analyze.blame import JUDGED_COLUMNS, blamed_ranks, late_ranks

    if not lake.exists("collectives", run=run, iteration=iteration):
        return []
    return blamed_ranks(late_ranks(lake.table("collectives", run, iteration).arrow(JUDGED_COLUMNS)))


def _slowest_stage(stages: list[dict[str, Any]], of: str) -> list[str]:
    if len(stages) < 2:
        return []
    slowest = stages[0]
    others = sorted(row["compute_ns"] for row in stages[1:])
    ahead = slowest["compute_ns"] / others[len(others) // 2] - 1
    return [
        f"slowest stage{of} {slowest['stage']}: {milliseconds(slowest['compute_ns'])} ms of computation a rank, "
        f"{ahead:+.1%} on the median of the others (table microbatches)"
    ]


def _slow_ranks(ranks: list[dict[str, Any]]) -> list[str]:
    return [
        f"rank {row['rank']} computes {row['above_median']:+.1%} against the median of stage {row['stage']}, whose "
        f"ranks do the same work: {milliseconds(row['compute_ns'])} ms to {milliseconds(row['stage_median_ns'])} ms"
        for row in ranks
        if row["above_median"] > SLOW_RANK
    ][:MOST_SLOW_RANKS]
