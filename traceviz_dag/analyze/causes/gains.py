"""Rows of edits and their gains, as commands and figures show them: summed over steps, ranked, and named in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceviz_dag.vocabulary import ALL_DIMENSIONS

TOGETHER = "together"
"""The edit that is all others at once."""

EDIT_COLUMNS = ("edit", "rank", "dimension", "factor")
"""Columns of table ``what_if`` that tell one edit from another."""

SUMMED_COLUMNS = ("step_ns", "predicted_step_ns", "gain_ns", "gain_low_ns", "gain_high_ns")
"""Columns that are sums over the steps of an iteration."""


def over_steps(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each edit, summed over the steps of the iteration; the largest gain first."""
    summed: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in EDIT_COLUMNS)
        one = summed.setdefault(
            key, {**dict(zip(EDIT_COLUMNS, key, strict=True)), "steps": 0, **dict.fromkeys(SUMMED_COLUMNS, 0)}
        )
        one["steps"] += 1
        for name in SUMMED_COLUMNS:
            one[name] += row[name]
    return sorted(
        summed.values(),
        key=lambda row: (
            -row["gain_ns"],
            row["edit"],
            -1 if row["rank"] is None else row["rank"],
            str(row["dimension"]),
        ),
    )


def named_edit(row: Mapping[str, Any]) -> str:
    """An edit in words."""
    dimension = "all communication" if row["dimension"] == ALL_DIMENSIONS else f"{row['dimension']} communication"
    words = {
        "fix_rank": f"fix rank {row['rank']}",
        "hide": f"hide {dimension}",
        "faster": f"{row['factor'] or 0:g} times faster {dimension}",
        "fix_link": f"fix the links of rank {row['rank']}",
        "even_layers": "as many layers in every stage",
        "equal_stages": "equal pipeline stages",
        "no_jitter": "no jitter between micro-batches",
        "no_pauses": "no pauses of hosts",
        "host_free": "no waiting for launches",
        TOGETHER: "all of these together",
    }
    return words[row["edit"]]
