"""The tables of advice: each change of a step and the step that it would make, and the best ones item by item."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from traceviz_dag.analyze.advice.search import Advisor
from traceviz_dag.analyze.causes.causes_tables import rows_of_step
from traceviz_dag.analyze.causes.reordered import Change, Items
from traceviz_dag.tables import ADVICE, ADVICE_ITEMS
from traceviz_dag.vocabulary import Phase

BEST = 3
"""Changes whose items are kept."""


def advice_table(advisor: Advisor, number: int) -> pa.Table:
    """The advice on one step.

    Args:
        number: of the ProfilerStep; ``MISSING`` for none.
    """
    rows: list[Mapping[str, object]] = [
        {
            **one.as_row(),
            **one.change.as_row(),
            "place": place,
            "rank_order": one.rank_order,
            "in_flight": ",".join(f"{held:.4g}" for held in one.in_flight),
            **{name: ", ".join(lines) for name, lines in one.flags.items()},
            "assumptions": "; ".join(one.assumptions),
        }
        for place, one in enumerate(advisor.advice, 1)
    ]
    return rows_of_step(ADVICE, rows, number)


def advice_items(advisor: Advisor, number: int, ahead: Callable[[], Items] | None = None) -> pa.Table:
    """The steps of micro-batches now, and with each of the best changes of the same batch: the table ``advice_items``.

    Args:
        number: as ``advice_table``. ahead: as ``Items.changed``, which predicted the changes.
    """
    best = [(place, one.change) for place, one in enumerate(advisor.advice, 1) if one.wins and not one.rank_order][
        :BEST
    ]
    rows = [
        {
            "place": place,
            "stage": item.stage,
            "chunk": chunk,
            "microbatch": microbatch,
            "phase": (Phase.BACKWARD if backward else Phase.FORWARD).value,
            "start_ns": item.start_ns,
            "duration_ns": item.end_ns - item.start_ns,
        }
        for place, change in [(0, Change()), *best]
        for item in advisor.items.timed(change, ahead)
        for backward, chunk, microbatch in sorted(item.parts)
    ]
    return rows_of_step(ADVICE_ITEMS, rows, number)


def refused_advice(reason: str, number: int) -> pa.Table:
    """The table of a step on which nothing can be advised."""
    return rows_of_step(ADVICE, [{"refusal": reason}], number)
