"""``traceviz gate``: fails when a named pair overlaps too little."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RulesOption,
    RunOption,
    chosen_iterations,
    place,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, print_table
from traceviz_dag.errors import UsageError


def gate(
    pairs: Annotated[Path, typer.Option("--pairs", help="TOML file that names the pairs and their thresholds.")],
    path: PathArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Compare the OverlapScore of each named pair with its threshold, 0.30 by default.

    The exit code is 0 if every pair passes, 1 if one fails, and 2 if one cannot be judged or not all ranks were read.
    """
    from traceviz_dag.analyze.pipelines.period_summary import judge
    from traceviz_dag.pipeline.across_ranks import named_periods
    from traceviz_dag.read.pairs_file import read_pairs_file

    named = read_pairs_file(pairs)
    rows = []
    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        for each in iterations:
            rows += [{**place(each), **verdict._asdict()} for verdict in judge(named, named_periods(each, named))]
        if json:
            print_json(rows)
        else:
            print_table(
                "OverlapScore gate",
                ["run", "iteration", "pair", "verdict", "score", "percentile", "threshold", "units", "why"],
                [
                    [
                        *(row["run"], row["iteration"], row["pair"], _WORDS[row["passed"]]),
                        None if row["score"] is None else f"{row['score']:.3f}",
                        *(row["percentile"], row["threshold"], row["units"], row["refusal"]),
                    ]
                    for row in rows
                ],
            )
    if any(row["passed"] is False for row in rows):
        raise typer.Exit(1)
    unjudged = [row for row in rows if row["passed"] is None]
    if unjudged:
        first = unjudged[0]
        raise UsageError(f"pair {first['pair']!r} of {first['run']} {first['iteration']}: {first['refusal']}")


_WORDS = {True: "passed", False: "FAILED", None: "not judged"}
