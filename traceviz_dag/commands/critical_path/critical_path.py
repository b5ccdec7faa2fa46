"""``traceviz critical-path``: what limits the step time, nanosecond by nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.findings.verdict import RELATIONS
from traceviz_dag.analyze.wording import activity
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RecordsOption,
    RulesOption,
    RunOption,
    SteadyOption,
    by_run,
    chosen_iterations,
    end_untold,
    heading,
    place,
    place_of_all,
    print_lead,
    print_reason,
    print_steady,
    refuse_both,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import milliseconds, percent, print_json, print_table, print_wrapped
from traceviz_dag.commands.critical_path.of_records import critical_path_of_records
from traceviz_dag.errors import NoEvidenceError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from traceviz_dag.pipeline.stored_iteration import StoredIteration

_TITLES = {
    "cause": "What the path is made of",
    "rank": "Ranks that the path runs on, those at fault first",
    "stage": "Pipeline stages that the path runs on",
    "category": "What runs on the path, by category",
}

_NUMBERS = ("rank", "stage")
"""Profiles whose parts are numbers; in the view all are texts."""


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
    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        if steady:
            answers = [_steady(several) for several in by_run(iterations)]
        else:
            answers = [_answer(each) for each in iterations]
        if json:
            print_json(answers)
        elif steady:
            for several, answer in zip(by_run(iterations), answers, strict=True):
                print_steady(several, _steady_statement(answer))
                print_reason(answer)
                if answer["period_ns"] is not None:
                    _print_profiles(several[-1], answer, "of the periods")
        else:
            for each, answer in zip(iterations, answers, strict=True):
                _print(each, answer)
    end_untold(answers)


def _answer(iteration: StoredIteration) -> dict[str, Any]:
    from traceviz_dag.analyze.causes.path_legs import path_legs
    from traceviz_dag.lake.across_ranks_views import PROFILED_BY

    segments = iteration.table("path_segments")
    steps = iteration.table("what_if").to_pylist()
    refusals = sorted({row["refusal"] for row in steps if row["refusal"] is not None and row["edit"] is None})
    known = segments.num_rows > 0
    items, matched = iteration.table("path_items"), _matched(iteration)
    reasons = [*refusals, *([] if known else ["no training step is known"]), *_open(iteration, matched)]
    return {
        **place(iteration),
        "certain": not reasons,
        "reason": next(iter(reasons), None),
        "steps": len(segments["step"].unique()),
        "step_ns": sum(segments["duration_ns"].to_pylist()) if known else None,
        "items": items.num_rows,
        "critical_items": sum(items["critical"].to_pylist()),
        "edges": _edges(iteration),
        **matched,
        **_profiles(iteration, segments, PROFILED_BY),
        "hosts": _hosts(iteration, segments),
        "critical_imbalance": _imbalance(iteration),
        "legs": path_legs(segments),
    }


def _open(iteration: StoredIteration, matched: dict[str, Any]) -> list[str]:
    """Why the path may run elsewhere."""
    from traceviz_dag.analyze.findings.verdict import NOTABLE

    count = sum(row["kernels"] for row in matched["unmatched"])
    if len(iteration.ranks) < 2 or not count >= NOTABLE * matched["communication_kernels"] > 0:
        return []
    of = f"{count} of {matched['communication_kernels']} communication kernels"
    return [f"{of} are not matched with all their members, so the path may run on other ranks"]


def _steady(iterations: Sequence[StoredIteration]) -> dict[str, Any]:
    """The critical path of the steady periods of iterations of one run."""
    from traceviz_dag.analyze.causes.path_legs import path_legs
    from traceviz_dag.lake.across_ranks_views import PROFILED_BY
    from traceviz_dag.pipeline.causes import steady_steps

    where = place_of_all(iterations)
    try:
        steps = steady_steps(iterations)
    except NoEvidenceError as error:
        told: dict[str, Any] = {"certain": False, "reason": str(error), "steps": None, "period_ns": None, "legs": []}
        return {**where, **told, **{name: [] for name in PROFILED_BY}}
    segments = steps.path_segments()
    reason = next((each for one in iterations for each in _open(one, _matched(one))), None)
    return {
        **where,
        **{
            "certain": reason is None,
            "reason": reason,
            "steps": len(steps.ranked),
            "period_ns": steps.steady.period_ns,
        },
        **_profiles(iterations[-1], segments, PROFILED_BY),
        "legs": path_legs(segments),
    }


def _steady_statement(answer: dict[str, Any]) -> str:
    if answer["period_ns"] is None:
        return "no steady period"
    periods = answer["steps"] - 1
    count = "steady period" if periods == 1 else f"{periods} steady periods, each"
    return f"{count} {milliseconds(answer['period_ns'])} ms; {_runs_on(answer, 'its' if periods == 1 else 'their')}"


def _profiles(
    iteration: StoredIteration, segments: pa.Table, profiled_by: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """The rows of the view ``path_profiles``, summed over the steps; of each profile the longest first."""
    from traceviz_dag.lake.across_ranks_views import PATH_PROFILES

    rows = iteration.ask(PATH_PROFILES.sql, path_segments=segments)
    summed = rows.group_by(["profile", "name"]).aggregate([("path_ns", "sum")]).to_pylist()
    profiles: dict[str, list[dict[str, Any]]] = {}
    for by in profiled_by:
        mine = [(row["name"], row["path_ns_sum"]) for row in summed if row["profile"] == by]
        total = sum(length for _, length in mine)
        profiles[by] = [
            {by: int(name) if by in _NUMBERS and name is not None else name, "path_ns": length, "share": length / total}
            for name, length in sorted(mine, key=lambda part: (-part[1], str(part[0])))
        ]
    return profiles


def _hosts(iteration: StoredIteration, segments: pa.Table) -> list[dict[str, Any]]:
    """What hosts do where the path runs on them, over steps and ranks; the longest first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from traceviz_dag.tables.questions import HOSTS_OF_PATH_SQL

    segments = segments.filter(pc.equal(segments["cause"].cast(pa.string()), "host"))
    if not segments.num_rows:
        return []
    rows = iteration.ask(HOSTS_OF_PATH_SQL, **iteration.of_path(segments))
    return rows.select(["operation", "place", "path_ns", "launches"]).to_pylist()


