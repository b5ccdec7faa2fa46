"""``traceviz pipelines``: what the bubble of each stage is made of, and where the stage idles."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RulesOption,
    RunOption,
    chosen_iterations,
    each_printed,
    end_untold,
    print_lead,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json, print_wrapped
from traceviz_dag.pipeline.answers.iterations import heading, place, slow_statements, table_rows

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

TOLD_SPREAD = 0.01
"""From this on it is said that the ranks of a stage differ; below, it is the jitter of healthy jobs."""


def pipelines(
    path: PathArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show the bubble of every pipeline stage in parts that add up: fill and drain, imbalance, jitter, stall.

    The bubble is measured against the mean stage of the pipeline; idle is the stage's own time without a micro-batch.
    Both are of one training step, on the stage's own clock. The exit code is 2 if the traces do not show pipelines
    or micro-batches.
    """
    with chosen_iterations(path, home, run, iteration, rules, printed="findings") as iterations:
        answers = [_answer(each) for each in iterations]
        if json:
            print_json(answers)
        else:
            for each, answer in each_printed(iterations, answers):
                _print(each, answer)
    end_untold(answers)


def _answer(iteration: StoredIteration) -> dict[str, Any]:
    from traceviz_dag.analyze.pipelines.pipeline_views import replica_stages, stage_spread
    from traceviz_dag.analyze.pipelines.pipelines import no_bubble
    from traceviz_dag.analyze.stage_times import slowest_statement
    from traceviz_dag.pipeline.stored_iteration import stored_stage_times

    table = iteration.table("pipelines")
    reason, certain = None, True
    if not table.num_rows:
        reason, certain = no_bubble(iteration.microbatches, iteration.topology) or ("not computed", False)
    times = stored_stage_times(iteration.lake, iteration.run, iteration.iteration)
    refused = {row["refusal"] for row in table.select(["refusal"]).to_pylist()} - {None}
    if refused:
        reason, certain = f"not every bubble can be parted: {'; '.join(sorted(refused))}", False
    slowest = slowest_statement(times)
    slow: list[Any] = table_rows(iteration, "rank_speeds")
    return {
        **place(iteration),
        "pipelines": table_rows(iteration, "pipelines"),
        "replicas": replica_stages(table).to_pylist(),
        "stages": stage_spread(table).to_pylist(),
        "stage_times": [asdict(stage) for stage in times.stages],
        "slowest_stage": None if times.slowest is None else times.slowest.stage,
        "slow_ranks": slow,
        "statements": [*([slowest] if slowest else []), *slow_statements(slow)],
        "reason": reason,
        "certain": certain,
    }


def _print(iteration: StoredIteration, answer: dict[str, Any]) -> None:
    rows = answer["pipelines"]
    if not rows:
        typer.echo(f"\n{heading(iteration, answer['reason'])}")
        return
    steps = len({row["step"] for row in rows}) > 1
    first: dict[int | None, int] = {}
    for row in rows:
        at = iteration.lead.place(row["rank"])
        first[row["pipeline"]] = min(at, first.get(row["pipeline"], at))
    print_lead(iteration, wording.counted(len(first), "pipeline", "pipelines"))
    print_columns(
        "Bubble and idle time of each stage, in one training step",
        sorted(rows, key=lambda row: first[row["pipeline"]]),
        [
            *(["step"] if steps else []),
            *("pipeline", "stage", "rank", "schedule", "microbatches", "span_ns", "bubble_ns", "fill_drain_ns"),
            *("imbalance_ns", "jitter_ns", "stall_ns", "bubble_share", "ideal_share", "idle_ns", "idle_share"),
            *("warmup_idle_ns", "steady_idle_ns", "cooldown_idle_ns"),
        ],
    )
    for line in _statements(answer, steps):
        print_wrapped(line, 4, "  ")


def _statements(answer: dict[str, Any], steps: bool) -> list[str]:
    lines = [f"pipeline {row['pipeline']}: {row['refusal']}" for row in answer["pipelines"] if row["refusal"]]
    lines = [*dict.fromkeys(lines), *answer["statements"]]
    spread = max(answer["stages"], key=lambda row: row["spread"], default=None)
    if spread is not None and spread["ranks"] > 1 and spread["spread"] >= TOLD_SPREAD:
        in_step = f" in step {spread['step']}" if steps else ""
        lines.append(
            f"ranks of stage {spread['stage']} differ most{in_step}: rank {spread['longest_rank']} takes "
            f"{wording.percent(spread['spread'])} longer than their median for a micro-batch, waits for its tensor-, "
            "context- and expert-parallel peers included"
        )
    return lines
