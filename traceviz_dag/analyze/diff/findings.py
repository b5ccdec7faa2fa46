"""Findings that came, went and stayed from one side to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceviz_dag.tables.findings import CULPRIT_COLUMNS
from traceviz_dag.vocabulary import Severity

_LEAST_CHANGE = 0.1

Culprit = tuple[Any, ...]
"""A rule and whom it names."""


def by_culprit(rows: Sequence[Mapping[str, Any]]) -> dict[Culprit, Mapping[str, Any]]:
    """The findings among rows of table ``findings``, notes aside, by rule and culprit; of equal ones the first."""
    found: dict[Culprit, Mapping[str, Any]] = {}
    for row in rows:
        if row["severity"] == Severity.FINDING:
            found.setdefault((row["rule"], *(row[name] for name in CULPRIT_COLUMNS)), row)
    return found


def gain_changed(now: int | None, before: int | None) -> str:
    """How a gain compares with an earlier one, in words; a tenth more or less is as before."""
    if now is None or before is None or abs(now - before) <= _LEAST_CHANGE * max(abs(now), abs(before)):
        return "as before"
    return "gains more" if now > before else "gains less"


def findings_changed(
    a: Sequence[Sequence[Mapping[str, Any]]], b: Sequence[Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """What findings came, went and stayed; those that came first.

    Args:
        a, b: rows of table ``findings`` of each iteration of a side. A side has a finding that half of its iterations
            or more have.

    Returns:
        ``change`` (came, stayed or went), ``rule``, ``a_gain_ns``, ``b_gain_ns`` (None without one) and ``statement``,
        B's where it has it; of several iterations the last one that has it.
    """
    before, now = (_of_most(side) for side in (a, b))
    rows = []
    for key in [*now, *(key for key in before if key not in now)]:
        new, old = now.get(key), before.get(key)
        kept = now[key] if new else before[key]
        rows.append(
            {
                "change": ("stayed" if old else "came") if new else "went",
                "rule": key[0],
                "a_gain_ns": old["gain_ns"] if old else None,
                "b_gain_ns": new["gain_ns"] if new else None,
                "statement": kept["statement"],
            }
        )
    return sorted(rows, key=lambda row: ("came", "went", "stayed").index(row["change"]))


def _of_most(side: Sequence[Sequence[Mapping[str, Any]]]) -> dict[Culprit, Mapping[str, Any]]:
    found: dict[Culprit, Mapping[str, Any]] = {}
    times: dict[Culprit, int] = {}
    for rows in side:
        for key, row in by_culprit(rows).items():
            found[key], times[key] = row, times.get(key, 0) + 1
    return {key: row for key, row in found.items() if 2 * times[key] >= len(side)}
