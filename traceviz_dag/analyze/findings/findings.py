"""Rows of rules become findings: each with the gain that the replay predicts, a severity and one sentence.

A finding's gain is at least 1 % of the step, with an error bar that stays above 0. Less is a note; so is what nothing
predicts. Gains are those of table ``what_if``, summed over the training steps of the iteration; they do not add up:
so each finding also has what fixing it saves once those before it are fixed, and opportunities are in that order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from traceviz_dag.analyze.causes.gains import LEAST_GAIN, MOST_RANKS, named_edit, over_steps
from traceviz_dag.analyze.findings.rule import (
    EditKey,
    Row,
    Rule,
    culprit,
    evidence_sql,
    fixing_edit,
)
from traceviz_dag.analyze.findings.rules import environment
from traceviz_dag.analyze.wording import capitalised, counted, duration, share
from traceviz_dag.tables import FINDINGS
from traceviz_dag.tables.findings import CULPRIT_COLUMNS
from traceviz_dag.vocabulary import FindingClass, Severity, StepKind, TrainingFramework

MORE = 1.25
"""An edit that gains so many times what a finding can cost at most also fixes something else."""

WIDE = 0.2
"""Share of the step from which the width of an error bar is said."""

APART = 0.02
"""Share of the step by which the time that its host measured differs from it before both are printed."""

_STATED_TWICE = 0.05
"""Share of a gain, up to a fifth of the step, by which the gain after other fixes differs where it is stated, too."""

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
            where it is not known. framework: what trained; None where not known.
    """

    run: str
    iteration: int
    what_if: Sequence[Mapping[str, Any]]
    step_ns: int | None
    steps: int
    capture_mode: str
    kind: StepKind | None = None
    framework: TrainingFramework | None = None


SavedTogether = Callable[[Sequence[Sequence[EditKey]]], Sequence[int] | None]
"""What each of some sets of edits saves together, ns; None where nothing can be replayed."""


def findings_table(iteration: Iteration, judged: Sequence[Judged], saved: SavedTogether = lambda _: None) -> pa.Table:
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
    after = _gains_after(judged, gains, step_ns, saved)

    def order(each: Mapping[str, Any]) -> tuple[object, ...]:
        return (
            each["rule"] != environment.RULE.name or each["severity"] == Severity.NOT_LOOKED_AT,
            _ORDER.index(each["severity"]),
            each["class"] != FindingClass.FAULT,
            each["class"] != FindingClass.FAULT and -(each["gain_after_ns"] or 0),
            -(each["gain_ns"] if each["gain_ns"] is not None else -1),
            -(each["at_most_ns"] or 0),
            places[each["rule"]],
            *(str(each[name] or "") for name in CULPRIT_COLUMNS),
        )

    found, made = [], list[tuple[dict[str, Any], EditKey, Callable[..., dict[str, Any]]]]()
    for one in judged:
        edits = [fixing_edit(one.rule, row, gains, refusals) for row in one.rows]
        alike = Counter(edits)
        for row, edit in zip(one.rows, edits, strict=True):
            make: Callable[..., dict[str, Any]] = partial(
                _finding, iteration, one.rule, row, gains, step_ns, refusals, edit=edit, others=alike[edit] - 1
            )
            told = make(after=after)
            if told["gain_after_ns"] is None or edit is None:
                found.append(told)
            else:
                made.append((told, edit, make))
        found += [
            _unable(iteration, one.rule, reason, step_ns) for reason in (one.unable, one.partly) if reason is not None
        ]
    fixed: set[EditKey] = set()
    for told, edit, make in sorted(made, key=lambda each: order(each[0])):
        # What an edit of a row above fixes already saves nothing once more.
        found.append(make(after={edit: 0}) if edit in fixed else told)
        fixed.add(edit)
    names = [column.name for column in FINDINGS.columns]
    rows = [{**each, "finding": place} for place, each in enumerate(sorted(found, key=order))]
    return FINDINGS.from_columns({name: [row[name] for row in rows] for name in names})


