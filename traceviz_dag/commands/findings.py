"""``traceviz findings``: what is wrong with a step, who is at fault, what fixing it would save, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RulesOption,
    RunOption,
    chosen_iterations,
    each_printed,
    end_untold,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, print_wrapped, rest_of, shown
from traceviz_dag.errors import IncompleteError, NoEvidenceError, UsageError
from traceviz_dag.pipeline.answers.findings import findings_answer, findings_rows, step_in_words
from traceviz_dag.pipeline.answers.iterations import STEP_KINDS, cut_statements, heading, untold_waits
from traceviz_dag.vocabulary import FindingClass, Severity, StepKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceviz_dag.pipeline.stored_iteration import StoredIteration
    from traceviz_dag.read.training_log import LoggedSteps

ANY = "finding"
"""What ``--fail-on`` takes beside the names of rules."""

SLIGHT = 0.001
"""Share of the step below which a note is only counted on the screen."""

_PLURALS = {FindingClass.FAULT: "faults", FindingClass.OPPORTUNITY: "opportunities"}


def findings(
    path: PathArgument = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit with 1 if there is a finding (finding), one of this rule, or a note of this rule where nothing "
            "predicts its gains; with 2 if that is not known, as where a rule that is named judges only some ranks. "
            "Repeatable."
        ),
    ] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print with each finding the query that yields its row.")] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            help="Log of the training (Megatron-LM): say how much longer the profiled steps take than others."
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Rank of a single file that does not name its rank.")] = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Rank each step's problems by predicted savings, with culprit and remedy.

    Faults come first, then opportunities (healthy costs that could be lower) and losses, by what they cost. Savings are
    what the replay of the step predicts for each alone; they do not add up, so those after the first also say what they
    save once those before them are fixed. A loss is among the largest though its gain is not predicted or below 1 % of
    the step; a note is any other such row. The exit code is 2 where it is not known of ranks
    that were read who waited for whom, so that a late one is not found.
    """
    from traceviz_dag.pipeline.certainty import stored_lost_kernels, stored_unknown_waits
    from traceviz_dag.read.training_log import read_training_log

    if fail_on:
        _check_names(fail_on)
    logged = read_training_log(log) if log is not None else []
    with chosen_iterations(path, home, run, iteration, rules, rank) as iterations:
        unread = [line for each in iterations if path is not None for line in _read_snapshots(each)]
        answers = [findings_answer(each) for each in iterations]
        if logged:
            for each, told_of in zip(iterations, answers, strict=True):
                told_of.update(_perturbation(each, told_of["iteration_findings"], logged))
        if json:
            print_json([row for answer in answers for row in findings_rows(answer)])
        else:
            told: set[str] = set()
            for each, answer in each_printed(iterations, answers):
                _print(each, answer, told, sql=sql)
        untold = []
        if fail_on:
            untold += [f"nothing is predicted: {why}" for each in iterations if (why := _unpredicted(each)) is not None]
        untold += [why for each in answers for why in open_questions(each["iteration_findings"], fail_on or ())]
        failing = [row for answer in answers for row in answer["iteration_findings"] if _fails(row, fail_on or ())]
        waits = [
            untold_waits(each.run, each.iteration, None if unknown is None else asdict(unknown))
            for each in iterations
            for place in [(each.lake, each.run, each.iteration)]
            for unknown in [stored_unknown_waits(*place) or stored_lost_kernels(*place, each.files)]
        ]
        for line in unread:
            typer.echo(f"traceviz: {line}", err=True)
    if unread:
        raise IncompleteError("partial result (see the snapshots above)")
    if failing:
        of = f"{failing[0]['run']} {failing[0]['iteration']}: " if len(answers) > 1 else ""
        typer.echo(f"traceviz: {of}{failing[0]['rule']}: {failing[0]['statement']}", err=True)
        raise typer.Exit(1)
    if untold:
        raise NoEvidenceError(f"--fail-on cannot be answered: {untold[0]}")
    end_untold(waits)


def _check_names(names: list[str]) -> None:
    from traceviz_dag.analyze.findings.rules.registry import RULE_NAMES

    for name in names:
        if name not in (ANY, *RULE_NAMES):
            raise UsageError(f"--fail-on {name}: there are {', '.join((ANY, *RULE_NAMES))}")


def _read_snapshots(iteration: StoredIteration) -> list[str]:
    """Store the snapshots of GPU memory beside traces that were given; one line for each that was not read whole."""
    from traceviz_dag.pipeline.engines import default_workers
    from traceviz_dag.pipeline.memory import memory_sources, store_memory

    if iteration.inputs is None:
        return []
    sources = memory_sources(iteration.lake, iteration.inputs)
    outcomes = store_memory(iteration.lake, iteration.run, iteration.iteration, sources, default_workers())
    return [f"memory of rank {outcome.rank}: {outcome.fault}" for outcome in outcomes if outcome.fault]


