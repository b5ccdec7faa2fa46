"""What the main job prints of an iteration: step time, shares, exposed communication, the slowest stage."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.utilization import used_of_peak
from traceviz_dag.analyze.wording import duration, milliseconds
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.memory_summary import memory_peak, memory_statement
from traceviz_dag.lake.queries import trace_files
from traceviz_dag.lake.summaries import Windows, category_shares, communication_by_dimension, cut_steps, windows
from traceviz_dag.pipeline.answers.iterations import STEP_KINDS, blame_statements, cut_statements, slow_statements
from traceviz_dag.tables import TABLES
from traceviz_dag.tables.rows import IterationRow, rows_of
from traceviz_dag.vocabulary import WindowFrom

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from traceviz_dag.analyze.slow_words import SlowRank
    from traceviz_dag.analyze.waits.blamed import LateRank
    from traceviz_dag.pipeline.analysis import IterationResult
    from traceviz_dag.pipeline.completeness import Completeness

MOST_FINDINGS = 3

_WINDOWS: dict[str, str] = {
    WindowFrom.LAUNCHES: "the host runs ahead: a step lasts from the first start to the last end of the kernels "
    "launched in it (column window_from of overlap)",
    WindowFrom.UNKNOWN_LAUNCHES: "launches of kernels are not recorded: a step lasts as long as on the host",
}

_LEAST_OUTSIDE = 0.0005
"""Share of kernel time outside the training steps from which it is said: less rounds to 0.0 %."""


def iteration_summary(lake: Lake, result: IterationResult, completeness: Completeness | None = None) -> dict[str, Any]:
    """The measures of one iteration, from its tables; see each named query for its definition.

    Args:
        completeness: what of the iteration was not read; by default as the lake tells it.
    """
    from traceviz_dag.pipeline.completeness import stored_completeness

    completeness = completeness or stored_completeness(lake, result.run, result.iteration)
    summary: dict[str, Any] = {
        "run": result.run,
        "iteration": result.iteration,
        "ranks_computed": len(result.computed),
        "ranks_skipped": len(result.skipped),
        "ranks_failed": sorted(result.failed),
        "ranks_not_computed": sorted(result.not_computed),
        "ranks_vanished": list(result.vanished),
        "same_traces_as": result.twin.key if result.twin is not None else None,
        "failures": list(result.failures),
        "faults": {str(rank): fault for rank, fault in sorted(result.faults.items())},
        "aggregated": result.aggregated,
        **completeness.as_json(),
        "mark": completeness.mark,
    }
    if result.aggregated and lake.exists("iterations", run=result.run, iteration=result.iteration):
        rows = rows_of(lake.table("iterations", result.run, result.iteration).arrow(), IterationRow)
        summary["measures"] = rows[0] if rows else None
    try:
        with lake.session(run=result.run, iteration=result.iteration) as session:
            return summary | _measured(session.within(), result.run, result.iteration, completeness.mark)
    except BadInputError:
        if not result.failures:
            raise
        # A table that somebody deleted could not be made anew: the line of the step that failed is the answer.
        return summary | dict.fromkeys(_MEASURED)


_MEASURED = (
    *("categories", "communication", "windows", "stages", "slowest_stage", "slow_ranks", "stage_statements"),
    *("memory", "findings", "blamed", "waits_unknown", "cut_steps", "verdict"),
)


def _measured(lake: Lake, run: str, iteration: int, lacking: str) -> dict[str, Any]:
    """What the tables of an iteration say, by the names of ``_MEASURED``.

    Args:
        lacking: what of it was not read; empty where all was.
    """
    from traceviz_dag.analyze.stage_times import slowest_statement
    from traceviz_dag.pipeline.certainty import stored_unknown_waits, stored_verdict
    from traceviz_dag.pipeline.stored_iteration import stored_stage_times

    (in_windows,) = rows_of(windows(lake, run, iteration), Windows)
    times = stored_stage_times(lake, run, iteration)
    slowest, unknown = slowest_statement(times), stored_unknown_waits(lake, run, iteration)
    values = (
        category_shares(lake, run, iteration).to_pylist(),
        communication_by_dimension(lake, run, iteration).to_pylist(),
        in_windows,
        [asdict(stage) for stage in times.stages],
        None if times.slowest is None else times.slowest.stage,
        _slow_ranks(lake, run, iteration),
        [slowest] if slowest else [],
        memory_peak(lake, run, iteration),
        first_findings(lake, run, iteration),
        _blamed(lake, run, iteration),
        None if unknown is None else asdict(unknown),
        cut_steps(trace_files(lake, run, iteration)),
        stored_verdict(lake, run, iteration, lacking),
    )
    return dict(zip(_MEASURED, values, strict=True))


def print_verdict(summaries: Sequence[Mapping[str, Any]], after: Sequence[str]) -> None:
    """Print the verdict on a run: that on its last iteration, and whether the others agree.

    Args:
        summaries: of the run's iterations. after: lines that say how to go on.
    """
    from traceviz_dag.analyze.findings.verdict import JudgedIteration, compared
    from traceviz_dag.commands.common.verdict import parts_in_words, verdict_lines

    # A verdict of before, where tables across ranks could not be made anew, is none on what was read.
    judged = [one for one in summaries if one["verdict"] is not None and one.get("measures")]
    if not judged:
        return
    last = judged[-1]
    measures, measured = last["measures"], last["windows"]
    agree, differs = compared(
        [JudgedIteration(one["iteration"], one["measures"]["step_ns"], one["verdict"]) for one in judged]
    )
    kind = STEP_KINDS.get(measures["step_kind"] or "", "").split(";")[0].split(":")[0]
    what = "step" if measured["steps"] else "first to last kernel"
    # Of different ranks nothing is the same.
    agree = agree if len({one["chosen"] for one in judged}) == 1 else "other ranks than before"
    rest = [f"iteration {last['iteration']}{f' ({agree})' if agree else ''}"]
    # Where GPUs go on long after their hosts, the step is that of which savings are, and its parts are of the hosts'.
    longer_ns = last["verdict"].to_last_kernel_ns
    length = f"{what} {duration(longer_ns or measures['step_ns'])}"
    ranks = wording.ranks_of(measures["ranks"], last["expected_ranks"])
    rest += [f"{ranks} rank{'' if ranks == '1' else 's'}", length, kind]
    of = f"Of the hosts' {duration(measures['step_ns'])}" if longer_ns else "Step"
    parts = parts_in_words(of, measured["computation_share"], measured["exposed_share"], measured["idle_share"])
    typer.echo()
    for line in verdict_lines(last["run"], " · ".join(filter(None, rest)), last["verdict"], differs, parts, after):
        typer.echo(line)


def print_summary(summary: dict[str, Any], *, tables: bool = True) -> None:
    """Print the measures for people: what the iteration shows first, then (with ``tables``) the tables behind it."""
    ranks = f"{summary['ranks_computed']} ranks computed, {summary['ranks_skipped']} unchanged"
    if summary["ranks_failed"]:
        ranks += f", {len(summary['ranks_failed'])} unreadable"
    mark = f" · {summary['mark']}" if summary["mark"] else ""
    kind = STEP_KINDS.get((summary.get("measures") or {}).get("step_kind") or "", "")
    mark = f" · {kind}{mark}" if kind else mark
    typer.echo(f"\n{summary['run']} · iteration {summary['iteration']} · {ranks}{mark}")
    if summary["windows"] is None:
        return
    for line in _statements(summary):
        typer.echo(f"  {line}")
    for line in _found(summary):
        typer.echo(f"  {line}")
    if not tables:
        return
    place, steps = f"{summary['run']} · iteration {summary['iteration']} · ", summary["windows"]["steps"] or []
    several = f" and the {len(steps)} training steps" if len(steps) > 1 else ""
    ranks = _counted(summary)
    if summary["categories"]:
        print_columns(
            f"{place}kernel time by category, all kernels of the iteration (sums of durations over {ranks}{several})",
            summary["categories"],
            ["category", ("kernels", "operations"), "time_ns", "share"],
        )
    if summary["communication"]:
        print_columns(
            f"{place}communication by dimension in {_window(steps)} (unions, mean over {ranks}{several})",
            summary["communication"],
            ["dimension", "communication_ns", "hidden_ns", "exposed_ns", "hidden_share"],
        )


def _window(steps: list[int]) -> str:
    """What the measures of a rank speak of."""
    return "one training step" if steps else "the time from first to last kernel"


def _counted(summary: dict[str, Any]) -> str:
    """Which ranks measures across ranks speak of, in words."""
    from traceviz_dag.pipeline.completeness import ranks_in_words

    if not summary["mark"]:
        return "all ranks"
    measures = summary.get("measures")
    return f"{ranks_in_words(measures['covered_ranks'])} alone" if measures else "the ranks that were read whole"


def _statements(summary: dict[str, Any]) -> list[str]:
    """One line a statement, each with the table it can be checked in."""
    from traceviz_dag.pipeline.completeness import ranks_in_words

    lines = []
    measures = summary.get("measures")
    if measures is None and not summary["aggregated"]:
        lines.append(_why_not_aggregated(summary))
    elif measures is None:
        lines.append("no measures across ranks: no rank was read whole; --allow-partial counts those read in part")
    if measures:
        counted = sorted(set(summary["partial_ranks"]) & set(measures["covered_ranks"]))
        if counted:
            lines.append(f"{ranks_in_words(counted)} read in part, and counted all the same (--allow-partial)")
        lines += _step(measures, summary["windows"])
        lines += cut_statements(summary["cut_steps"])
        if measures["unclassified_share"]:
            unclassified = wording.percent(measures["unclassified_share"])
            lines.append(f"{unclassified} of kernel time has no category: the evidence does not say (traceviz doctor)")
    of = "of the ranks that were read, " if summary["mark"] else ""
    lines += [f"{of}{statement} (table microbatches)" for statement in summary["stage_statements"]]
    lines += slow_statements(summary["slow_ranks"])
    lines += [memory_statement(summary["memory"])] if summary["memory"] else []
    lines += [f"{line} (traceviz waits)" for line in blame_statements(summary["blamed"])]
    unknown = summary["waits_unknown"]
    return [*lines, f"who is late is not known: {unknown['reason']} (traceviz waits)"] if unknown else lines


def first_findings(lake: Lake, run: str, iteration: int) -> dict[str, Any] | None:
    """The gravest findings of an iteration, and how many there are; None where they were not looked for."""
    from traceviz_dag.analyze.findings.losses import label, largest_losses, leading
    from traceviz_dag.analyze.findings.notes import may_be_finding
    from traceviz_dag.vocabulary import Severity

    if not lake.exists("findings", run=run, iteration=iteration):
        return None
    rows = lake.table("findings", run, iteration).arrow().to_pylist()
    first = leading(rows)
    columns = ("rule", "class", "severity", "gain_ns", "statement")
    return {
        "findings": sum(row["severity"] == Severity.FINDING for row in rows),
        "leading": len(first),
        "notes": sum(row["severity"] == Severity.NOTE for row in rows),
        "notes_of_unknown_gain": sum(map(may_be_finding, rows)),
        "losses": largest_losses(rows),
        "first": [{"label": label(row)} | {name: row[name] for name in columns} for row in first[:MOST_FINDINGS]],
    }


def _found(summary: dict[str, Any]) -> list[str]:
    """The largest losses and the gravest findings, a line each."""
    from traceviz_dag.analyze.findings.losses import losses_in_words
    from traceviz_dag.analyze.findings.notes import notes_in_words

    found = summary["findings"]
    if found is None:
        return []
    notes = notes_in_words(found["notes"], found["notes_of_unknown_gain"])
    losses = [words] if (words := losses_in_words(found["losses"])) else []
    counted = f"{found['findings'] or 'no'} finding{'' if found['findings'] == 1 else 's'}"
    if not found["first"]:
        return [*losses, f"no finding, {notes} (traceviz findings)"]
    left = found["leading"] - len(found["first"])
    more = f"; {left} more there" if left else ""
    lines = [f"{counted} and {notes} (traceviz findings says what to do{more}):"]
    return (
        losses
        + lines
        + [
            f"{number}. {row['label']} · {row['rule']}: {row['statement']}"
            for number, row in enumerate(found["first"], 1)
        ]
    )


def _why_not_aggregated(summary: dict[str, Any]) -> str:
    if summary["failures"]:
        return f"NOT COMPLETE: {'; '.join(summary['failures'])}"
    return "not aggregated: some ranks could not be read; --allow-partial goes on without them"


def _slow_ranks(lake: Lake, run: str, iteration: int) -> list[SlowRank]:
    """Each rank's computation against the peers of its stage; see ``analyze.slow_ranks``."""
    from traceviz_dag.analyze.slow_words import SlowRank

    return rows_of(_stored(lake, "rank_speeds", run, iteration), SlowRank)


