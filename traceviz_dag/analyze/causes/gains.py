"""Rows of edits and their gains, as commands and figures show them: summed over steps, ranked, and named in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceviz_dag.vocabulary import ALL_DIMENSIONS

TOGETHER = "together"
"""The edit that is all others at once."""

EDIT_COLUMNS = ("edit", "rank", "dimension", "factor", "microbatches", "schedule")
"""What tells one edit from another; table ``what_if`` has the first four, since no usual edit has the others."""

SUMMED_COLUMNS = ("step_ns", "predicted_step_ns", "gain_ns", "gain_low_ns", "gain_high_ns")
"""Columns that are sums over the steps of an iteration."""

MEAN_COLUMNS = ("microbatch_ns", "predicted_microbatch_ns")
"""Columns that are means over the steps, of edits of the order of work: the step for each micro-batch."""


def over_steps(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each edit, summed over the steps of the iteration; the largest gain first.

    The error bar of the sum also holds what it would be if every step gained as little, or as much, as any one does.
    """
    of_edit: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        of_edit.setdefault(tuple(row.get(name) for name in EDIT_COLUMNS), []).append(row)
    summed = []
    for key, parts in of_edit.items():
        one: dict[str, Any] = {**dict(zip(EDIT_COLUMNS, key, strict=True)), "steps": len(parts)}
        one |= {name: sum(part[name] for part in parts) for name in SUMMED_COLUMNS}
        gains = [part["gain_ns"] for part in parts]
        one["gain_low_ns"] = min(one["gain_low_ns"], min(gains) * len(parts))
        one["gain_high_ns"] = max(one["gain_high_ns"], max(gains) * len(parts))
        for name in MEAN_COLUMNS:
            known = [part[name] for part in parts if part.get(name) is not None]
            one[name] = round(sum(known) / len(known)) if known else None
        summed.append(one)
    return sorted(
        summed,
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
        "balanced_experts": "evenly loaded experts",
        "microbatches": _named_order(row),
        "schedule": _named_order(row),
        TOGETHER: "all of these together",
    }
    return words[row["edit"]]


def _named_order(row: Mapping[str, Any]) -> str:
    count, schedule = row.get("microbatches"), row.get("schedule")
    words = [f"{count} micro-batch{'es' * (count > 1)}"] if count else []
    return ", ".join(words + ([f"schedule {schedule}"] if schedule else []))
