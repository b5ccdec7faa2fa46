"""Parallel efficiency: how much of the step the mean rank computes, which factor loses the rest, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from traceviz_dag.analyze.causes.factors import Factor, over_steps, with_branches
from traceviz_dag.analyze.findings.verdict import RELATIONS
from traceviz_dag.analyze.wording import capitalised, duration
from traceviz_dag.printable import printable
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.factor_rows import COLOURS, USEFUL, efficiency_finding, label, measures, refused_steps
from traceviz_dag.show.report.charts import Piece, legend
from traceviz_dag.show.report.evidence import Asked
from traceviz_dag.show.report.parts.part import Page, Part, measured, paragraph, section, top
from traceviz_dag.show.report.ranges import Fall, waterfall

FACTORS_SQL = """
WITH known AS (
    SELECT * FROM efficiencies WHERE run = $run AND iteration = $iteration AND lost_ns IS NOT NULL
)
SELECT replica, any_value(ranks) AS ranks, count(*) AS steps, factor, dimension, sum(ideal_ns)::BIGINT AS ideal_ns,
    sum(time_ns)::BIGINT AS time_ns, sum(lost_ns)::BIGINT AS lost_ns, sum(ideal_ns) / sum(time_ns) AS value,
    (SELECT sum(time_ns)::BIGINT FROM known WHERE replica IS NULL AND parent IS NULL) AS step_ns
FROM known GROUP BY replica, factor, dimension ORDER BY replica NULLS FIRST, lost_ns DESC, factor, dimension
"""
"""Over the steps, as ``analyze.causes.factors.over_steps`` sums them."""

REFUSED_SQL = """
SELECT step, reason FROM efficiencies
WHERE run = $run AND iteration = $iteration AND parent IS NULL AND reason IS NOT NULL ORDER BY step NULLS FIRST
"""

_COLUMNS = (
    *("step", "replica", "ranks", "factor", "dimension", "parent", "value", "ideal_ns", "time_ns", "lost_ns"),
    "reason",
)
_MOST_REPLICAS = 8


def efficiencies(page: Page) -> Markup | None:
    """The part."""
    rows = page.book.source.table("efficiencies", _COLUMNS).to_pylist()
    asked = page.book.ask("Factors of parallel efficiency", FACTORS_SQL)
    refused = refused_steps(rows)
    notes = _notes(page.book.ask("Steps without factors", REFUSED_SQL), refused) if refused else Markup("")
    of_replica: dict[int | None, list[dict[str, Any]]] = {}
    for row in over_steps(rows):
        of_replica.setdefault(row["replica"], []).append(row)
    mine = of_replica.pop(None, None)
    if mine is None:
        return section("Parallel efficiency", notes) if notes else None
    return Markup("").join([_tree(asked, mine, notes), _replicas(asked, of_replica)])


def _notes(asked: Asked, lines: Sequence[str]) -> Markup:
    one = Markup('<p class="attention">{}</p>')
    return Markup("").join(one.format(asked.statement(f"{printable(capitalised(line))}.")) for line in lines)


def _tree(asked: Asked, mine: Sequence[Mapping[str, Any]], notes: Markup) -> Markup:
    whole = mine[0]
    several = f" Sums over {whole['steps']} steps." if whole["steps"] > 1 else ""
    rows = [
        {
            **row,
            "branch": f"{branch}{label(row)}",
            "share": None if row["lost_ns"] is None else row["lost_ns"] / whole["time_ns"],
        }
        for branch, row in with_branches(mine)
    ]
    return section(
        "Parallel efficiency",
        paragraph(asked.statement(f"{efficiency_finding(mine)}.")),
        notes,
        waterfall(
            "The useful time of the mean rank, and what each factor adds up to the step", [_fall("all ranks", mine)]
        ),
        _legend(),
        measured(
            asked,
            rows,
            [("branch", "factor"), "value", "lost_ns", ("share", "of step")],
            f"The mean of {whole['ranks']} ranks computes {duration(whole['ideal_ns'])}. What loses most comes first; "
            f"factors multiply, and losses add up. A loss is no saving: the replay of an edit predicts that.{several}",
        ),
    )


def _replicas(asked: Asked, of_replica: Mapping[int | None, Sequence[Mapping[str, Any]]]) -> Markup:
    if not of_replica:
        return Markup("")
    ordered = sorted(of_replica.values(), key=lambda rows: (rows[0]["value"], rows[0]["replica"]))
    shown, left = top(ordered, "model replicas", _MOST_REPLICAS)
    levels = (Factor.PARALLEL_EFFICIENCY, *COLOURS)
    lines: list[dict[str, Any]] = []
    for rows in shown:
        of_factor = {row["factor"]: row for row in rows if row["parent"] != Factor.TRANSFER}
        values = {str(factor): of_factor[factor]["value"] for factor in levels}
        lines.append({"replica": rows[0]["replica"], "ranks": rows[0]["ranks"], **values})
    return section(
        "Model replicas",
        waterfall("The same of each model replica", [_fall(f"replica {rows[0]['replica']}", rows) for rows in shown]),
        _legend(),
        measured(asked, lines, ["replica", "ranks", (levels[0], "efficiency"), *COLOURS], "The least efficient first."),
        left,
    )


def _fall(name: str, rows: Sequence[Mapping[str, Any]]) -> Fall:
    of_factor = {row["factor"]: row for row in rows if row["parent"] != Factor.TRANSFER}
    pieces = [
        Piece(factor.value.replace("_", " "), of_factor[factor]["lost_ns"], colour)
        for factor, colour in COLOURS.items()
    ]
    useful = Piece(USEFUL, rows[0]["ideal_ns"], palette.COMPUTATION_ONLY)
    return Fall(name, useful, pieces, measures(rows[0], rows[0]["time_ns"])[0])


def _words(factor: Factor) -> str:
    return factor.value.replace("_", " ")


def _legend() -> Markup:
    lost = {f"lost: {_words(factor)}": colour for factor, colour in COLOURS.items()}
    return legend({USEFUL: palette.COMPUTATION_ONLY, **lost})


PART = Part("efficiencies", "Efficiency", ("efficiencies",), efficiencies, relation=RELATIONS["efficiencies"])
