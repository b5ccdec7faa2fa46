"""How well the clocks of an iteration are known: said with every measure that compares ranks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_SAID_AS_BOUND_NS = 100


def clock_facts(rank_clocks: pa.Table) -> dict[str, Any]:
    """The table ``rank_clocks`` in few numbers: ranks, solved ones, components, residuals (ns), refusals by rank."""
    rows = rank_clocks.to_pylist()
    solved = [row for row in rows if row["refusal"] is None]
    return {
        "ranks": len(rows),
        "solved": len(solved),
        "components": len({row["component"] for row in solved}),
        "residual_p05_ns": min((row["residual_p05_ns"] for row in solved), default=None),
        "residual_p95_ns": max((row["residual_p95_ns"] for row in solved), default=None),
        "refusals": {str(row["rank"]): row["refusal"] for row in rows if row["refusal"] is not None},
    }


def clock_statement(facts: dict[str, Any]) -> str:
    """The same in one line."""
    if not facts["solved"]:
        reason = next(iter(facts["refusals"].values()), "there are no ranks")
        return f"clocks as recorded, not solved: {reason}"
    parts = f" in {facts['components']} components" if facts["components"] > 1 else ""
    text = f"clocks solved for {facts['solved']} of {facts['ranks']} ranks{parts}"
    return f"{text}; ends agree within {residual_range(facts['residual_p05_ns'], facts['residual_p95_ns'])}"


def residual_range(low_ns: int, high_ns: int) -> str:
    """The p05 and p95 of residuals in words; what rounds to nothing is said as a bound."""
    if max(abs(low_ns), abs(high_ns)) < _SAID_AS_BOUND_NS:
        return f"{_SAID_AS_BOUND_NS / 1e3:.1f} us (p05 to p95)"
    return f"{low_ns / 1e3:+.1f} to {high_ns / 1e3:+.1f} us (p05 to p95)"
