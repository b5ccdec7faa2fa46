"""How well the clocks of an iteration are known: said with every measure that compares ranks."""

from __future__ import annotations

from typing import TypedDict

import pyarrow as pa

from traceviz_dag.tables.rows import RankClockRow, rows_of

_SAID_AS_BOUND_NS = 100


class ClockFacts(TypedDict):
    """The clocks of an iteration in few numbers.

    Attributes:
        solved: ranks whose clock is solved; components: groups of these that matches connect.
        residual_p05_ns, residual_p95_ns: the lowest and the highest of these; None where no clock is solved.
        refusals: rank → why it is not solved.
    """

    ranks: int
    solved: int
    components: int
    residual_p05_ns: int | None
    residual_p95_ns: int | None
    refusals: dict[str, str]


def clock_facts(rank_clocks: pa.Table) -> ClockFacts:
    """The table ``rank_clocks`` in few numbers."""
    rows = rows_of(rank_clocks, RankClockRow)
    solved = [row for row in rows if row["refusal"] is None]
    return {
        "ranks": len(rows),
        "solved": len(solved),
        "components": len({row["component"] for row in solved}),
        "residual_p05_ns": min((low for row in solved if (low := row["residual_p05_ns"]) is not None), default=None),
        "residual_p95_ns": max((high for row in solved if (high := row["residual_p95_ns"]) is not None), default=None),
        "refusals": {str(row["rank"]): row["refusal"] for row in rows if row["refusal"] is not None},
    }


def clock_statement(facts: ClockFacts) -> str:
    """The same in one line."""
    low, high = facts["residual_p05_ns"], facts["residual_p95_ns"]
    if facts["ranks"] == 1:
        return "one rank, so no clocks are compared"
    if low is None or high is None:
        reason = next(iter(facts["refusals"].values()), "no rank was read whole")
        return f"clocks as recorded, not solved: {reason}"
    parts = f" in {facts['components']} components" if facts["components"] > 1 else ""
    text = f"clocks solved for {facts['solved']} of {facts['ranks']} ranks{parts}"
    return f"{text}; ends agree within {residual_range(low, high)}"


def residual_range(low_ns: int, high_ns: int) -> str:
    """The p05 and p95 of residuals in words; what rounds to nothing is said as a bound."""
    if max(abs(low_ns), abs(high_ns)) < _SAID_AS_BOUND_NS:
        return f"{_SAID_AS_BOUND_NS / 1e3:.1f} µs (p05 to p95)"
    low, high = (f"{ns / 1e3:+z.1f}".replace("+0.0", "0.0") for ns in (low_ns, high_ns))
    return f"{low} to {high} µs (p05 to p95)"
