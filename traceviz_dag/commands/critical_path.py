"""``traceviz critical-path``: what the step time hangs on, nanosecond by nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RulesOption,
    RunOption,
    chosen_iterations,
    end_untold,
    heading,
    place,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import milliseconds, percent, print_json, print_table
from traceviz_dag.errors import UsageError

if TYPE_CHECKING:
    from traceviz_dag.pipeline.across_ranks import StoredIteration

_TITLES = {
    "cause": "What the path is made of",
    "rank": "Ranks that the path runs on",
    "stage": "Pipeline stages that the path runs on",
    "category": "Kernels on the path, by category",
}


def critical_path(
    path: PathArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    limit: Annotated[int, typer.Option(help="Rows of each table to print; 0 = all. JSON has all of them.")] = 12,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Follow the step back from its end, always to what came last: shortening anything else cannot shorten the step.

    Each nanosecond of the step is a kernel's run, a transfer, the host or a lag of one rank; the parts add up to the
    step. Waiting is never on the path. What shortening a part would gain is another question: see traceviz what-if.
    """
    if limit < 0:
        raise UsageError("--limit is a number of rows")
    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        answers = [_answer(each) for each in iterations]
        if json:
            print_json(answers)
        else:
            for each, answer in zip(iterations, answers, strict=True):
                _print(each, answer, limit)
    end_untold(answers)


def _answer(iteration: StoredIteration) -> dict[str, Any]:
    from traceviz_dag.analyze.causes.path_profile import path_legs, path_profile

    segments, steps = iteration.table("path_segments"), iteration.table("what_if")
    refusals = sorted(set(steps["refusal"].drop_null().to_pylist()))
    return {
        **place(iteration),
        "certain": not refusals,
        "reason": refusals[0] if refusals else None,
        "step_ns": sum(segments["duration_ns"].to_pylist()) if segments.num_rows else None,
        "edges": _edges(iteration),
        **{name: path_profile(segments, name) for name in (*_TITLES, "module", "dimension")},
        "legs": path_legs(segments),
    }


def _edges(iteration: StoredIteration) -> list[dict[str, Any]]:
    counted = iteration.table("path_edges").group_by(["kind", "edge_evidence"]).aggregate([([], "count_all")])
    return sorted(counted.rename_columns(["kind", "edge_evidence", "edges"]).to_pylist(), key=lambda row: -row["edges"])


def _print(iteration: StoredIteration, answer: dict[str, Any], limit: int) -> None:
    if answer["step_ns"] is None:
        typer.echo(f"\n{heading(iteration, 'no critical path')}")
        return
    typer.echo(f"\n{heading(iteration, _statement(answer))}")
    for name, title in _TITLES.items():
        rows = answer[name]
        print_table(
            title if len(rows) <= limit or not limit else f"{title}: the first {limit} of {len(rows)}",
            [name, "ms", "of the step"],
            [[row[name], milliseconds(row["path_ns"]), percent(row["share"])] for row in rows[: limit or None]],
        )


def _statement(answer: dict[str, Any]) -> str:
    """How long the step is, and which rank has most of the path."""
    ranks: Sequence[dict[str, Any]] = answer["rank"]
    first = ranks[0]
    return (
        f"step {milliseconds(answer['step_ns'])} ms; its critical path runs on rank {first['rank']} for "
        f"{milliseconds(first['path_ns'])} ms ({percent(first['share'])}), on {len(ranks)} ranks in all"
    )
