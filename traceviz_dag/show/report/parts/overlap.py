"""How much of each dimension's communication computation hides."""

from __future__ import annotations

from markupsafe import Markup

from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.lake.summaries import DIMENSIONS_SQL
from traceviz_dag.show.page import palette
from traceviz_dag.show.report.charts import Bar, Piece, legend, stacked_bars
from traceviz_dag.show.report.parts.part import Page, Part, paragraph, section, table

RANKS_SQL = """
SELECT rank, step, window_end_ns - window_start_ns AS window_ns, compute_ns, communication_ns, hidden_ns, exposed_ns,
    memory_ns, busy_ns, idle_ns
FROM overlap
WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND window_name = coalesce(
    (SELECT any_value(window_name) FROM overlap WHERE run = $run AND iteration = $iteration AND window_name = 'step'),
    'kernels')
ORDER BY exposed_ns DESC, rank
"""

_MOST = 32


def overlap(page: Page) -> Markup | None:
    """The part."""
    asked = page.book.ask("Communication by dimension, mean of the ranks", DIMENSIONS_SQL)
    ranks = page.book.ask("Ranks by exposed communication", RANKS_SQL)
    if not ranks.rows:
        return None
    bars = [
        Bar(
            row["dimension"],
            [Piece("hidden", row["hidden_ns"], palette.HIDDEN), Piece("exposed", row["exposed_ns"], palette.EXPOSED)],
            f"{share(row['hidden_ns'], row['communication_ns'])} hidden",
        )
        for row in asked.rows
    ]
    rows = [
        [
            row["dimension"],
            asked.fact(duration(row["communication_ns"])),
            asked.fact(duration(row["hidden_ns"])),
            asked.fact(duration(row["exposed_ns"])),
            Markup("{} (rank {})").format(asked.fact(duration(row["most_exposed_ns"])), row["most_exposed_rank"]),
        ]
        for row in asked.rows
    ]
    own = [
        Bar(
            f"rank {row['rank']}" + ("" if row["step"] is None else f", step {row['step']}"),
            [
                Piece("computation alone", row["compute_ns"] - row["hidden_ns"], palette.COMPUTATION_ONLY),
                Piece("hidden communication", row["hidden_ns"], palette.HIDDEN),
                Piece("exposed communication", row["exposed_ns"], palette.EXPOSED),
                Piece(
                    "memory operations alone",
                    row["busy_ns"] - row["compute_ns"] - row["exposed_ns"],
                    palette.MEMORY_ONLY,
                ),
                Piece("idle", row["idle_ns"], palette.IDLE),
            ],
        )
        for row in ranks.rows[:_MOST]
    ]
    left = f"The first {_MOST} of {ranks.count}; " if ranks.count > _MOST else ""
    return Markup("").join(
        [
            section(
                "Communication by dimension",
                stacked_bars("Hidden and exposed communication by dimension, mean of the ranks", bars)
                if bars
                else paragraph("No communication ran."),
                legend({"hidden": palette.HIDDEN, "exposed": palette.EXPOSED}),
                table(["dimension", "communication", "hidden", "exposed", "most exposed"], rows),
                paragraph(
                    "Times are unions, never sums of durations: what two dimensions do at once counts in both.",
                    quiet=True,
                ),
            ),
            section(
                "Ranks, most exposed first",
                stacked_bars("What each rank's step was spent on", own),
                paragraph(left, ranks.fact("all rows"), quiet=True),
            ),
        ]
    )


PART = Part("overlap", "Overlap", ("overlap",), overlap)