def _finding(
    iteration: Iteration,
    rule: Rule,
    row: Row,
    gains: Mapping[EditKey, Mapping[str, Any]],
    step_ns: int | None,
    refusals: Mapping[EditKey | None, str],
    *,
    after: Mapping[EditKey, int],
    edit: EditKey | None,
    others: int,
) -> dict[str, Any]:
    """A row of table ``findings``.

    Args:
        refusals: why an edit cannot be predicted; of None, why no edit of a step can be.
        after: what edits of findings save once those before them are made.
        edit: the one that fixes it. others: rows of this rule that the same edit fixes.
    """
    gain = _gain_of(row, edit, gains)
    if gain is None and edit is not None and step_ns and after.get(edit, 0) >= LEAST_GAIN * step_ns:
        gain = gains[edit] if gains[edit]["gain_ns"] < 0 else None
    why = None
    if gain is None:
        why = _why_unpredicted(rule, edit, refusals, gains)
        if edit is not None and edit in gains:
            why = f"the edit that fixes it ({named_edit(gains[edit])}) also changes healthy work"
    gain_after = after.get(edit) if edit is not None and gain is not None else None
    severity, at_most = _severity(gain, step_ns, gain_after), row.get("at_most_ns")
    saves, details = "", [rule.detail(row)]
    if gain and step_ns:
        saves = f"; {_gain_in_words(gain, iteration, step_ns)}"
        if gain_after is not None and abs(gain_after - gain["gain_ns"]) > _STATED_TWICE * min(
            abs(gain["gain_ns"]), step_ns / 5
        ):
            saves += (
                f", {'and save ' * (gain['gain_ns'] < 0)}{duration(max(gain_after, 0))} once those before it are fixed"
            )
        details.append(_bar_in_words(gain, iteration, step_ns))
    else:
        details.append(f"no gain is predicted: {why}")
    if gain and step_ns and others:
        details.append(f"this also fixes {counted(others, 'other finding', 'other findings')} of {rule.name}")
    return {
        **_shared(iteration, rule, step_ns),
        **culprit(row),
        "class": row.get("class", rule.of_class.value),
        "severity": severity.value,
        "measure": rule.measure,
        "value": row["value"],
        "edit": edit.edit if gain is not None and edit is not None else None,
        "gain_ns": gain["gain_ns"] if gain else None,
        "gain_low_ns": gain["gain_low_ns"] if gain else None,
        "gain_high_ns": gain["gain_high_ns"] if gain else None,
        "gain_after_ns": gain_after,
        "confidence": "inferred" if row.get("inferred") else "measured",
        "refusal": why,
        "at_most_ns": at_most,
        "statement": f"{capitalised(rule.sentence(row))}{saves}",
        "detail": "; ".join(filter(None, details)),
        "remedy": rule.what_to_do(row, iteration.kind, iteration.framework),
        "evidence_sql": evidence_sql(rule, iteration.run, iteration.iteration, row),
    }


