"""``traceviz pipelines``: what the bubble of each stage is made of, and where the stage idles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from traceviz_dag.commands.across import (
    IterationOption,
    PathArgument,
    RulesOption,
    RunOption,
    chosen_iterations,
    heading,
    place,
)
from traceviz_dag.commands.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.output import milliseconds, percent, print_json, print_table

if TYPE_CHECKING:
    from traceviz_dag.across_ranks import StoredIteration


def pipelines(
    path: PathArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show the bubble of every pipeline stage in parts that add up: fill and drain, imbalance, jitter, stall.

    The bubble is measured against the mean stage of the pipeline; idle is the stage's own idle time. All times are on
    the stage's own clock.
    """
    from traceviz_dag.analyze.pipeline_views import replica_stages, stage_spread

    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        answers = []
        for each in iterations:
            table = each.table("pipelines")
            answer = {
                **place(each),
                "pipelines": [_without_place(row) for row in table.to_pylist()],
                "replicas": replica_stages(table).to_pylist(),
                "stages": stage_spread(table).to_pylist(),
            }
            answers.append(answer)
            if not json:
                _print(each, answer)
        if json:
            print_json(answers)


def _without_place(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("run", "iteration")}


def _print(iteration: StoredIteration, answer: dict[str, Any]) -> None:
    rows = answer["pipelines"]
    if not rows:
        typer.echo(f"\n{heading(iteration, 'no pipeline of two or more stages')}")
        return
    print_table(
        heading(iteration, "bubble of each stage, ms"),
        [
            *("pipeline", "stage", "rank", "schedule", "m", "T", "bubble", "fill/drain", "imbalance", "jitter"),
            *("stall", "share", "ideal", "idle", "warm-up", "steady", "cool-down"),
        ],
        [
            [
                *(row["pipeline"], row["stage"], row["rank"], row["schedule"], row["microbatches"]),
                *(
                    milliseconds(row[f"{name}_ns"])
                    for name in ("span", "bubble", "fill_drain", "imbalance", "jitter", "stall")
                ),
                *(percent(row["bubble_share"]), percent(row["ideal_share"])),
                *(milliseconds(row[f"{name}_ns"]) for name in ("idle", "warmup_idle", "steady_idle", "cooldown_idle")),
            ]
            for row in rows
        ],
    )
    for line in _statements(answer):
        typer.echo(f"  {line}")


def _statements(answer: dict[str, Any]) -> list[str]:
    lines = [f"pipeline {row['pipeline']}: {row['refusal']}" for row in answer["pipelines"] if row["refusal"]]
    lines = list(dict.fromkeys(lines))
    told = [row for row in answer["pipelines"] if row["bottleneck_excess"] is not None]
    if told:
        worst = max(told, key=lambda row: row["bottleneck_excess"])
        lines.append(
            f"slowest stage of pipeline {worst['pipeline']} is {worst['bottleneck_stage']}: "
            f"{percent(worst['bottleneck_excess'])} above the mean stage"
        )
    spread = max(answer["stages"], key=lambda row: row["spread"], default=None)
    if spread is not None and spread["ranks"] > 1:
        lines.append(
            f"ranks of stage {spread['stage']} differ most: rank {spread['slowest_rank']} takes "
            f"{percent(spread['spread'])} longer than their median"
        )
    return lines