def _imbalance(iteration: StoredIteration) -> list[dict[str, Any]]:
    """The rows of the table ``critical_imbalance``, summed over the steps; the largest first."""
    from traceviz_dag.tables.questions import IMBALANCE_SQL

    rows = iteration.ask(IMBALANCE_SQL, critical_imbalance=iteration.table("critical_imbalance"))
    return rows.drop_columns(["ranks"]).to_pylist()


def _edges(iteration: StoredIteration) -> list[dict[str, Any]]:
    """How many waits are known by which evidence; of the unknown ones, which end is.

    ``waited_for_unknown`` counts the waits of kernels of which nothing shows what they are for; the other unknown rows
    are communications of which nothing shows what waited for them.
    """
    columns = ["kind", "edge_evidence", "waited_for_kernel_id"]
    counted = iteration.table("path_edges").select(columns).group_by(columns[:2])
    rows = counted.aggregate([([], "count_all"), ("waited_for_kernel_id", "count")]).to_pylist()
    found = [
        {
            "kind": row["kind"],
            "edge_evidence": row["edge_evidence"],
            "edges": row["count_all"],
            "waited_for_unknown": row["count_all"] - row["waited_for_kernel_id_count"],
        }
        for row in rows
    ]
    return sorted(found, key=lambda row: -row["edges"])


def _matched(iteration: StoredIteration) -> dict[str, Any]:
    """How many kernels communicate, and which of them are not matched with all their members, by fault."""
    from traceviz_dag.tables.questions import UNMATCHED_SQL

    collectives = iteration.table("collectives")
    rows = iteration.ask(UNMATCHED_SQL, collectives=collectives).select(["fault", "kernels"]).to_pylist()
    return {
        "communication_kernels": collectives.num_rows,
        "unmatched": [row for row in rows if row["fault"] is not None],
    }


def _print(iteration: StoredIteration, answer: dict[str, Any]) -> None:
    if answer["step_ns"] is None:
        typer.echo(f"\n{heading(iteration, 'no critical path')}")
        return
    print_lead(iteration, _statement(answer), RELATIONS["critical path"])
    for line in (_critical(answer), _seen(answer), *([_unmatched(answer)] if answer["unmatched"] else [])):
        print_wrapped(line, 4, "  ")
    _print_profiles(iteration, answer)
    _print_imbalance(answer["critical_imbalance"])


def _print_profiles(iteration: StoredIteration, answer: dict[str, Any], share: str = "of the step") -> None:
    answer = answer | {"rank": sorted(answer["rank"], key=lambda row: iteration.lead.place(row["rank"]))}
    for name, title in _TITLES.items():
        if name == "stage" and all(row[name] is None for row in answer[name]):
            continue
        print_table(
            title,
            [name, "ms", share],
            [
                [
                    row[name] if name in _NUMBERS else activity(row[name]),
                    milliseconds(row["path_ns"]),
                    percent(row["share"]),
                ]
                for row in answer[name]
            ],
        )
        if name == "cause":
            _print_hosts(answer)


def _print_hosts(answer: dict[str, Any]) -> None:
    from traceviz_dag.analyze.findings.verdict import NOTABLE

    rows = answer.get("hosts", [])
    if not rows or sum(row["path_ns"] for row in rows) < NOTABLE * answer["step_ns"]:
        return
    print_table(
        "Hosts on the path: time until each launch, by what launches",
        ["operation", "in", "ms", "of the step"],
        [
            [
                row["operation"] or "after the last launch",
                row["place"],
                milliseconds(row["path_ns"]),
                percent(row["path_ns"] / answer["step_ns"]),
            ]
            for row in rows
        ],
    )


def _print_imbalance(rows: Sequence[dict[str, Any]]) -> None:
    uneven = [row for row in rows if row["imbalance_ns"]]
    if not uneven:
        return
    print_table(
        "Critical imbalance, the path beyond the mean rank",
        ["category", "on the path ms", "mean rank ms", "imbalance ms"],
        [
            [activity(row["category"]), *(milliseconds(row[f"{name}_ns"]) for name in ("path", "mean", "imbalance"))]
            for row in uneven
        ],
    )


def _statement(answer: dict[str, Any]) -> str:
    """How long the step is, and which rank has most of the path."""
    length = milliseconds(answer["step_ns"])
    if answer["steps"] == 1:
        return f"step {length} ms to its last kernel; {_runs_on(answer, 'its')}"
    return f"{answer['steps']} steps, {length} ms together, each to its last kernel; {_runs_on(answer, 'their')}"


def _runs_on(answer: dict[str, Any], whose: str) -> str:
    ranks: Sequence[dict[str, Any]] = answer["rank"]
    first = ranks[0]
    others = f", on {len(ranks)} ranks in all" if len(ranks) > 1 else " and on no other"
    return (
        f"{whose} critical path runs on rank {first['rank']} for {milliseconds(first['path_ns'])} ms "
        f"({wording.percent(first['share'])}){others}"
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
