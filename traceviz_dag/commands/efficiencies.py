"""``traceviz efficiencies``: how much of the step the mean rank computes, and which factor loses the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.causes.factors import MEANINGS, Factor, named_factor, over_steps, with_branches, worst_factor
from traceviz_dag.analyze.findings.verdict import RELATIONS
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RecordsOption,
    RulesOption,
    RunOption,
    chosen_iterations,
    each_printed,
    end_untold,
    print_lead,
    refuse_both,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json, print_wrapped
from traceviz_dag.commands.common.records import end_of_records, naming, titled, work_at
from traceviz_dag.pipeline.answers.iterations import place

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

_COLUMNS = ("replica", "ranks", "steps", "factor", "dimension", "parent", "value", "ideal_ns", "time_ns", "lost_ns")
_FIRST_LEVEL = (Factor.LOAD_BALANCE, Factor.SERIALISATION, Factor.TRANSFER, Factor.HOST)


def efficiencies(
    path: PathArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    records: RecordsOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show which share of the step ranks compute on average, and which factors lose the rest (POP: they multiply).

    Load balance: some ranks compute longer than others. Serialisation: they wait for each other's work, as in fill and
    drain of a pipeline. Transfer: communications take time. Host: launches come late. Losses add up to the step, but
    none is what a fix would save: ask traceviz what-if. The exit code is 2 if ranks or evidence are missing.
    """
    if records is not None:
        refuse_both(path, run, iteration)
        _of_records(records, json)
        return
    with chosen_iterations(path, home, run, iteration, rules, printed="findings") as iterations:
        answers = [_answer(each) for each in iterations]
        if json:
            print_json([row for answer in answers for row in _flat(answer)])
        else:
            for each, answer in each_printed(iterations, answers):
                _print(partial(print_lead, each, relation=RELATIONS["efficiencies"]), answer["rows"])
                if answer["reason"] is not None and answer["partial"]:
                    # The line at the end speaks of what was not read.
                    print_wrapped(answer["reason"], 4, "  ")
    end_untold(answers)


def _answer(iteration: StoredIteration) -> dict[str, Any]:
    stored = iteration.table("efficiencies").to_pylist()
    whole = Factor.PARALLEL_EFFICIENCY
    reasons = [row["reason"] for row in stored if row["factor"] == whole and row["reason"] is not None]
    reason = next(iter(reasons), None if stored else "no training step is known")
    return {**place(iteration), "certain": reason is None, "reason": reason, "rows": over_steps(stored)}


def _flat(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each factor; one without any where none is known, with the reason."""
    where = {name: value for name, value in answer.items() if name != "rows"}
    return [{**where, **{name: row[name] for name in _COLUMNS}} for row in answer["rows"] or [dict.fromkeys(_COLUMNS)]]


def _of_records(path: Path, json: bool) -> None:
    """The factors of a job's recorded operations.

    Raises:
        BadInputError: the file or its meta file cannot be read.
        NoEvidenceError: no step has all its operations, or none computes.
        IncompleteError: at the end, where rows or steps were left out.
    """
    from traceviz_dag.analyze.causes.records_efficiencies import records_efficiencies

    work, faults = work_at(path)
    with naming(path):
        rows = over_steps(records_efficiencies(work))
    if json:
        told = [{name: row[name] for name in _COLUMNS} for row in rows]
        print_json({"records": path.name, "rows": told, "partial": bool(faults), "faults": faults})
    else:
        _print(lambda text: typer.echo(titled(path, faults, text)), rows)
    end_of_records(faults)


def _print(heading: Callable[[str], None], rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        heading("parallel efficiency is not known")
        return
    mine = [row for row in rows if row["replica"] is None]
    whole, worst = mine[0], worst_factor(mine)
    step = f"{milliseconds(whole['time_ns'])} ms"
    of = f"the {step} step" if whole["steps"] == 1 else f"the {step} of {whole['steps']} steps"
    heading(
        f"parallel efficiency {wording.percent(whole['value'])}: of {of} the mean rank computes "
        f"{milliseconds(whole['ideal_ns'])} ms"
    )
    lost = f"{milliseconds(worst['lost_ns'])} ms ({wording.percent(worst['lost_ns'] / whole['time_ns'])})"
    meaning = MEANINGS[Factor(worst["factor"])]
    print_wrapped(f"{named_factor(worst).capitalize()} loses most, {lost}: {meaning}", 4, "  ")
    told = [
        {
            "branch": f"{branch}{named_factor(row)}",
            "value": row["value"],
            "lost_ns": row["lost_ns"],
            "share": None if row["lost_ns"] is None else row["lost_ns"] / whole["time_ns"],
        }
        for branch, row in with_branches(mine)
    ]
    title = "Factors, what loses most first; they multiply, and losses add up"
    print_columns(title, told, [("branch", "factor"), "value", "lost_ns", ("share", "of step")])
    _print_replicas(rows)


def _print_replicas(rows: Sequence[dict[str, Any]]) -> None:
    """The factors of the first level of each model replica, the least efficient first."""
    of_replica: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["replica"] is not None and row["dimension"] is None:
            of_replica.setdefault(row["replica"], {})[row["factor"]] = row
    if not of_replica:
        return
    whole = Factor.PARALLEL_EFFICIENCY
    replicas = [
        {**{name: row["value"] for name, row in mine.items()}, "replica": number, "ranks": mine[whole]["ranks"]}
        for number, mine in sorted(of_replica.items(), key=lambda one: (one[1][whole]["value"], one[0]))
    ]
    title = "Model replicas, the least efficient first"
    print_columns(title, replicas, ["replica", "ranks", (whole, "efficiency"), *_FIRST_LEVEL])