def counted(rows: list[dict[str, Any]]) -> str:
    """How many findings and notes there are, in words; large losses and likely faults among notes are numbered, too."""
    from traceviz_dag.analyze.findings.losses import leading
    from traceviz_dag.analyze.findings.notes import may_be_finding, notes_in_words

    graves = [row for row in rows if row["severity"] == Severity.FINDING]
    parts = [
        wording.counted(sum(row["class"] == kind for row in graves), kind, more) for kind, more in _PLURALS.items()
    ]
    notes = sum(row["severity"] == Severity.NOTE for row in rows)
    numbered = sum(row["severity"] == Severity.NOTE for row in leading(rows))
    which = f", {numbered} of them in the numbered list" if numbered else ""
    return f"{', '.join(parts)}, {notes_in_words(notes, sum(map(may_be_finding, rows)))}{which}"


def _fails(row: dict[str, Any], names: list[str] | tuple[()]) -> bool:
    from traceviz_dag.analyze.findings.rule import nothing_fixes
    from traceviz_dag.analyze.findings.rules.registry import rule_named

    if row["severity"] == Severity.FINDING:
        return ANY in names or row["rule"] in names
    never = row["rule"] in names and rule_named(row["rule"]).edit is nothing_fixes
    return never and row["severity"] == Severity.NOTE


def open_questions(rows: list[dict[str, Any]], names: list[str] | tuple[()]) -> list[str]:
    """Why it is not known whether an iteration has what ``--fail-on`` names.

    Of a rule that is named all must be judged. Where any finding counts, too, a row whose gain is refused leaves it
    open whether it is one; unless what it can gain at most is too little for a finding.
    """
    from traceviz_dag.analyze.findings.notes import may_be_finding

    def is_open(row: Mapping[str, Any]) -> bool:
        unjudged = row["severity"] == Severity.NOT_LOOKED_AT and row["rule"] in names
        return unjudged or (bool({ANY, row["rule"]} & set(names)) and may_be_finding(row))

    return [f"{row['rule']}: {row['statement']}" for row in rows if is_open(row)]


def _unpredicted(iteration: StoredIteration) -> str | None:
    """Why no gain is known of an iteration, so that nothing of it can be a finding; None where one is."""
    rows = iteration.table("what_if").to_pylist()
    if any(row["refusal"] is None for row in rows):
        return None
    reasons = [row["refusal"] for row in sorted(rows, key=lambda row: row["edit"] is not None)]
    return str(reasons[0]) if reasons else "no training step could be replayed"


def _perturbation(
    iteration: StoredIteration, rows: list[dict[str, Any]], logged: Sequence[LoggedSteps]
) -> dict[str, Any]:
    """Median time of steps without the profiler, over how many lines of the log, and the share that others are longer.

    Raises:
        NoEvidenceError: the log has too few such steps, or the traces do not show how long a step takes.
    """
    from traceviz_dag.analyze.unprofiled import unprofiled_step

    profiled = {part.iteration for part in iteration.lake.partitions("kernels", iteration.run)}
    usual = unprofiled_step(logged, profiled | {iteration.iteration})
    times = [row["measured_ns"] or row["step_ns"] for row in rows[:1]]
    if not times or times[0] is None or not usual.step_ns:
        raise NoEvidenceError("the traces or the log do not show how long a step takes")
    share = times[0] / rows[0]["steps"] / usual.step_ns - 1
    return {"unprofiled_step_ns": usual.step_ns, "unprofiled_lines": usual.lines, "perturbed_by": share}


def _said_of_log(answer: dict[str, Any]) -> str:
    from traceviz_dag.analyze.unprofiled import PERTURBED

    share = answer["perturbed_by"]
    direction = "longer" if share >= 0 else "shorter"
    usual = f"{milliseconds(answer['unprofiled_step_ns'])} ms"
    lines = f"the median of {answer['unprofiled_lines']} lines of the log"
    perturbed = "; perturbed: rely on shares, not on times" if share >= PERTURBED else ""
    by = wording.percent(abs(share))
    return f"profiled steps take {by} {direction} on the host than others ({usual}, {lines}){perturbed}"