def _step(measures: IterationRow, measured: Windows) -> list[str]:
    """How long a step took and how much of it waits for communication, and what the step's window leaves out."""
    partial = ", PARTIAL" if measures["partial"] else ""
    steps, length = measured["steps"] or [], milliseconds(measures["step_ns"])
    over = f"over {measures['ranks']} ranks"
    if not steps:
        lines = [f"first to last kernel {length} ms {over}{partial}; no training step is marked (table iterations)"]
    elif len(steps) > 1:
        numbers = f"{steps[0]} to {steps[-1]}"
        lines = [f"step {length} ms {over}, the longest of {len(steps)} steps, {numbers}{partial} (table iterations)"]
    else:
        lines = [f"step {length} ms {over}{partial} (table iterations)"]
    lines += [_WINDOWS[source] for source in measured["windows_from"] or () if source in _WINDOWS]
    if measured["ranks_without_step"] and steps:
        count = measured["ranks_without_step"]
        lines.append(f"no training step is marked on {count} of the ranks: measured from first to last kernel")
    a_rank, of_it = ("a rank and step", "the mean step") if steps else ("a rank", "that time")
    if measures["hidden_share"] is None:
        lines.append("no communication ran in it (table overlap)")
    else:
        lines.append(
            f"exposed communication {milliseconds(measures['exposed_ns'])} ms {a_rank}, "
            f"{wording.percent(measured['exposed_share'])} of {of_it}; "
            f"{wording.percent(measures['hidden_share'])} of communication is hidden (table overlap)"
        )
    lines += _utilization(measures)
    if (measured["outside_share"] or 0) >= _LEAST_OUTSIDE:
        lines.append(
            f"{wording.percent(measured['outside_share'])} of kernel time lies outside the training steps, "
            "and in none of their measures (tables kernels, overlap)"
        )
    return lines


def _utilization(measures: IterationRow) -> list[str]:
    """What share of its GPUs' peak the model used, in a line; none where that is not known."""
    if measures["mfu"] is None or measures["model_flops_per_gpu"] is None or measures["peak_flops_per_s"] is None:
        return []
    used = used_of_peak(measures["model_flops_per_gpu"], measures["step_ns"], measures["peak_flops_per_s"])
    return [
        f"MFU {wording.percent(measures['mfu'])}: {used}, what the model needs against the "
        f"{measures['peak_format']} peak{', PARTIAL' if measures['partial'] else ''} (table iterations)"
    ]


def _blamed(lake: Lake, run: str, iteration: int) -> list[LateRank]:
    """The ranks that made their peers wait, the longest delay first; none where the waits are not known."""
    from traceviz_dag.analyze.waits.blamed import blamed_ranks

    return blamed_ranks(_stored(lake, "late_ranks", run, iteration))


def _stored(lake: Lake, name: str, run: str, iteration: int) -> pa.Table:
    """A table across ranks as it is in the lake; no rows where it is not."""
    there = lake.exists(name, run=run, iteration=iteration)
    return lake.table(name, run, iteration).arrow() if there else TABLES[name].schema.empty_table()
