"""``traceviz clocks``: every rank's clock against the common one, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceviz_dag.analyze.clocks.clock_summary import clock_facts, clock_statement
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RulesOption,
    RunOption,
    chosen_iterations,
    each_printed,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json
from traceviz_dag.errors import IncompleteError
from traceviz_dag.pipeline.answers.iterations import heading, place
from traceviz_dag.tables.rows import RankClockRow, rows_of


def clocks(
    path: PathArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show each rank's clock offset and drift, solved from collectives that end together, or why it is unknown.

    Unsolved clocks come first, then those whose ends agree least.
    """
    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        answers = []
        for each in iterations:
            table = each.table("rank_clocks")
            rows, facts = rows_of(table, RankClockRow), clock_facts(table)
            answers.append({**place(each), "clocks": facts, "ranks": rows})
        if json:
            print_json(answers)
        else:
            for each, answer in each_printed(iterations, answers):
                _print(heading(each, clock_statement(answer["clocks"])), answer["ranks"])
    # The clock of one rank has no other to agree with.
    unsolved = [answer for answer in answers if answer["clocks"]["solved"] < answer["clocks"]["ranks"] > 1]
    if unsolved:
        named = ", ".join(f"{each['run']} {each['iteration']}" for each in unsolved)
        raise IncompleteError(f"not every clock is solved in {named}: column why says why")


def _print(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    print_columns(
        title,
        sorted(rows, key=_certainty),
        [
            *("rank", "component", "offset_ns", "drift_ppm", "matches", "residual_p05_ns", "residual_p95_ns"),
            *("early_receives", "refusal"),
        ],
    )


def _certainty(row: Mapping[str, Any]) -> tuple[bool, int, int]:
    """What sorts ranks by how well their clock is known, equals by number."""
    ends = [abs(row[name]) for name in ("residual_p05_ns", "residual_p95_ns") if row[name] is not None]
    return row["offset_ns"] is not None, -max(ends, default=0), row["rank"]