def _gain_of(row: Row, edit: EditKey | None, gains: Mapping[EditKey, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row of ``what_if`` that says what fixing a row saves; None where none does, or where it changes more: what
    cannot cost time would."""
    gain, at_most = gains.get(edit) if edit is not None else None, row.get("at_most_ns")
    if gain is None or at_most is None:
        return gain
    return gain if -LEAST_GAIN * gain["step_ns"] < gain["gain_ns"] <= MORE * at_most else None


def _may_save(row: Row, gain: Mapping[str, Any]) -> int:
    """What fixing a row may save at the most, also where another fault hides it now, ns."""
    return max(gain["gain_high_ns"], *(row.get(name) or 0 for name in ("more_ns", "excess_ns", "at_most_ns")))


def _gains_after(
    judged: Sequence[Judged],
    gains: Mapping[EditKey, Mapping[str, Any]],
    step_ns: int | None,
    saved: SavedTogether,
) -> dict[EditKey, int]:
    """What each edit of a finding saves once those before it are made.

    Faults come first, by what they save alone; then faults that save enough once these are fixed, since another one as
    late hides them; then opportunities, by what they save once all faults are fixed: also those that would cost time
    before, as even stages do whose slow rank gets more to do.
    """
    if step_ns is None:
        return {}
    of_class, hidden, later = _candidates(judged, gains, step_ns)

    def adds(edit: EditKey) -> int:
        """What an edit saves once the faults are fixed."""
        both = saved([faults, [*faults, edit]])
        return 0 if both is None else both[1] - both[0]

    faults = sorted(of_class[True], key=lambda edit: -of_class[True][edit])
    for edit in sorted(hidden.keys() - of_class[True].keys(), key=lambda edit: -hidden[edit]) if faults else ():
        if adds(edit) >= LEAST_GAIN * step_ns:
            faults.append(edit)
    if faults and later and (together := saved([faults, *([*faults, edit] for edit in later)])) is not None:
        more = zip(later, (total - together[0] for total in together[1:]), strict=True)
        of_class[False] |= {edit: gain for edit, gain in more if gain >= LEAST_GAIN * step_ns}
    others = [edit for edit in of_class[False] if edit not in faults]
    if len(faults) + len(others) < 2:
        return {edit: gain for each in of_class.values() for edit, gain in each.items()}
    # Without faults, that is what each saves alone.
    alone = saved([[*faults, edit] for edit in others]) if faults else [of_class[False][edit] for edit in others]
    if alone is None:
        return {}
    order = [*faults, *(edit for _, edit in sorted(zip(alone, others, strict=True), key=lambda one: -one[0]))]
    together = saved([order[: count + 1] for count in range(len(order))])
    if together is None:
        return {}
    return {edit: total - before for edit, total, before in zip(order, together, (0, *together), strict=False)}


def _candidates(
    judged: Sequence[Judged], gains: Mapping[EditKey, Mapping[str, Any]], step_ns: int
) -> tuple[dict[bool, dict[EditKey, int]], dict[EditKey, int], list[EditKey]]:
    """The edits of findings.

    Returns:
        Of faults (true) and opportunities, those that save enough alone, and what; those of faults that may save enough
        once others are fixed, and what at the most; and those of opportunities that would cost time alone.
    """
    of_class: dict[bool, dict[EditKey, int]] = {True: {}, False: {}}
    hidden: dict[EditKey, int] = {}
    later: list[EditKey] = []
    for one in judged:
        for row in one.rows:
            edit, is_fault = (
                fixing_edit(one.rule, row, gains),
                row.get("class", one.rule.of_class) == FindingClass.FAULT,
            )
            gain = _gain_of(row, edit, gains)
            if edit is None or edit not in gains:
                continue
            if gain is None:
                later += [edit] if not is_fault and gains[edit]["gain_ns"] < 0 else []
            elif _severity(gain, step_ns) == Severity.FINDING:
                of_class[is_fault][edit] = gain["gain_ns"]
            elif is_fault and _may_save(row, gain) >= LEAST_GAIN * step_ns:
                hidden[edit] = _may_save(row, gain)
    return of_class, hidden, list(dict.fromkeys(later))


def _unable(iteration: Iteration, rule: Rule, reason: str, step_ns: int | None) -> dict[str, Any]:
    return {
        **_shared(iteration, rule, step_ns),
        **dict.fromkeys(
            ("measure", "value", "edit", "gain_ns", "gain_low_ns", "gain_high_ns", "gain_after_ns", "confidence")
        ),
        "class": rule.of_class.value,
        "severity": Severity.NOT_LOOKED_AT.value,
        "refusal": reason,
        "at_most_ns": None,
        "statement": reason,
        "detail": None,
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


def _severity(gain: Mapping[str, Any] | None, step_ns: int | None, gain_after: int | None = None) -> Severity:
    if gain is None or step_ns is None:
        return Severity.NOTE
    enough = gain["gain_ns"] >= LEAST_GAIN * step_ns and gain["gain_low_ns"] > 0
    return Severity.FINDING if enough or (gain_after or 0) >= LEAST_GAIN * step_ns else Severity.NOTE


def are_apart(step_ns: int, measured_ns: int | None) -> bool:
    """Whether GPUs go on so long after their hosts that the step has two lengths."""
    return measured_ns is not None and abs(step_ns - measured_ns) >= APART * step_ns


def _gain_in_words(gain: Mapping[str, Any], iteration: Iteration, step_ns: int) -> str:
    """What an edit saves of all steps; it may be predicted in some of them only.

    Where that is too little for a finding and may be enough, or where it may be far more, it says so.
    """
    whole = f"the {duration(step_ns)} step"
    if iteration.steps > 1:
        whole = f"{duration(step_ns)} in {iteration.steps} steps"
    if iteration.kind is StepKind.INFERENCE:
        whole = f"the {duration(step_ns)} recorded"
    fixing = "hiding it" if gain["edit"] == "hide" else "fixing it"
    change, most = gain["gain_ns"], gain["gain_high_ns"]
    more = ""
    if most is not None and (change < LEAST_GAIN * step_ns <= most or most - change > WIDE * step_ns):
        more = f", or {'save ' if change < 0 else ''}up to {duration(most)} ({share(most, step_ns)})"
    if change < 0:
        return f"{fixing} would add {duration(-change)} to {whole} ({share(-change, step_ns)}){more}"
    if change == 0:
        return f"{fixing} would save nothing of {whole}{more}"
    return f"{fixing} would save {duration(change)} of {whole} ({share(change, step_ns)}){more}"


def _bar_in_words(gain: Mapping[str, Any], iteration: Iteration, step_ns: int) -> str:
    """What the gain rests on: the edit that the replay made, its error bar, and what of it is unusual."""
    low, high = gain["gain_low_ns"], gain["gain_high_ns"]
    words = [f"replay ({named_edit(gain)}): saves {duration(low)} to {duration(high)}"]
    if untouched := gain.get("untouched_share"):
        words.append(
            f"{share(untouched, 1)} of the time of these transfers stays, as no similar ones show what is usual"
        )
    if high - low > WIDE * step_ns:
        words.append(f"an error bar of {share(high - low, step_ns)} of the step")
    if are_apart(step_ns, iteration.step_ns):
        # Elsewhere on the screen is the length that the host measured.
        words.append(f"of {duration(step_ns)} to the last kernel")
    return ", ".join(words)


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
