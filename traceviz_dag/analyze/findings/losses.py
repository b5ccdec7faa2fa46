"""What costs most of the time measured, whether or not a gain is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceviz_dag.analyze.findings.rule import Row, percent
from traceviz_dag.vocabulary import Severity

MEASURE = "share of the time measured"
"""Rules with this measure can be compared: their values are parts of the same time."""

LEAST_SHARE = 0.01
"""Smaller losses are not named."""

MOST = 3

_ANOTHER_TIME = ("unexplained",)
"""Rules that judge time without computation, in which copies may run."""


def largest_losses(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The largest losses among rows of table ``findings``, of each rule the largest; they may overlap."""
    told = [row for row in rows if row["measure"] == MEASURE and row["severity"] != Severity.NOT_LOOKED_AT]
    told = [row for row in told if row["rule"] not in _ANOTHER_TIME]
    found: dict[str, Row] = {}
    for row in sorted(told, key=lambda row: -row["value"]):
        if row["value"] >= LEAST_SHARE:
            found.setdefault(row["rule"], row)
    columns = ("rule", "rank", "dimension", "operation", "value")
    return [{name: row[name] for name in columns} for row in list(found.values())[:MOST]]


def losses_in_words(losses: Sequence[Row]) -> str:
    """The losses in a line; empty where there is none."""
    words = []
    for row in losses:
        rank = None if row["rank"] is None else f"rank {row['rank']}"
        where = [word for word in (rank, row["dimension"], row["operation"]) if word is not None]
        words.append(f"{row['rule']} {percent(row['value'])}" + (f" ({', '.join(where)})" if where else ""))
    return f"largest loss{'es' if len(words) > 1 else ''}, of the time measured: {', '.join(words)}" if words else ""
