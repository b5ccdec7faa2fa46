"""What is wrong with an iteration: its findings, in the order in which people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.pipeline.answers.iterations import place
from traceviz_dag.tables.findings import CULPRIT_COLUMNS

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration


def findings_answer(iteration: StoredIteration) -> dict[str, Any]:
    """The rows of table ``findings``, and what holds for all of them: environment, kind of step, cut steps."""
    from traceviz_dag.lake.summaries import cut_steps
    from traceviz_dag.pipeline.certainty import compared_environment, kind_of_steps

    rows, files = iteration.findings(), iteration.files
    what = {
        "environment": compared_environment(files),
        "step_kind": kind_of_steps(files),
        "cut_steps": cut_steps(files),
    }
    return {**place(iteration), **what, "iteration_findings": rows}


def findings_rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a finding, numbered ones first, with its culprit as an object of the keys that apply."""
    from traceviz_dag.analyze.findings.losses import leading
    from traceviz_dag.analyze.findings.rule import culprit

    where = {name: value for name, value in answer.items() if name != "iteration_findings"}
    rows = []
    first = leading(answer["iteration_findings"])
    for row in [*first, *(row for row in answer["iteration_findings"] if row not in first)]:
        rest = {name: value for name, value in row.items() if name not in (*CULPRIT_COLUMNS, "run", "iteration")}
        rows.append({**where, **rest, "culprit": culprit(row)})
    return rows


def step_in_words(row: dict[str, Any]) -> str:
    """How long the step takes, and what of it shares are of, where GPUs go on long after their hosts."""
    from traceviz_dag.analyze.findings.findings import are_apart

    step, measured = row["step_ns"], row["measured_ns"]
    words = f"step {milliseconds(step)} ms" if row["steps"] == 1 else f"{row['steps']} steps of {milliseconds(step)} ms"
    if not are_apart(step, measured):
        return words if row["steps"] == 1 else f"{words} together"
    kernel = "its last kernel" if row["steps"] == 1 else "the last kernel of each"
    return f"{words} to {kernel}, of which the time measured is the host's {milliseconds(measured)} ms,"
