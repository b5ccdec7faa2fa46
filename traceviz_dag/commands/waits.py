"""``traceviz waits``: who waited for whom, what made the late rank late, and is a link slow or its peer late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traceviz_dag.analyze.clocks.clock_summary import clock_statement
from traceviz_dag.analyze.findings.verdict import RELATIONS
from traceviz_dag.analyze.wording import activity, capitals, counted, milliseconds
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RecordsOption,
    RulesOption,
    RunOption,
    chosen_iterations,
    end_untold,
    print_lead,
    refuse_both,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import percent, print_json, print_table, print_wrapped
from traceviz_dag.commands.common.records import end_of_records, naming, titled, work_at
from traceviz_dag.pipeline.answers.waits import waits_answer, waits_statements

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration


def waits(
    path: PathArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    records: RecordsOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show who waited for whom in matched communications, and for what: late ranks, slow links, uneven experts.

    A wait is charged to the last rank to arrive. That rank's own part is what it computed, copied or had not launched;
    time that it spent in other communications was handed on to it. Costs follow such chains to the first cause, and add
    up to all waits. The exit code is 2 if not every communication has a certain wait: matched with nobody, or not
    wholly, or known neither from solved clocks nor from durations.
    """
    if records is not None:
        refuse_both(path, run, iteration)
        _of_records(records, json)
        return
    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        answers = [waits_answer(each) for each in iterations]
        if json:
            print_json(answers)
        else:
            for each, answer in zip(iterations, answers, strict=True):
                _print(each, answer)
    end_untold(answers)


def _print(iteration: StoredIteration, answer: dict[str, Any]) -> None:
    print_lead(iteration, clock_statement(answer["clocks"]), RELATIONS["waits"])
    for line in waits_statements(answer, next(iter(iteration.lead.ranks), None)):
        print_wrapped(line, 4, "  ")
    print_table(
        "Late ranks, those at fault first (longest wait for each communication among peers of a stage, summed)",
        ["rank", "communications", "last in", "delay ms", "own ms", "own, of step", "doing", "late on its own"],
        [
            [
                row["rank"],
                row["communications"],
                *(
                    [
                        *(row["last"], milliseconds(row["delay_ns"]), milliseconds(row["own_ns"])),
                        *(percent(row["own_share"]), row["late_category"] and activity(row["late_category"])),
                        _blamed(answer, row),
                    ]
                    if row["communications"]
                    else [None] * 6
                ),
            ]
            for row in sorted(answer["ranks"], key=lambda row: (iteration.lead.place(row["rank"]), -row["own_ns"]))
        ],
    )
    # A chain ends where a rank was not captured.
    whose = "the ranks read" if iteration.completeness.mark else "all ranks"
    _print_costs(f"cost: waits of {whose}, gain: saved by fixing the rank or its links", answer["costs"])
    print_table(
        "Communication by dimension, sums over the kernels whose waits are known, ms",
        ["dimension", "kernels", "hidden wait", "exposed wait", "hidden transfer", "exposed transfer"],
        [
            [
                *(capitals(row["dimension"]), row["kernels"]),
                *(milliseconds(row[f"{part}_ns"]) for part in ("hidden_wait", "exposed_wait")),
                *(milliseconds(row[f"{part}_ns"]) for part in ("hidden_transfer", "exposed_transfer")),
            ]
            for row in answer["communication"]
        ],
    )
    print_table(
        "Who waited for whom, the longest waits first, ms; then what the late rank did for longer than who waited",
        ["rank", "late rank", "dimension", "waits", "wait", "compute", "communication", "memory", "host", "idle"],
        [
            [
                *(
                    row["rank"],
                    row["late_rank"],
                    capitals(row["dimension"]),
                    row["waits"],
                    milliseconds(row["wait_ns"]),
                ),
                *(milliseconds(row[f"late_{part}_ns"]) for part in ("compute", "communication", "memory")),
                *(milliseconds(row[f"late_{part}_ns"]) for part in ("host", "idle")),
            ]
            for row in answer["matrix"]
        ],
    )


def _print_costs(meaning: str, rows: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        f"First causes of waits, through chains; {meaning}",
        ["rank", "cause", "cost ms", "of all waits", "direct ms", "passed on ms", "gain ms"],
        [
            [
                *(row["rank"], row["cause"], milliseconds(row["cost_ns"]), percent(row["cost_share"])),
                *(milliseconds(row[name]) for name in ("direct_ns", "passed_on_ns", "gain_ns")),
            ]
            for row in rows
        ],
    )


def _of_records(path: Path, json: bool) -> None:
    """What caused the waits of a job's recorded operations.

    Raises:
        BadInputError: the file or its meta file cannot be read.
        NoEvidenceError: no step has all its operations.
        IncompleteError: at the end, where rows or steps were left out.
    """
    from traceviz_dag.analyze.causes.records_delays import records_costs

    work, faults = work_at(path)
    with naming(path):
        rows, steps_ns = records_costs(work)
    waited = sum(row["cost_ns"] for row in rows)
    answer = {"records": path.name, "steps": len(steps_ns), "steps_ns": sum(steps_ns), "waited_ns": waited}
    if json:
        print_json({**answer, "costs": rows, "partial": bool(faults), "faults": faults})
    else:
        steps = f"{counted(len(steps_ns), 'step', 'steps')} of {milliseconds(sum(steps_ns))} ms"
        text = f"ranks waited {milliseconds(waited)} ms for one another, all together, in {steps}"
        typer.echo(titled(path, faults, text))
        _print_costs("cost: waits of all ranks, gain: saved by fixing the rank, over all steps", rows)
    end_of_records(faults)


def _blamed(answer: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """Whether a rank is to blame; None where the time of the step, and so its share, is not known."""
    if answer["step_ns"] is None:
        return None
    return "yes" if row["blamed"] else "no"