def _print(iteration: StoredIteration, answer: dict[str, Any], told: set[str], *, sql: bool) -> None:
    """Print what was found in an iteration.

    Args:
        answer: its findings, and what a log tells.
        told: remedies that were printed already; this adds its own.
    """
    from traceviz_dag.analyze.findings.losses import label, largest_losses, leading, losses_in_words
    from traceviz_dag.analyze.findings.rules import environment

    rows = answer["iteration_findings"]
    step = step_in_words(rows[0]) if rows and rows[0]["step_ns"] is not None else "step unknown"
    ranks = wording.counted(len(iteration.ranks), "rank", "ranks")
    mode = f" · {rows[0]['capture_mode']}" if rows else ""
    kind = answer["step_kind"]
    said = f"{STEP_KINDS[kind].split(';')[0]} · " if kind in STEP_KINDS else ""
    if kind == StepKind.INFERENCE:
        step = f"{milliseconds(rows[0]['step_ns'])} ms recorded" if rows and rows[0]["step_ns"] else "time unknown"
    typer.echo()
    measured = f"{step} on {ranks}" if iteration.ranks else "no step of a rank that was read whole"
    print_wrapped(heading(iteration, f"{said}{measured}{mode}"), 2)
    for cut in cut_statements(answer["cut_steps"]):
        print_wrapped(cut, 2, "  ")
    if losses := losses_in_words(largest_losses(rows)):
        print_wrapped(losses, 2, "  ")
    print_wrapped(f"{counted(rows)}; gains do not add up", 2, "  ")
    if "perturbed_by" in answer:
        typer.echo(f"  {_said_of_log(answer)}")
    differing = [
        row for row in rows if row["rule"] == environment.RULE.name and row["severity"] != Severity.NOT_LOOKED_AT
    ]
    for row in differing:
        print_wrapped(f"{row['rule']}: {row['statement']}", 2, "  ")
        _print_remedy(row, told)
        _print_query(row, sql=sql)
    rows = [row for row in rows if row not in differing]
    first = leading(rows)
    for number, row in enumerate(shown(first), 1):
        typer.echo()
        _print_row(f"{number:3}. {label(row)} · ", row, told, sql=sql)
    _print_rest(first)
    for severity, title in ((Severity.NOTE, "Notes"), (Severity.NOT_LOOKED_AT, "Not judged")):
        mine = [row for row in rows if row["severity"] == severity and row not in first]
        mine = [row for row in mine if sql or not _is_slight(row)]
        if severity == Severity.NOT_LOOKED_AT:
            mine = _by_reason(mine)
        if mine:
            typer.echo(f"\n{title}")
        for row in shown(mine):
            _print_row("   - ", row, told, sql=sql)
        _print_rest(mine)
    rows = [row for row in rows if row not in first]
    slight = 0 if sql else sum(map(_is_slight, rows))
    if slight:
        more = f"{slight} more note{'s gain' if slight > 1 else ' gains'}"
        print_wrapped(f"{more} less than {wording.percent(SLIGHT)} of the step (--json and --sql have them)", 2, "\n  ")
    if line := _said_of_environment(answer["environment"]):
        print_wrapped(line, 2, "\n  ")


def _print_rest(rows: Sequence[Mapping[str, Any]]) -> None:
    if more := rest_of(len(rows)):
        typer.echo(f"  {more}")


def _print_row(lead: str, row: Mapping[str, Any], told: set[str], *, sql: bool) -> None:
    print_wrapped(f"{row['rule']}: {row['statement']}", 5, lead)
    if row["detail"]:
        print_wrapped(row["detail"], 5, "     ")
    _print_remedy(row, told)
    _print_query(row, sql=sql)


def _print_remedy(row: Mapping[str, Any], told: set[str]) -> None:
    """Print what to do about a row, once."""
    if row["remedy"] is not None and row["remedy"] not in told:
        print_wrapped(row["remedy"], 7, "     → ")
        told.add(row["remedy"])


def _said_of_environment(environment: dict[str, list[str]]) -> str | None:
    """What is the same on all ranks, and what none records; None where nothing can be compared."""
    if not environment["alike"]:
        return None
    unknown = (
        f"; unknown, not recorded by any rank: {', '.join(environment['unknown'])}" if environment["unknown"] else ""
    )
    return f"All ranks state the same {', '.join(environment['alike'])}{unknown}"


def _print_query(row: Mapping[str, Any], *, sql: bool) -> None:
    if sql and row["evidence_sql"]:
        typer.echo("\n".join(f"       {line}" for line in row["evidence_sql"].splitlines()))


def _by_reason(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each reason, with all rules that it keeps from judging."""
    rules: dict[str, list[str]] = {}
    for row in rows:
        rules.setdefault(row["statement"], []).append(row["rule"])
    return [{**row, "rule": ", ".join(rules.pop(row["statement"]))} for row in rows if row["statement"] in rules]


def _is_slight(row: dict[str, Any]) -> bool:
    """Whether a note's gain is not worth a line, even at the upper end of its bar."""
    most = row["gain_high_ns"]
    return row["severity"] == Severity.NOTE and most is not None and most < SLIGHT * row["step_ns"]
