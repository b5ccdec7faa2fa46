"""Delay costs as rows that commands and pages show, each beside what fixing the rank gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceviz_dag.analyze.causes.gains import over_steps

_SUMMED = ("cost_ns", "direct_ns", "passed_on_ns")


def costs_and_gains(costs: Sequence[Mapping[str, Any]], what_if: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Costs over the steps of an iteration, the largest first, with the gain of ``fix_rank`` where it is predicted.

    Args:
        costs: rows of table ``delay_costs``. what_if: of table ``what_if``.

    Returns:
        A row per rank and cause: ``rank`` (None: nobody known), ``stage``, ``cause``, ``cost_ns``, ``direct_ns``,
        ``passed_on_ns``, ``cost_share`` of all waits, and ``gain_ns``, of the rank with all its causes.
    """
    predicted = over_steps([row for row in what_if if row["edit"] == "fix_rank" and row["refusal"] is None])
    gains = {row["rank"]: row["gain_ns"] for row in predicted}
    summed: dict[tuple[int | None, str], dict[str, Any]] = {}
    for row in costs:
        key = row["rank"], row["cause"]
        one = summed.setdefault(
            key, {**{name: row[name] for name in ("rank", "stage", "cause")}, **dict.fromkeys(_SUMMED, 0)}
        )
        for name in _SUMMED:
            one[name] += row[name]
    total = sum(row["cost_ns"] for row in summed.values())
    ordered = sorted(summed.values(), key=lambda row: (-row["cost_ns"], row["rank"] is None, row["rank"], row["cause"]))
    return [{**row, "cost_share": row["cost_ns"] / total, "gain_ns": gains.get(row["rank"])} for row in ordered]
