"""What costs most of the time measured, whether or not a gain is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceviz_dag.analyze.causes.gains import LEAST_GAIN
from traceviz_dag.analyze.findings.notes import may_be_finding
from traceviz_dag.analyze.findings.rule import MEASURE, Row
from traceviz_dag.analyze.wording import capitals, share
from traceviz_dag.vocabulary import FindingClass, Severity

LEAST_SHARE = 0.01
"""Smaller losses are not named; of a rule, one is."""

LARGE_SHARE = 0.1
"""What takes so much is named though it is known to cost nothing, and in each dimension."""

MOST = 3
"""Losses that are named; more only where they are large."""

_ANOTHER_TIME = ("unexplained",)
"""Rules that judge time without computation, in which copies may run."""


def largest_losses(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The largest losses among rows of table ``findings``, of each rule and dimension the largest; they may overlap."""
    columns = ("rule", "rank", "dimension", "operation", "value")
    return [{name: row[name] for name in columns} for row in _largest(rows)]


def leading(rows: Sequence[Row]) -> list[Row]:
    """Rows of table ``findings`` to number: findings, and notes among the largest losses.

    Faults come first, as the table has them; where there is none, those that name somebody and may be findings, if only
    the gain were known. Then what costs most, in the order of ``largest_losses``.
    """
    losses, faults = _largest(rows), [row for row in rows if _is_fault(row)]
    faults = faults or [row for row in rows if _is_likely(row)]
    found = [row for row in rows if row["severity"] == Severity.FINDING or row in losses or row in faults]
    return sorted(found, key=lambda row: (0, 0) if row in faults else (1, -_cost_ns(row)))


def label(row: Row) -> str:
    """What a numbered row is: its class, or a loss where no gain of it is a finding."""
    if _is_likely(row):
        return "fault, saving unknown"
    return str(row["class"]) if row["severity"] == Severity.FINDING else "loss"


def _is_likely(row: Row) -> bool:
    """Whether it is a fault that names somebody, and may be a finding."""
    named = row["rank"] is not None or row["group_ranks"] is not None
    return bool(row["class"] == FindingClass.FAULT and named and may_be_finding(row))


def _is_fault(row: Row) -> bool:
    return bool(row["class"] == FindingClass.FAULT and row["severity"] == Severity.FINDING)


def _cost_ns(row: Row) -> float:
    """What fixing a row would save after those before it; where nothing predicts that, half of the time that it takes:
    its causes often have findings of their own.
    """
    for known in ("gain_after_ns", "gain_ns"):
        if row[known] is not None:
            return float(row[known])
    return row["value"] * (row["measured_ns"] or row["step_ns"] or 1) / 2 if row["measure"] == MEASURE else 0.0


def _largest(rows: Sequence[Row]) -> list[Row]:
    told = [row for row in rows if row["measure"] == MEASURE and row["severity"] != Severity.NOT_LOOKED_AT]
    told = [row for row in told if row["rule"] not in _ANOTHER_TIME and not _costs_nothing(row)]
    found: dict[tuple[str, str | None], Row] = {}
    for row in sorted(told, key=lambda row: -row["value"]):
        if row["value"] >= LEAST_SHARE:
            found.setdefault((row["rule"], row["dimension"] if row["value"] >= LARGE_SHARE else None), row)
    return [row for number, row in enumerate(found.values()) if number < MOST or row["value"] >= LARGE_SHARE]


def _costs_nothing(row: Row) -> bool:
    """Whether a smaller loss is known to be none of the step: fixing it saves nothing worth a finding."""
    high = row["gain_high_ns"]
    return bool(high is not None and row["value"] < LARGE_SHARE and high < LEAST_GAIN * (row["step_ns"] or 0))


def losses_in_words(losses: Sequence[Row]) -> str:
    """The losses in a line; empty where there is none."""
    words: list[str] = []
    for before, row in zip([None, *losses], losses, strict=False):
        rank = None if row["rank"] is None else f"rank {row['rank']}"
        dimension = None if row["dimension"] is None else capitals(row["dimension"])
        where = [word for word in (rank, dimension, row["operation"]) if word is not None]
        rule = "" if before is not None and before["rule"] == row["rule"] else f"{row['rule'].replace('_', ' ')} "
        words.append(f"{rule}{share(row['value'])}" + (f" ({', '.join(where)})" if where else ""))
    return f"largest loss{'es' if len(words) > 1 else ''}, of the time measured: {', '.join(words)}" if words else ""
