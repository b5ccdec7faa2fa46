"""``traceviz critical-path``: what limits the step time, nanosecond by nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from traceviz_dag.analyze.findings.verdict import RELATIONS
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RecordsOption,
    RulesOption,
    RunOption,
    SteadyOption,
    chosen_iterations,
    each_printed,
    end_untold,
    print_lead,
    print_reason,
    print_steady,
    refuse_both,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json, print_wrapped
from traceviz_dag.commands.critical_path.of_records import critical_path_of_records
from traceviz_dag.errors import UsageError
from traceviz_dag.pipeline.answers.critical_path import (
    path_answer,
    path_statement,
    steady_path_answer,
    steady_path_statement,
)
from traceviz_dag.pipeline.answers.iterations import by_run, heading

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

_TITLES = {
    "cause": "What the path is made of",
    "rank": "Ranks that the path runs on, those at fault first",
    "stage": "Pipeline stages that the path runs on",
    "category": "What runs on the path, by category",
}


def critical_path(
    path: PathArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    records: RecordsOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    steady: SteadyOption = False,
    json: JsonOption = False,
) -> None:
    """Show the critical path: what limits the step time, nanosecond by nanosecond, over all ranks.

    It follows the step back from its end, always to what came last. Each nanosecond is a kernel's run, a transfer, the
    host's or a lag of one rank, never a wait; the parts add up to the step. What shortening a part would gain is
    another question, since another path may then be the longest: ask traceviz what-if. Steps that follow one another
    have a path from the end of the first to that of the last, too (--steady).
    """
    if records is not None:
        refuse_both(path, run, iteration)
        if steady:
            raise UsageError("--steady is for traces; records hold whole steps")
        critical_path_of_records(records, json)
        return
    with chosen_iterations(path, home, run, iteration, rules, printed="findings") as iterations:
        if steady:
            answers = [steady_path_answer(several) for several in by_run(iterations)]
        else:
            answers = [path_answer(each) for each in iterations]
        if json:
            print_json(answers)
        elif steady:
            for several, answer in zip(by_run(iterations), answers, strict=True):
                print_steady(several, steady_path_statement(answer))
                print_reason(answer)
                if answer["period_ns"] is not None:
                    _print_profiles(several[-1], answer, "of the periods")
        else:
            for each, answer in each_printed(iterations, answers):
                _print(each, answer)
    end_untold(answers)


def _print(iteration: StoredIteration, answer: dict[str, Any]) -> None:
    if answer["step_ns"] is None:
        typer.echo(f"\n{heading(iteration, 'no critical path')}")
        return
    print_lead(iteration, path_statement(answer), RELATIONS["critical path"])
    for line in (_critical(answer), _seen(answer), *([_unmatched(answer)] if answer["unmatched"] else [])):
        print_wrapped(line, 4, "  ")
    _print_profiles(iteration, answer)
    _print_imbalance(answer["critical_imbalance"])


def _print_profiles(iteration: StoredIteration, answer: dict[str, Any], share: str = "of step") -> None:
    answer = answer | {"rank": sorted(answer["rank"], key=lambda row: iteration.lead.place(row["rank"]))}
    for name, title in _TITLES.items():
        if name == "stage" and all(row[name] is None for row in answer[name]):
            continue
        print_columns(title, answer[name], [name, "path_ns", ("share", share)])
        if name == "cause":
            _print_hosts(answer)


def _print_hosts(answer: dict[str, Any]) -> None:
    from traceviz_dag.analyze.findings.verdict import NOTABLE

    rows = answer.get("hosts", [])
    if not rows or sum(row["path_ns"] for row in rows) < NOTABLE * answer["step_ns"]:
        return
    print_columns(
        "Hosts on the path: time until each launch, by what launches",
        [
            {
                **row,
                "operation": row["operation"] or "after the last launch",
                "share": row["path_ns"] / answer["step_ns"],
            }
            for row in rows
        ],
        ["operation", ("place", "in"), "path_ns", ("share", "of step")],
    )


def _print_imbalance(rows: Sequence[dict[str, Any]]) -> None:
    uneven = [row for row in rows if row["imbalance_ns"]]
    if not uneven:
        return
    print_columns(
        "Critical imbalance, the path beyond the mean rank",
        uneven,
        ["category", "path_ns", ("mean_ns", "mean rank"), "imbalance_ns"],
    )


def _critical(answer: dict[str, Any]) -> str:
    """How many items are near the path."""
    return (
        f"{answer['critical_items']} of {answer['items']} items (micro-batches' steps by rank and phase, and the work "
        "outside them) are critical: their slack is within 1 % of the step (table path_items)"
    )


def _unmatched(answer: dict[str, Any]) -> str:
    """Of how many communications nothing shows for certain for whom they waited, and why."""
    faults = ", ".join(f"{row['kernels']} {row['fault'].replace('_', ' ')}" for row in answer["unmatched"])
    count = sum(row["kernels"] for row in answer["unmatched"])
    return (
        f"{count} of {answer['communication_kernels']} communication kernels are not matched with all their members: "
        f"{faults} (table collectives)"
    )


def _seen(answer: dict[str, Any]) -> str:
    """What is known of waits between streams and of hosts."""
    streams = {row["edge_evidence"]: row["edges"] for row in answer["edges"] if row["kind"] == "event"}
    hosts = sum(row["edges"] for row in answer["edges"] if row["kind"] == "synchronisation")
    calls = sum(row["waited_for_unknown"] for row in answer["edges"])
    unknown = streams.get("unknown", 0) - calls
    untold = f"; of {unknown} communications nothing shows what waited for them" if unknown else ""
    untold += f"; of {calls} wait{'s' if calls > 1 else ''} nothing shows for what" if calls else ""
    return (
        f"waits between streams: {streams.get('recorded', 0)} recorded, {streams.get('inferred', 0)} inferred; "
        f"of hosts for their GPU: {hosts}{untold} (table path_edges)"
    )
