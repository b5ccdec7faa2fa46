"""Factors of parallel efficiency as a figure and a page show them: which loses most, where each loss lies, colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traceviz_dag.analyze.causes.factors import MEANINGS, Factor, named_factor, worst_factor, worst_first
from traceviz_dag.analyze.wording import capitalised, duration, share
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.facts import step_name
from traceviz_dag.show.page.gain_rows import signed_share

COLOURS = {
    Factor.LOAD_BALANCE: palette.IMBALANCE,
    Factor.SERIALISATION: palette.FILL_DRAIN,
    Factor.TRANSFER: palette.EXPOSED_TRANSFER,
    Factor.HOST: palette.LAG,
}
"""The colour of each factor of the first level; its parts have it, too."""

USEFUL = "useful: computation of the mean rank"


@dataclass(frozen=True, slots=True)
class Loss:
    """What a factor loses, where the losses lie one behind the other, what loses most first.

    Attributes:
        depth: 0 for parallel efficiency. start_ns: where its loss begins, from the begin of the step.
    """

    row: Mapping[str, Any]
    depth: int
    start_ns: int
    colour: str


def losses(rows: Sequence[Mapping[str, Any]]) -> list[Loss]:
    """The tree of one set of ranks; the parts of a factor lie where it does.

    Args:
        rows: of ``factors.over_steps``, of one replica or of all ranks.
    """
    found: list[Loss] = []
    free = [int(rows[0]["ideal_ns"])] * 3
    colour = palette.INK
    for depth, _, row in worst_first(rows):
        if depth == 1:
            colour = COLOURS[Factor(row["factor"])]
        found.append(Loss(row, depth, free[depth], colour))
        free[depth + 1 :] = [free[depth]] * (2 - depth)
        free[depth] += row["lost_ns"] or 0
    return found


def efficiency_finding(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the factors of all ranks say, in a sentence."""
    whole, worst = rows[0], worst_factor(rows)
    step = "step" if whole["steps"] == 1 else f"of {whole['steps']} steps"
    meaning = MEANINGS[Factor(worst["factor"])]
    lost = f"{duration(worst['lost_ns'])} ({share(worst['lost_ns'], whole['time_ns'])})"
    return (
        f"{capitalised(named_factor(worst))} loses {lost} of the {duration(whole['time_ns'])} {step}, more than any "
        f"other factor: {meaning}"
    )


def label(row: Mapping[str, Any]) -> str:
    """A factor as rows name it."""
    return capitalised(named_factor(row))


def measures(row: Mapping[str, Any], step_ns: int) -> tuple[str, str, str]:
    """A factor's value, its loss, and the share of the step that this is."""
    if row["lost_ns"] is None:
        return "–", "–", "–"
    sign = "−" * (row["lost_ns"] < 0)
    lost = abs(row["lost_ns"])
    return share(round(row["value"] * 1e6), 1_000_000), f"{sign}{duration(lost)}", signed_share(row["lost_ns"], step_ns)


def refused_steps(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning for each step whose factors are not known, from rows of table ``efficiencies``."""
    whole = [row for row in table if row["factor"] == Factor.PARALLEL_EFFICIENCY and row["reason"] is not None]
    return [f"{step_name(row['step'])} is left out: {row['reason']}" for row in whole]
