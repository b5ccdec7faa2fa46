"""``traceviz periods``: does a pair of stages overlap, unit by unit, and how often does it not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RulesOption,
    RunOption,
    chosen_iterations,
    each_printed,
    end_untold,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json, print_wrapped
from traceviz_dag.pipeline.answers.iterations import heading, place

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

PairsOption = Annotated[
    Path | None, typer.Option("--pairs", help="TOML file of pairs to add: by stages, dimension, ranges or time stamps.")
]


def periods(
    path: PathArgument = None,
    pairs: PairsOption = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    units: Annotated[
        bool, typer.Option("--units", help="With --json: print every unit, not only percentiles.")
    ] = False,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show periods and OverlapScore of neighbouring stages, of computation and communication, and of named pairs.

    A score of 1 means that the pair takes no longer than its longer part; 0 means that the two take turns. Scores are
    not clamped. Percentiles are over the steady units of one training step, which the table names; a pair with fewer
    than two units has none. The exit code is 2 if no pair can be measured, or one only over
    fewer than all its ranks, unless the traces show that there is nothing to overlap.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from traceviz_dag.analyze.pipelines.period_summary import period_summary
    from traceviz_dag.analyze.pipelines.periods import NAMED
    from traceviz_dag.pipeline.named_periods import named_periods
    from traceviz_dag.read.pairs_file import read_pairs_file
    from traceviz_dag.tables import PERIODS

    named = read_pairs_file(pairs) if pairs is not None else ()
    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        answers = []
        for each in iterations:
            table = each.table("periods").select(PERIODS.schema.names)
            if named:
                stored = table.filter(pc.not_equal(table["kind"], NAMED))
                table = pa.concat_tables([stored, named_periods(each, named)])
            summary = period_summary(table).to_pylist()
            reason, certain = _reason(each, summary)
            answer = {**place(each), "pairs": summary, "reason": reason, "certain": certain}
            answers.append(answer | ({"units": table.to_pylist()} if units else {}))
        if json:
            print_json(answers)
        else:
            for each, answer in each_printed(iterations, answers):
                _print(heading(each, "periods in one training step"), answer["pairs"])
                if answer["certain"] and answer["reason"]:
                    print_wrapped(answer["reason"], 4, "  ")
    end_untold(answers)


def _reason(iteration: StoredIteration, summary: list[dict[str, Any]]) -> tuple[str | None, bool]:
    """Why no pair of an iteration has measures, or not those of all ranks (else None), and whether that is certain."""
    partial = [row for row in summary if row["over_fewer_ranks"]]
    if partial:
        steps = len({row["step"] for row in summary}) > 1
        named = ", ".join(_named(row, steps) for row in partial[:3])
        more = f" and {len(partial) - 3} more" if len(partial) > 3 else ""
        return f"the measures of {named}{more} are those of fewer than all ranks", False
    if any(row["refusal"] is None for row in summary):
        return None, True
    if summary and all(row["nothing_to_overlap"] for row in summary):
        return "nothing to overlap: no communication runs in the steady units", True
    if summary:
        return "no pair has measures; each says why", False
    if not iteration.microbatches.num_rows:
        return (
            "no micro-batch is known in these traces, so there are no periods; --pairs names pairs by other means",
            False,
        )
    return "no neighbouring stages and no communication beside computation, so there are no periods", True


def _print(title: str, summary: list[dict[str, Any]]) -> None:
    told = [row for row in summary if row["refusal"] is None]
    steps = len({row["step"] for row in summary}) > 1
    if told:
        print_columns(
            title,
            [{**row, "window": f"{row['first_unit']}-{row['last_unit']}"} for row in told],
            [
                *("pair", "stage", *(["step"] if steps else []), "ranks", "units", "window"),
                *("period_p50_ns", ("period_p90_ns", "p90"), ("period_p99_ns", "p99")),
                *(("stage0_p50_ns", "first"), ("stage1_p50_ns", "second")),
                *("score_p10", ("score_p50", "p50"), ("score_p90", "p90"), "worst_rank"),
            ],
        )
    else:
        typer.echo(f"\n{title}: none")
    for row in told:
        if row["modes"]:
            print_wrapped(f"{_named(row, steps)}: {row['modes']}", 4, "  ")
    for row in told:
        if row["without"]:
            mark = "PARTIAL, " if row["over_fewer_ranks"] else ""
            count = f"{row['ranks_without']} of {row['ranks'] + row['ranks_without']} ranks"
            print_wrapped(f"{_named(row, steps)}: {mark}{count} have no measures ({row['without']})", 4, "  ")
    for row, in_steps in _refused(summary):
        print_wrapped(f"{_named(row, False)}{in_steps if steps else ''}: none ({row['refusal']})", 4, "  ")


def _named(row: dict[str, Any], step: bool) -> str:
    stage = "" if row["stage"] is None else f", stage {row['stage']}"
    return f"{row['pair']}{stage}" + (f", step {row['step']}" if step else "")


def _refused(summary: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """The pairs without measures, once for all steps with one reason, and those steps in words."""
    steps: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in summary:
        if row["refusal"] is not None:
            steps.setdefault((row["kind"], row["pair"], row["stage"], row["refusal"]), []).append(row)
    return [
        (rows[0], f", step{'s' if len(rows) > 1 else ''} {', '.join(str(row['step']) for row in rows)}")
        for rows in steps.values()
    ]
