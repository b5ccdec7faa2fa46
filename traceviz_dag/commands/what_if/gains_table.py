"""The table of edits and their gains, as ``traceviz what-if`` prints it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from traceviz_dag.analyze.causes.gains import TOGETHER, named_edit, refused_sentence
from traceviz_dag.analyze.findings.verdict import Lead
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.output import print_columns, print_wrapped, shown


def print_gains(
    heading: Callable[[str], None], rows: Sequence[dict[str, Any]], lead: Lead | None = None, steady: str | None = None
) -> None:
    """Print edits, the largest gain first.

    Args:
        heading: prints a statement below what is spoken of. rows: of ``over_steps``. lead: whose fixes come
            before all others. steady: instead of the step, what the rows are of: a steady period.
    """
    if not rows:
        heading(f"{steady}; nothing can be predicted" if steady else "nothing can be predicted")
        return
    step_ns, steps = max((row["step_ns"], row["steps"]) for row in rows)
    several = f"{steps} steps, {milliseconds(step_ns)} ms together, each"
    heading(steady or f"{f'step {milliseconds(step_ns)} ms' if steps == 1 else several} to its last kernel")
    steps = 1 if steady else steps
    of = "period" if steady else "step"
    edits, first = {row["edit"] for row in rows}, ""
    if lead is not None and lead.edits and len(rows) > 1:
        rows, first = lead.fixes_first(rows), ", those of the findings first"
    print_columns(
        f"Gains{', each edit alone' * (TOGETHER not in edits)}{first}; they do not add up",
        [{**row, "edit": named_edit(row), "share": row["gain_ns"] / row["step_ns"]} for row in rows],
        [
            *("edit", "gain_ns", ("share", f"of {of}"), ("gain_low_ns", "at least"), ("gain_high_ns", "at most")),
            *(("predicted_step_ns", f"{of} then"), *(["steps"] * (steps > 1))),
        ],
    )
    for row in shown(rows):
        if row["microbatches"] is not None:
            before, after = (milliseconds(row[name]) for name in ("microbatch_ns", "predicted_microbatch_ns"))
            typer.echo(f"  {named_edit(row)}: {after} ms of the step for each micro-batch, instead of {before} ms")


def print_refused(refused: Sequence[Mapping[str, Any]]) -> bool:
    """Print how many edits are refused, and why; returns whether there are any."""
    sentence = refused_sentence(refused)
    if sentence is not None:
        print_wrapped(sentence, 4, "  ")
    return sentence is not None
