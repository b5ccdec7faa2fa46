"""How far the clocks of ranks are apart, how sure that is, and where nothing shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from traceviz_dag.analyze.clocks.clock_summary import clock_facts, clock_statement
from traceviz_dag.analyze.wording import capitalised
from traceviz_dag.printable import printable
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.facts import ranks_named
from traceviz_dag.show.page.gain_rows import signed
from traceviz_dag.show.report.charts import legend
from traceviz_dag.show.report.evidence import Asked
from traceviz_dag.show.report.parts.part import Page, Part, measured, paragraph, section, top
from traceviz_dag.show.report.ranges import Range, intervals
from traceviz_dag.tables.rows import RankClockRow, columns_of

CLOCKS_SQL = """
SELECT rank, component, reference_rank, offset_ns, drift_ppm, matches, span_ns, residual_p05_ns, residual_p95_ns,
    early_receives, refusal
FROM rank_clocks WHERE run = $run AND iteration = $iteration
ORDER BY refusal IS NULL, residual_p95_ns - residual_p05_ns DESC NULLS LAST, rank
"""

_SOLVED, _REFUSED = palette.COMPUTATION_ONLY, palette.ATTENTION
_MOST_DRAWN = 24


def clocks(page: Page) -> Markup | None:
    """The part."""
    asked = page.book.ask("Each rank's clock against the common one", CLOCKS_SQL)
    if not asked.rows:
        return None
    facts = clock_facts(page.book.source.table("rank_clocks", columns_of(RankClockRow)))
    text = clock_statement(facts)
    return section(
        "Clocks",
        paragraph(asked.statement(f"{capitalised(printable(text))}.")),
        _refusals(asked),
        _residuals(asked),
        _offsets(asked),
        _table(asked),
    )


def _refusals(asked: Asked) -> Markup:
    reasons: dict[str, list[int]] = {}
    for row in asked.rows:
        if row["refusal"] is not None:
            reasons.setdefault(row["refusal"], []).append(row["rank"])
    lines = [f"Not solved: {ranks_named(ranks)}: {printable(reason)}." for reason, ranks in reasons.items()]
    if lines:
        lines.append(
            "Without solved clocks nothing compares instants of these ranks with those of others: their waits are "
            "known from durations or not at all, and the timeline places them by their clocks as recorded."
        )
    early = sum(row["early_receives"] or 0 for row in asked.rows)
    if early:
        are = (
            "1 receive ends before its send starts"
            if early == 1
            else f"{early:,} receives end before their send starts"
        )
        lines.append(f"{are} on these clocks: they cannot be right.")
    return Markup("").join(Markup('<p class="attention">{}</p>').format(asked.statement(line)) for line in lines)


def _residuals(asked: Asked) -> Markup:
    known = [row for row in asked.rows if row["residual_p05_ns"] is not None and row["residual_p95_ns"] is not None]
    if not known:
        return paragraph("No rank has matched communications to judge its clock by.", quiet=True)
    known.sort(key=lambda row: (row["residual_p05_ns"] - row["residual_p95_ns"], row["rank"]))
    shown, left = top(known, "ranks, the widest first", _MOST_DRAWN)
    drawn = [
        Range(
            f"rank {row['rank']}" + (" · refused" if row["refusal"] else ""),
            None,
            row["residual_p05_ns"],
            row["residual_p95_ns"],
            _REFUSED if row["refusal"] else _SOLVED,
            _range(row),
        )
        for row in shown
    ]
    colours = {"of a solved clock": _SOLVED}
    if any(row["refusal"] for row in known):
        colours["of a refused clock"] = _REFUSED
    return Markup("<h3>{}</h3>{}{}{}").format(
        "Residuals: aligned end of a rank's communication less the median of its members', 5th to 95th percentile",
        intervals("Residuals of each rank's clock", drawn),
        legend(colours),
        left,
    )


def _offsets(asked: Asked) -> Markup:
    known = [row for row in asked.rows if row["offset_ns"] is not None]
    if not any(row["offset_ns"] for row in known):
        return Markup("")
    known.sort(key=lambda row: (-abs(row["offset_ns"]), row["rank"]))
    shown, left = top(known, "ranks, the furthest first", _MOST_DRAWN)
    drawn = [
        Range(
            f"rank {row['rank']}",
            None,
            min(row["offset_ns"], 0),
            max(row["offset_ns"], 0),
            palette.FILL_DRAIN,
            signed(row["offset_ns"]),
        )
        for row in shown
    ]
    return Markup("<h3>{}</h3>{}{}").format(
        "Offsets: what a rank's clock is ahead of the common one", intervals("Offset of each rank's clock", drawn), left
    )


def _table(asked: Asked) -> Markup:
    shown, left = top(asked.rows, "ranks")
    caption = "Offsets hold within a component; a drift needs evidence over a long enough time."
    columns = ["rank", "component", "offset_ns", "drift_ppm", "matches", "residual_p05_ns", "residual_p95_ns"]
    return measured(asked, shown, [*columns, "early_receives", "refusal"], caption) + left


def _range(row: Mapping[str, Any]) -> str:
    return f"{signed(row['residual_p05_ns'])} to {signed(row['residual_p95_ns'])}"


PART = Part("clocks", "Clocks", ("rank_clocks",), clocks)
