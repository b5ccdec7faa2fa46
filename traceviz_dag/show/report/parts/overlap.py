"""How much of each dimension's communication computation hides."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from traceviz_dag.analyze.findings.verdict import RELATIONS
from traceviz_dag.analyze.wording import capitals, duration, share
from traceviz_dag.lake.summaries import DIMENSIONS_SQL
from traceviz_dag.show.page import palette
from traceviz_dag.show.report.charts import Bar, Piece, legend, stacked_bars
from traceviz_dag.show.report.parts.exposed import exposed_splits
from traceviz_dag.show.report.parts.part import Page, Part, measured, paragraph, section

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
    splits = exposed_splits(page)
    lead = page.lead
    several = len({row["step"] for row in ranks.rows}) > 1
    first = sorted(ranks.rows, key=lambda row: lead.place(row["rank"]))
    bars = [
        Bar(
            capitals(row["dimension"]),
            [
                Piece("hidden communication", row["hidden_ns"], palette.HIDDEN),
                *splits.pieces(row["exposed_ns"], row["dimension"]),
            ],
            f"{share(row['hidden_ns'], row['communication_ns'])} hidden",
        )
        for row in asked.rows
    ]
    rows = [
        {
            **row,
            "most_exposed": Markup("{} (rank {})").format(
                asked.fact(duration(row["most_exposed_ns"])), row["most_exposed_rank"]
            ),
        }
        for row in asked.rows
    ]
    columns = ["dimension", "communication_ns", "hidden_ns", "exposed_ns", "hidden_share", "most_exposed"]
    own = [
        Bar(
            f"rank {row['rank']}"
            + (f", step {row['step']}" if several and row["step"] is not None else "")
            + (" · at fault" if row["rank"] in lead.faults else ""),
            [
                Piece("computation alone", row["compute_ns"] - row["hidden_ns"], palette.COMPUTATION_ONLY),
                Piece("hidden communication", row["hidden_ns"], palette.HIDDEN),
                *splits.pieces(row["exposed_ns"], row["rank"]),
                Piece(
                    "memory operations alone",
                    row["busy_ns"] - row["compute_ns"] - row["exposed_ns"],
                    palette.MEMORY_ONLY,
                ),
                Piece("idle", row["idle_ns"], palette.IDLE),
            ],
        )
        for row in first[:_MOST]
    ]
    left = f"The first {_MOST} of {ranks.count}; " if ranks.count > _MOST else ""
    return Markup("").join(
        [
            section(
                "Communication by dimension",
                stacked_bars("Hidden and exposed communication by dimension, mean of the ranks", bars)
                if bars
                else paragraph("No communication ran."),
                _legend(bars),
                measured(asked, rows, columns),
                paragraph(
                    "Times are unions, never sums of durations: what two dimensions do at once counts in both.",
                    quiet=True,
                ),
            ),
            section(
                "Ranks, those at fault first, then the most exposed",
                stacked_bars("What each rank's step was spent on", own),
                _legend(own),
                paragraph(left, ranks.fact("all rows"), quiet=True),
            ),
        ]
    )


def _legend(bars: Sequence[Bar]) -> Markup:
    return legend({piece.name: piece.colour for bar in bars for piece in bar.pieces if piece.ns})


PART = Part("overlap", "Overlap", ("overlap",), overlap, relation=RELATIONS["overlap"])
