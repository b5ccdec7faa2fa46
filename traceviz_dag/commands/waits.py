"""``traceviz waits``: who waited for whom, what made the late rank late, and is a link slow or its peer late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traceviz_dag.analyze.clocks.clock_summary import clock_statement
from traceviz_dag.analyze.findings.verdict import RELATIONS
from traceviz_dag.analyze.wording import counted, milliseconds
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
    with chosen_iterations(path, home, run, iteration, rules, printed="findings") as iterations:
        answers = [waits_answer(each) for each in iterations]
        if json:
            print_json(answers)
        else:
            for each, answer in each_printed(iterations, answers):
                _print(each, answer)
    end_untold(answers)


def _print(iteration: StoredIteration, answer: dict[str, Any]) -> None:
    print_lead(iteration, clock_statement(answer["clocks"]), RELATIONS["waits"])
    for line in waits_statements(answer, next(iter(iteration.lead.ranks), None)):
        print_wrapped(line, 4, "  ")
    of_ranks = ["last", "delay_ns", "own_ns", "own_share", "late_category"]
    untold = dict.fromkeys([*of_ranks, "blamed"])
    # A rank is to blame for a share of the step; without the time of the step nobody knows.
    unknown = {"blamed": None} if answer["step_ns"] is None else {}
    print_columns(
        "Late ranks, those at fault first (longest wait for each communication among peers of a stage, summed)",
        [
            {**row, **(unknown if row["communications"] else untold)}
            for row in sorted(answer["ranks"], key=lambda row: (iteration.lead.place(row["rank"]), -row["own_ns"]))
        ],
        [
            *("rank", "communications", ("last", "last in"), "delay_ns", "own_ns", ("own_share", "own, of step")),
            *(("late_category", "doing"), ("blamed", "late on its own")),
        ],
    )
    # A chain ends where a rank was not captured.
    whose = "the ranks read" if iteration.completeness.mark else "all ranks"
    _print_costs(f"cost: waits of {whose}, gain: saved by fixing the rank or its links", answer["costs"])
    print_columns(
        "Communication by dimension, sums over the kernels whose waits are known",
        answer["communication"],
        ["dimension", "kernels", "hidden_wait_ns", "exposed_wait_ns", "hidden_transfer_ns", "exposed_transfer_ns"],
    )
    print_columns(
        "Who waited for whom, the longest waits first; then what the late rank did for longer than who waited",
        answer["matrix"],
        [
            *("rank", "late_rank", "dimension", "waits", "wait_ns", "late_compute_ns", "late_communication_ns"),
            *("late_memory_ns", "late_host_ns", "late_idle_ns"),
        ],
    )


def _print_costs(meaning: str, rows: Sequence[Mapping[str, Any]]) -> None:
    print_columns(
        f"First causes of waits, through chains; {meaning}",
        rows,
        ["rank", "cause", "cost_ns", ("cost_share", "of all waits"), "direct_ns", "passed_on_ns", "gain_ns"],
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
