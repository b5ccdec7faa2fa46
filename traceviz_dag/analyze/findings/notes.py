"""What headings say of notes: how many there are, and how many of them may be findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traceviz_dag.analyze.causes.gains import LEAST_GAIN
from traceviz_dag.analyze.findings.findings import MORE
from traceviz_dag.analyze.findings.rule import nothing_fixes
from traceviz_dag.vocabulary import Severity


def may_be_finding(row: Mapping[str, Any]) -> bool:
    """Whether a note has a gain that is not known, but may be enough for a finding."""
    # All rules: whoever shows a verdict alone does without.
    from traceviz_dag.analyze.findings.rules.registry import rule_if_known

    rule = rule_if_known(row["rule"]) if row["severity"] == Severity.NOTE and row["gain_ns"] is None else None
    if rule is None or rule.edit is nothing_fixes:
        return False
    known = row["at_most_ns"] is not None and row["step_ns"] is not None
    return not known or MORE * row["at_most_ns"] >= LEAST_GAIN * row["step_ns"]


def notes_in_words(notes: int, unknown: int) -> str:
    """How many notes there are, and of how many it is not known whether they are findings."""
    which = "" if not unknown else f" ({unknown} of unknown gain)"
    return f"{notes} note{'' if notes == 1 else 's'}{which}"
