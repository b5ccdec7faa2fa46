"""The table of edits and their gains, as ``traceviz what-if`` prints it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from traceviz_dag.analyze.causes.gains import named_edit
from traceviz_dag.commands.common.output import milliseconds, percent, print_table, shown


def print_gains(
    heading: Callable[[str], None], rows: Sequence[dict[str, Any]], first: Sequence[tuple[object, ...]] = ()
) -> None:
    """Print edits, the largest gain first.

    Args:
        heading: prints a statement below what is spoken of. rows: of ``over_steps``. first: edits that
            lead the findings, before all others.
    """
    if not rows:
        heading("nothing can be predicted")
        return
    step_ns, steps = max((row["step_ns"], row["steps"]) for row in rows)
    several = f"{steps} steps, {milliseconds(step_ns)} ms together, each"
    heading(f"{f'step {milliseconds(step_ns)} ms' if steps == 1 else several} to its last kernel")
    # A fault is the reason for much that other edits gain, so its fix comes before what only hides it.
    order = {edit: place for place, edit in enumerate(first)}
    rows = sorted(rows, key=lambda row: order.get(_key(row), len(order)))
    print_table(
        f"What edits gain, each alone{', those of the findings first' * bool(order)}; ms; gains do not add up",
        ["edit", "gain", "of step", "at least", "at most", "step then", *(["steps"] * (steps > 1))],
        [
            [
                named_edit(row),
                milliseconds(row["gain_ns"]),
                percent(row["gain_ns"] / row["step_ns"]),
                *(milliseconds(row[f"gain_{end}_ns"]) for end in ("low", "high")),
                milliseconds(row["predicted_step_ns"]),
                *([row["steps"]] * (steps > 1)),
            ]
            for row in rows
        ],
    )
    for row in shown(rows):
        if row["microbatches"] is not None:
            before, after = (milliseconds(row[name]) for name in ("microbatch_ns", "predicted_microbatch_ns"))
            typer.echo(f"  {named_edit(row)}: {after} ms of the step for each micro-batch, instead of {before} ms")


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (row["edit"], row["rank"], row["ranks"], row["dimension"])
