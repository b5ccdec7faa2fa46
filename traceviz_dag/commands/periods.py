"""``traceviz periods``: does a pair of stages overlap, unit by unit, and how often does it not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
from traceviz_dag.commands.output import milliseconds, print_json, print_table

PairsOption = Annotated[
    Path | None, typer.Option("--pairs", help="TOML file that names pairs: by stages, dimension, ranges or stamps.")
]


def periods(
    path: PathArgument = None,
    pairs: PairsOption = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    units: Annotated[bool, typer.Option("--units", help="With --json: every unit, not only percentiles.")] = False,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show periods and OverlapScore of neighbouring stages, of computation and communication, and of named pairs.

    1 means that the period is that of the longer stage, 0 that the two run one after the other; scores are not clamped.
    Percentiles are over the steady units, which the table names; a pair with fewer than two has none.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from traceviz_dag.across_ranks import named_periods
    from traceviz_dag.analyze.period_summary import period_summary
    from traceviz_dag.analyze.periods import NAMED
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
            answers.append({**place(each), "pairs": summary} | ({"units": table.to_pylist()} if units else {}))
            if not json:
                _print(heading(each, "periods, ms"), summary)
        if json:
            print_json(answers)


def _print(title: str, summary: list[dict[str, Any]]) -> None:
    told = [row for row in summary if row["refusal"] is None]
    print_table(
        title,
        [
            *("pair", "stage", "ranks", "units", "window", "period p50", "p90", "p99", "stage0", "stage1"),
            *("score p10", "p50", "p90", "worst rank"),
        ],
        [
            [
                *(row["pair"], row["stage"], row["ranks"], row["units"], f"{row['first_unit']}-{row['last_unit']}"),
                *(milliseconds(row[f"period_p{share}_ns"]) for share in (50, 90, 99)),
                *(milliseconds(row[f"stage{number}_p50_ns"]) for number in (0, 1)),
                *(_score(row[f"score_p{share}"]) for share in (10, 50, 90)),
                row["worst_rank"],
            ]
            for row in told
        ],
    )
    for row in told:
        if row["modes"]:
            typer.echo(f"  {row['pair']}, stage {row['stage']}: {row['modes']}")
    for row in summary:
        if row["refusal"] is not None:
            stage = "" if row["stage"] is None else f", stage {row['stage']}"
            typer.echo(f"  {row['pair']}{stage}: none ({row['refusal']})")


def _score(score: float | None) -> str | None:
    return None if score is None else f"{score:.2f}"
