"""``traceviz waits``: who waited for whom, what made the late rank late, and is a link slow or its peer late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

from traceviz_dag.analyze.clocks.clock_summary import clock_facts, clock_statement
from traceviz_dag.analyze.findings.verdict import RELATIONS
from traceviz_dag.analyze.wording import activity, capitals, counted, numbered
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RecordsOption,
    RulesOption,
    RunOption,
    blame_statement,
    chosen_iterations,
    cut_statements,
    end_untold,
    place,
    print_lead,
    refuse_both,
    slow_statements,
    table_rows,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import milliseconds, percent, print_json, print_table, print_wrapped
from traceviz_dag.commands.common.records import end_of_records, naming, titled, work_at

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
        answers = [_answer(each) for each in iterations]
        if json:
            print_json(answers)
        else:
            for each, answer in zip(iterations, answers, strict=True):
                _print(each, answer)
    end_untold(answers)


def _answer(iteration: StoredIteration) -> dict[str, Any]:
    from traceviz_dag.analyze.waits.blame import delays_by, wait_basis
    from traceviz_dag.lake.summaries import cut_steps
    from traceviz_dag.tables.questions import DELAY_COSTS_SQL, WAIT_PARTS_SQL

    collectives = iteration.table("collectives")
    step_ns = iteration.step_ns
    late = iteration.table("late_ranks")
    answer: dict[str, Any] = {
        **place(iteration),
        "clocks": clock_facts(iteration.table("rank_clocks")),
        "matching": _matching(collectives),
        "waits": wait_basis(collectives),
        **_certainty(iteration, collectives),
        "step_ns": step_ns,
        "cut_steps": cut_steps(iteration.lake, iteration.run, iteration.iteration),
        "slow_ranks": table_rows(iteration, "rank_speeds"),
        "ranks": table_rows(iteration, "late_ranks"),
        "stages": delays_by(late, _stages(iteration), "stage").to_pylist(),
        "links": table_rows(iteration, "links"),
        "experts": table_rows(iteration, "expert_loads"),
        "communication": iteration.ask(WAIT_PARTS_SQL, collectives=collectives).to_pylist(),
        "matrix": table_rows(iteration, "blame"),
        "costs": iteration.ask(
            DELAY_COSTS_SQL, delay_costs=iteration.table("delay_costs"), what_if=iteration.table("what_if")
        ).to_pylist(),
    }
    nodes = iteration.nodes()
    return answer | {"nodes": delays_by(late, nodes, "node").to_pylist()}


def _certainty(iteration: StoredIteration, collectives: pa.Table) -> dict[str, Any]:
    """How many communication kernels have no certain wait, and in a sentence what follows from that.

    Members that the capture was not to record leave an answer certain: it is of the ranks that were.
    """
    from traceviz_dag.analyze.matching.collective_matching import Fault
    from traceviz_dag.analyze.waits.blame import uncertain_waits
    from traceviz_dag.analyze.waits.unknown_waits import unknown_waits

    uncertain, kernels = uncertain_waits(collectives), collectives.num_rows
    reason = (
        f"{uncertain} of {kernels} communication kernels have no certain wait; whom they waited for is not known"
        if uncertain
        else None
    )
    if (unknown := unknown_waits(collectives)) is not None:
        reason = unknown.reason
    left_out = 0
    if iteration.completeness.chosen and not iteration.completeness.missing:
        beyond = pa.array([Fault.MEMBERS_MISSING.value, Fault.PEER_MISSING.value])
        left_out = pc.sum(pc.is_in(collectives["fault"].cast(pa.string()), beyond)).as_py() or 0
    certain = uncertain == left_out
    return {
        "communication_kernels": kernels,
        "uncertain": uncertain,
        "certain": certain,
        "reason": None if certain else reason,
    }


def _matching(collectives: pa.Table) -> list[dict[str, Any]]:
    """How many communications each rule matched, and what is wrong with the others."""
    plain = pa.table({name: collectives[name].cast(pa.string()) for name in ("dimension", "matched_by", "fault")})
    counted = plain.group_by(["dimension", "matched_by", "fault"]).aggregate([([], "count_all")])
    rows = counted.rename_columns(["dimension", "matched_by", "fault", "kernels"]).to_pylist()
    return sorted(rows, key=lambda row: -row["kernels"])


def _stages(iteration: StoredIteration) -> Mapping[int, int | None]:
    return {rank: iteration.topology.stage_of(rank)[0] for rank in iteration.ranks}


def _print(iteration: StoredIteration, answer: dict[str, Any]) -> None:
    print_lead(iteration, clock_statement(answer["clocks"]), RELATIONS["waits"])
    for line in _statements(answer, next(iter(iteration.lead.ranks), None)):
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


def _statements(answer: dict[str, Any], first: int | None) -> list[str]:
    """What the tables show, a line each; what speaks of the rank that leads the findings comes first."""
    from traceviz_dag.analyze.waits.blame import nobody_blamed

    blamed = sorted((row for row in answer["ranks"] if row["blamed"]), key=lambda row: -row["own_ns"])
    nobody = nobody_blamed(answer["ranks"], answer["step_ns"], answer["uncertain"], answer["communication_kernels"])
    lines = [*cut_statements(answer["cut_steps"]), *_basis(answer["waits"])]
    links = _links(answer["links"])
    if links and first in {row["rank"] for row in answer["links"] if row["slow"] or row["or_of"]}:
        lines, links = lines + links, []
    lines += [*([blame_statement(row) for row in blamed] or [nobody])]
    lines += slow_statements(answer["slow_ranks"])
    lines += links
    uneven = [row for row in answer["experts"] if row["load"] >= 1.2]
    if uneven:
        worst = uneven[0]
        lines.append(f"experts of rank {worst['rank']} take {worst['load']:.2f} times the mean of their peers")
    faults = [row for row in answer["matching"] if row["fault"] is not None]
    if faults:
        total = sum(row["kernels"] for row in faults)
        kinds = ", ".join(sorted({row["fault"].replace("_", " ") for row in faults}))
        lines.append(f"{total} communication kernels are not matched, or not wholly: {kinds} (--json has the counts)")
    return lines


def _basis(kernels: Mapping[str, int]) -> list[str]:
    """What the waits rest on, where that is not solved clocks alone."""
    lines = []
    if kernels["durations"]:
        lines.append(
            f"waits of {kernels['durations']} communication kernels come from durations, which need no clock: members "
            "end together, so the last to arrive has the shortest kernel"
        )
    if kernels["untold"]:
        lines.append(
            f"no wait is known for {kernels['untold']} matched communication kernels: neither solved clocks nor "
            "durations show it (table collectives, aligned_refusal)"
        )
    return lines


def _links(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whose links are slow; of ranks that only meet each other, that nothing shows whose."""
    lines = [
        f"rank {row['rank']} has slow links{_scope(row)}: its transfers take {row['best_ratio']:.1f} times the usual"
        for row in rows
        if row["slow"]
    ]
    return lines + [
        f"{numbered('rank', [row['rank'], *row['or_of']])} meet over slow links{_scope(row)}, and whose are slow "
        f"is unknown: their transfers take {row['best_ratio']:.1f} times the usual"
        for row in rows
        if row["or_of"] and row["rank"] < min(row["or_of"])
    ]


def _scope(row: Mapping[str, Any]) -> str:
    return {"intra_node": " inside its node", "inter_node": " to other nodes"}.get(row["scope"] or "", "")
