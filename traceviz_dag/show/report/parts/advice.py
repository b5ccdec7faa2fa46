"""Advice: other schedules, model chunks and layers, by the step that they would make, with the flags that make them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from traceviz_dag.analyze.causes.gains import named_change
from traceviz_dag.analyze.wording import share
from traceviz_dag.printable import printable
from traceviz_dag.show.report.parts.part import Page, Part, measured, paragraph, section, top

ADVICE_SQL = """
SELECT microbatches, schedule, chunks, layers, no_recompute, rank_order, count(*) AS steps,
    avg(step_ns)::BIGINT AS step_ns, avg(predicted_step_ns)::BIGINT AS predicted_step_ns,
    avg(low_ns)::BIGINT AS step_low_ns, avg(high_ns)::BIGINT AS step_high_ns,
    avg(tokens_per_second) AS tokens_per_second, bool_and(wins) AS wins,
    any_value(in_flight) AS in_flight, any_value(megatron_lm) AS megatron_lm,
    any_value(megatron_bridge) AS megatron_bridge
FROM advice WHERE run = $run AND iteration = $iteration AND refusal IS NULL AND same_batch
GROUP BY microbatches, schedule, chunks, layers, no_recompute, rank_order
HAVING tokens_per_second > 1 ORDER BY tokens_per_second DESC, predicted_step_ns, chunks, schedule, layers
"""

_MOST_ROWS = 10


def advice(page: Page) -> Markup | None:
    """The part; none where nothing can be advised."""
    if not page.book.source.table("advice", ("place",)).column("place").drop_null():
        return None
    asked = page.book.ask("Steps with other settings", ADVICE_SQL)
    shown, left = top(asked.rows, "changes", _MOST_ROWS)
    rows = [
        {**row, "change": named_change(row), "in_flight": (row["in_flight"] or "not known").replace(",", ", ")}
        for row in shown
    ]
    columns = [
        *("change", ("predicted_step_ns", "step then"), ("step_low_ns", "at least"), ("step_high_ns", "at most")),
        *(("tokens_per_second", "tokens/s of now"), ("in_flight", "in flight, by stage")),
        *(("megatron_lm", "Megatron-LM"), ("megatron_bridge", "Megatron Bridge")),
    ]
    best = next((row for row in asked.rows if row["wins"]), None)
    return section(
        "Other settings",
        paragraph(asked.statement("Nothing is predicted to win over 1 %." if best is None else _best(best))),
        measured(asked, rows, columns, "With the same global batch; the fastest first.") if rows else "",
        left,
        paragraph("traceviz advise shows what fits in memory, and what the capture cannot tell.", quiet=True),
    )


def _best(row: Mapping[str, Any]) -> str:
    gain = share(row["step_ns"] - row["predicted_step_ns"], row["step_ns"])
    # Memory may be read after this table was made: whether it fits is not in it.
    return f"Fastest, whether it fits in memory or not: {printable(named_change(row))}, {gain} of the step shorter."


PART = Part("advice", "Advice", ("advice",), advice, expected=False, relation="Changes are predicted, not measured.")
