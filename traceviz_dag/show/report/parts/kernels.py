"""Kernels: which take the time, by category and by dimension, and which ranks run the same ones slowly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from traceviz_dag.analyze.slow_words import slow_statement
from traceviz_dag.analyze.wording import capitalised, duration
from traceviz_dag.lake.summaries import CATEGORY_SHARES_SQL, COVERED
from traceviz_dag.show.lanes.words import word_of
from traceviz_dag.show.report.charts import Bar, Piece, stacked_bars
from traceviz_dag.show.report.evidence import Asked
from traceviz_dag.show.report.parts.part import Page, Part, measured, paragraph, percent, section, shortened, top

KERNELS_SQL = f"""
SELECT name, category, count(*) AS kernels, count(DISTINCT rank) AS ranks, sum(duration_ns)::BIGINT AS time_ns,
    sum(duration_ns) / nullif(sum(sum(duration_ns)) OVER (), 0) AS share,
    quantile_disc(duration_ns, 0.5) AS median_ns, max(duration_ns) AS longest_ns,
    arg_max(rank, (duration_ns, -rank)) AS longest_rank, count(*) OVER () AS rows
FROM kernels WHERE run = $run AND iteration = $iteration AND {COVERED}
GROUP BY name, category ORDER BY time_ns DESC, name, category LIMIT 40
"""

COMMUNICATION_SQL = f"""
SELECT dimension, count(*) AS kernels, count(DISTINCT rank) AS ranks, sum(duration_ns)::BIGINT AS time_ns,
    quantile_disc(duration_ns, 0.5) AS median_ns, max(duration_ns) AS longest_ns,
    arg_max(rank, (duration_ns, -rank)) AS longest_rank
FROM kernels WHERE run = $run AND iteration = $iteration AND kind = 'communication' AND {COVERED}
GROUP BY dimension ORDER BY time_ns DESC, dimension
"""

SPEEDS_SQL = """
SELECT rank, stage, peers, items, slower_items, ratio, more_ns, slow, slow_steps, slow_ratio, slow_more_ns, work_by
FROM rank_speeds
WHERE run = $run AND iteration = $iteration ORDER BY slow DESC NULLS LAST, ratio DESC NULLS LAST, rank
"""


def kernels(page: Page) -> Markup | None:
    """The part."""
    asked = page.book.ask("Kernels by name and category", KERNELS_SQL)
    if not asked.rows:
        return None
    return Markup("").join([_categories(page), _names(asked), _dimensions(page), _speeds(page)])


def _categories(page: Page) -> Markup:
    asked = page.book.ask("Kernel time by category", CATEGORY_SHARES_SQL)
    bars = [
        Bar(
            word_of(row["category"]).label,
            [Piece(word_of(row["category"]).label, row["time_ns"], word_of(row["category"]).colour)],
            percent(row["share"] or 0),
        )
        for row in asked.rows
    ]
    return section(
        "Kernel time by category",
        stacked_bars("Kernel time by category, sum over the ranks", bars),
        measured(
            asked,
            asked.rows,
            ["category", "kernels", "time_ns", "share"],
            "Sums of durations over all ranks that are covered, what runs side by side counted each; kernels of "
            "communication include their waits.",
        ),
    )


def _names(asked: Asked) -> Markup:
    shown, _ = top(asked.rows, "kernels", 25)
    rows = [
        {**row, "name": Markup("{}").format(shortened(row["name"])), "longest": _longest(asked, row)} for row in shown
    ]
    names = asked.rows[0]["rows"]
    left = f"The first {len(shown)} of {names:,}. " if names > len(shown) else ""
    return section(
        "Kernels that take most of the time",
        measured(
            asked,
            rows,
            ["name", "category", "kernels", "time_ns", "share", "median_ns", "longest"],
            "By name and category, sums over all ranks that are covered; share: of all kernel time",
        ),
        paragraph(left, quiet=True) if left else "",
    )


def _dimensions(page: Page) -> Markup:
    asked = page.book.ask("Kernels of communication by dimension", COMMUNICATION_SQL)
    if not asked.rows:
        return Markup("")
    rows = [{**row, "longest": _longest(asked, row)} for row in asked.rows]
    return section(
        "Communication by dimension",
        measured(
            asked,
            rows,
            ["dimension", "kernels", "ranks", "time_ns", "median_ns", "longest"],
            "Kernels of communication, waits included, sums over all ranks that are covered",
        ),
    )


def _speeds(page: Page) -> Markup:
    asked = page.book.ask("The same kernels on the peers of a stage", SPEEDS_SQL)
    if not asked.rows:
        return Markup("")
    compared = [row for row in asked.rows if row["items"]]
    slow = [row for row in asked.rows if row["slow"]]
    if not compared:
        why = "there is one rank" if len(asked.rows) == 1 else "no kernel ran equally often on all ranks of a stage"
        return section("Slow ranks", paragraph(f"No rank can be compared with peers of its stage: {why}.", quiet=True))
    told_slow, more = top(slow, "slow ranks", 5)
    lines = [paragraph(asked.statement(f"{capitalised(slow_statement(row))}.")) for row in told_slow]  # type: ignore[arg-type]
    lines = lines or [paragraph(asked.fact(f"None of {len(compared)} ranks with peers computes slowly."))]
    shown, left = top(compared, "ranks", 16)
    rows = [
        {**row, "slower": asked.fact(f"{percent(row['slower_items'])} of {row['items']:,}"), "more_ns": row["more_ns"]}
        for row in shown
    ]
    return section(
        "Slow ranks",
        *lines,
        more,
        measured(
            asked,
            rows,
            ["rank", "stage", ("ratio", "time, to the median peer"), "more_ns", ("slower", "slower items"), "slow"],
            "Computation, kernel by kernel, against the peers of the rank's stage; an item is a kernel name in a "
            "phase of a step that all of them ran equally often. No clock is needed.",
        ),
        left,
    )


def _longest(asked: Asked, row: Mapping[str, Any]) -> Markup:
    return Markup("{} (rank {})").format(asked.fact(duration(row["longest_ns"])), row["longest_rank"])


PART = Part("kernels", "Kernels", ("kernels",), kernels)
