"""Rows of rules become findings: each with the gain that the replay predicts, a severity and one sentence.

A finding's gain is at least 1 % of the step, with an error bar that stays above 0. Less is a note; so is what nothing
predicts. Gains are those of table ``what_if``, summed over the training steps of the iteration; they do not add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from traceviz_dag.analyze.causes.gains import LEAST_GAIN, named_edit, over_steps
from traceviz_dag.analyze.causes.what_if import MOST_RANKS
from traceviz_dag.analyze.findings.rule import (
    EditKey,
    Row,
    Rule,
    culprit,
    evidence_sql,
    mending_edit,
    milliseconds,
    percent,
)
from traceviz_dag.analyze.findings.rules import environment
from traceviz_dag.tables import FINDINGS
from traceviz_dag.tables.findings import CULPRIT_COLUMNS
from traceviz_dag.vocabulary import FindingClass, Severity, StepKind, TrainingFramework

MORE = 1.25
"""An edit that gains so many times what a finding can cost at most mends something else, too."""

WIDE = 0.2
"""Share of the step from which the width of an error bar is said."""

APART = 0.02
"""Share of the step by which the time that its host measured differs from it before both are told."""

_ORDER = (Severity.FINDING, Severity.NOTE, Severity.NOT_LOOKED_AT)


@dataclass(frozen=True, slots=True)
class Judged:
    """What one rule says of an iteration.

    Attributes:
        rows: of its query. unable: why it cannot judge; None where it can. partly: what it cannot judge beside what
            it does; None where it judges all.
    """

    rule: Rule
    rows: Sequence[Row]
    unable: str | None = None
    partly: str | None = None


@dataclass(frozen=True, slots=True)
class Iteration:
    """What all findings of an iteration share.

    Attributes:
        what_if: rows of the table of that name. step_ns: of its training steps on the host together; None where no file
            has a ProfilerStep. steps: how many. capture_mode: what was recorded, in words. kind: of the steps; None
            where it is not known. framework: what trained; None where nothing tells.
    """

    run: str
    iteration: int
    what_if: Sequence[Mapping[str, Any]]
    step_ns: int | None
    steps: int
    capture_mode: str
    kind: StepKind | None = None
    framework: TrainingFramework | None = None


def findings_table(iteration: Iteration, judged: Sequence[Judged]) -> pa.Table:
    """The table ``findings``: how environments differ, which all comparisons rest on; then the gravest first."""
    predicted = [row for row in iteration.what_if if row["refusal"] is None]
    refusals: dict[EditKey | None, str] = {}
    for row in iteration.what_if:
        if row["refusal"] is not None:
            key = EditKey(row["edit"], row["rank"], row["dimension"], row["ranks"]) if row["edit"] is not None else None
            refusals.setdefault(key, row["refusal"])
    gains = {EditKey(row["edit"], row["rank"], row["dimension"], row["ranks"]): row for row in over_steps(predicted)}
    known = {row["step"]: row["step_ns"] for row in predicted}
    step_ns = sum(known.values()) if known else iteration.step_ns
    if step_ns is not None and iteration.step_ns is not None and not are_apart(step_ns, iteration.step_ns):
        # One length for all shares: what the host measured, as every other command says it.
        step_ns = iteration.step_ns
    places = {one.rule.name: place for place, one in enumerate(judged)}
    found = []
    for one in judged:
        edits = [mending_edit(one.rule, row, gains) for row in one.rows]
        alike = Counter(edits)
        found += [
            _finding(iteration, one.rule, row, gains, step_ns, refusals, edit=edit, others=alike[edit] - 1)
            for row, edit in zip(one.rows, edits, strict=True)
        ]
        found += [
            _unable(iteration, one.rule, reason, step_ns) for reason in (one.unable, one.partly) if reason is not None
        ]
    found.sort(
        key=lambda each: (
            each["rule"] != environment.RULE.name or each["severity"] == Severity.NOT_LOOKED_AT,
            _ORDER.index(each["severity"]),
            each["class"] != FindingClass.FAULT,
            -(each["gain_ns"] if each["gain_ns"] is not None else -1),
            -(each["at_most_ns"] or 0) if each["gain_ns"] is None else 0,
            places[each["rule"]],
            *(str(each[name] or "") for name in CULPRIT_COLUMNS),
        )
    )
    names = [column.name for column in FINDINGS.columns]
    rows = [{**each, "finding": place} for place, each in enumerate(found)]
    return FINDINGS.from_columns({name: [row[name] for row in rows] for name in names})


def _finding(
    iteration: Iteration,
    rule: Rule,
    row: Row,
    gains: Mapping[EditKey, Mapping[str, Any]],
    step_ns: int | None,
    refusals: Mapping[EditKey | None, str],
    *,
    edit: EditKey | None,
    others: int,
) -> dict[str, Any]:
    """A row of table ``findings``.

    Args:
        refusals: why an edit cannot be predicted; of None, why no edit of a step can be.
        edit: the one that mends it. others: rows of this rule that the same edit mends.
    """
    gain = gains.get(edit) if edit is not None else None
    why = None if gain is not None else _why_unpredicted(rule, edit, refusals, gains)
    at_most = row.get("at_most_ns")
    if gain is not None and at_most is not None and gain["gain_ns"] > MORE * at_most:
        why = f"the edit that mends it ({named_edit(gain)}) mends more than this"
        gain = None
    predicted = _gain_in_words(gain, iteration, step_ns) if gain and step_ns else f"no gain is predicted: {why}"
    if gain and step_ns and others:
        what = f"other {rule.name}" if others == 1 else f"{others} others of {rule.name}"
        predicted += f"; that mends the {what}, too"
    return {
        **_shared(iteration, rule, step_ns),
        **culprit(row),
        "class": row.get("class", rule.of_class.value),
        "severity": _severity(gain, step_ns).value,
        "measure": rule.measure,
        "value": row["value"],
        "edit": edit.edit if gain is not None and edit is not None else None,
        "gain_ns": gain["gain_ns"] if gain else None,
        "gain_low_ns": gain["gain_low_ns"] if gain else None,
        "gain_high_ns": gain["gain_high_ns"] if gain else None,
        "confidence": "inferred" if row.get("inferred") else "measured",
        "refusal": why,
        "at_most_ns": at_most,
        "statement": f"{rule.sentence(row)}; {predicted}",
        "remedy": rule.what_to_do(row, iteration.kind, iteration.framework),
        "evidence_sql": evidence_sql(rule, iteration.run, iteration.iteration, row),
    }


def _unable(iteration: Iteration, rule: Rule, reason: str, step_ns: int | None) -> dict[str, Any]:
    return {
        **_shared(iteration, rule, step_ns),
        **dict.fromkeys(("measure", "value", "edit", "gain_ns", "gain_low_ns", "gain_high_ns", "confidence")),
        "class": rule.of_class.value,
        "severity": Severity.NOT_LOOKED_AT.value,
        "refusal": reason,
        "at_most_ns": None,
        "statement": reason,
        "remedy": None,
        "evidence_sql": None,
    }


def _shared(iteration: Iteration, rule: Rule, step_ns: int | None) -> dict[str, Any]:
    return {
        **dict.fromkeys(CULPRIT_COLUMNS),
        "rule": rule.name,
        "steps": iteration.steps,
        "step_ns": step_ns,
        "measured_ns": iteration.step_ns,
        "capture_mode": iteration.capture_mode,
    }


def _severity(gain: Mapping[str, Any] | None, step_ns: int | None) -> Severity:
    if gain is None or step_ns is None:
        return Severity.NOTE
    enough = gain["gain_ns"] >= LEAST_GAIN * step_ns and gain["gain_low_ns"] > 0
    return Severity.FINDING if enough else Severity.NOTE


def are_apart(step_ns: int, measured_ns: int | None) -> bool:
    """Whether GPUs go on so long after their hosts that the step has two lengths."""
    return measured_ns is not None and abs(step_ns - measured_ns) >= APART * step_ns


def _gain_in_words(gain: Mapping[str, Any], iteration: Iteration, step_ns: int) -> str:
    """What an edit gains, of all steps; it may be predicted in some of them only."""
    together, whole = f"the {iteration.steps} steps together" if iteration.steps > 1 else "the step", "the step"
    if iteration.kind is StepKind.INFERENCE:
        together, whole = "what was recorded", "that time"
    # Elsewhere on the screen is the length that the host measured.
    of = f" of {milliseconds(step_ns)} to the last kernel" if are_apart(step_ns, iteration.step_ns) else ""
    change, low, high = gain["gain_ns"], gain["gain_low_ns"], gain["gain_high_ns"]
    direction = "shorter"
    if change < 0:
        change, low, high, direction = -change, -high, -low, "longer"
    wide = (
        f"; the error bar is {percent((high - low) / step_ns)} of {whole} wide" if high - low > WIDE * step_ns else ""
    )
    return (
        f"mending it ({named_edit(gain)}) makes {together} {milliseconds(change)} {direction} "
        f"({percent(change / step_ns)}{of}; {low / 1e6:,.3f} to {high / 1e6:,.3f}), the replay predicts{wide}"
    )


def _why_unpredicted(
    rule: Rule, edit: EditKey | None, refusals: Mapping[EditKey | None, str], gains: Mapping[EditKey, Mapping[str, Any]]
) -> str:
    if edit is None:
        return rule.unpredicted
    if edit in refusals:
        return refusals[edit]
    if not gains:
        return refusals.get(None, "no training step could be replayed")
    named = named_edit({**edit._asdict(), "factor": None})
    if edit.edit == "fix_rank":
        return (
            f"this edit ({named}) is predicted of {MOST_RANKS} other ranks that come first; traceviz what-if predicts "
            "it if asked"
        )
    return f"this edit ({named}) is not among the usual ones; traceviz what-if predicts it if asked"
