"""Predicted gains as a figure and a page show them: which are gains for sure, which edits are refused, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceviz_dag.analyze.causes.gains import named_edit
from traceviz_dag.analyze.findings.verdict import Lead
from traceviz_dag.analyze.wording import duration, share

MOST_ROWS = 20
"""Edits that a page shows; those that gain less are in the table."""


def is_gain(row: Mapping[str, Any]) -> bool:
    """Whether all of the error bar is a gain."""
    return bool(row["gain_low_ns"] > 0)


def changes_step(row: Mapping[str, Any]) -> bool:
    """Whether the edit changes the step, with or without the host's lags."""
    return any(row[name] for name in ("gain_ns", "gain_low_ns", "gain_high_ns"))


def refused_edits(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The edits that cannot be predicted in some step, each once."""
    found: dict[str, dict[str, Any]] = {}
    for row in table:
        if row["refusal"] is not None and row["edit"] is not None:
            found.setdefault(named_edit(row), dict(row))
    return list(found.values())[: MOST_ROWS // 2]


def gain_findings(told: Sequence[Mapping[str, Any]], lead: Lead) -> list[str]:
    """What a title of gains says: what limits the step, where a fix of it is among them, and the largest gain."""
    fixes = {(row["edit"], row["rank"], row["ranks"], row["dimension"]) for row in told}
    return [*([lead.limit] if fixes.intersection(lead.edits[:1]) else []), largest_gain(told)]


def largest_gain(told: Sequence[Mapping[str, Any]]) -> str:
    """The largest gain that is one for sure, in a sentence, from rows of ``over_steps``."""
    certain = [row for row in told if is_gain(row)]
    if not certain:
        return "No usual edit would surely gain: no error bar is above 0"
    best = certain[0]
    steps = "the step" if best["steps"] == 1 else f"{best['steps']} steps"
    low, high = duration(best["gain_low_ns"]), duration(best["gain_high_ns"])
    gain = f"{duration(best['gain_ns'])} ({share(best['gain_ns'], best['step_ns'])} of {steps}), {low} to {high}"
    return f"The largest predicted gain is {gain}: {named_edit(best)}"


def signed(nanoseconds: float) -> str:
    """A duration with a sign that reads as minus."""
    return duration(nanoseconds).replace("-", "−")


def signed_share(part: int, whole: int) -> str:
    """A share with such a sign."""
    text = share(abs(part), whole)
    return f"−{text}" if part < 0 and text.strip("0. %") else text
