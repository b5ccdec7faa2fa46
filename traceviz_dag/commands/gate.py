"""``traceviz gate``: fails when a named pair overlaps too little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from traceviz_dag.commands.common.across import IterationOption, PathArgument, RulesOption, RunOption, chosen_iterations
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json
from traceviz_dag.errors import NoEvidenceError, UsageError
from traceviz_dag.pipeline.answers.iterations import place


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

    A pair is judged over fewer than all its ranks if some have no measures and the traces do not say why: its verdict
    is marked PARTIAL. The exit code is 0 if every pair passes, 1 if one fails, and 2 if one cannot be judged, or only
    in part, or not all ranks were read.
    """
    from traceviz_dag.analyze.pipelines.period_summary import judge_pairs
    from traceviz_dag.pipeline.named_periods import named_periods
    from traceviz_dag.read.pairs_file import read_pairs_file

    named = read_pairs_file(pairs)
    rows = []
    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        for each in iterations:
            verdicts = judge_pairs(named, named_periods(each, named))
            rows += [{**place(each), **verdict._asdict()} for verdict in verdicts]
        if json:
            print_json(rows)
        else:
            print_columns(
                "OverlapScore gate",
                [{**row, "verdict": _verdict(row)} for row in rows],
                ["run", "iteration", "pair", "verdict", "score", "percentile", "threshold", "units"],
            )
            for row in rows:
                if row["refusal"]:
                    typer.echo(f"  {_named(row)}{_without(row)}: {row['refusal']}")
    if any(row["passed"] is False and not row["over_fewer_ranks"] for row in rows):
        raise typer.Exit(1)
    _end_untold([row for row in rows if row["passed"] is None or row["over_fewer_ranks"]])


def _verdict(row: Mapping[str, Any]) -> str:
    word = {True: "passed", False: "FAILED", None: "not judged"}[row["passed"]]
    return f"{word}, PARTIAL" if row["over_fewer_ranks"] else word


def _named(row: Mapping[str, Any]) -> str:
    return f"pair {row['pair']!r} of {row['run']} {row['iteration']}"


def _without(row: Mapping[str, Any]) -> str:
    """What it means for the verdict that ranks have no measures."""
    if row["passed"] is None:
        return " is not judged"
    if row["over_fewer_ranks"]:
        return " is judged over fewer than all its ranks"
    return " leaves out ranks with nothing to overlap"


def _end_untold(rows: Sequence[Mapping[str, Any]]) -> None:
    """Say which pair is not judged, or over fewer than all its ranks; the others are in the table.

    Raises:
        UsageError: a pair is not judged.
        NoEvidenceError: each is, but one over fewer than all its ranks.
    """
    for row in sorted(rows, key=lambda row: row["passed"] is not None):
        if row["passed"] is None:
            raise UsageError(f"{_named(row)}: {row['refusal']}")
        raise NoEvidenceError(f"{_named(row)}{_without(row)}: {row['refusal']}")
