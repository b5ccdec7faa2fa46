"""How exposed communication splits: waits for other ranks, transfers, and what is known as neither."""

from __future__ import annotations

from typing import NamedTuple

from traceviz_dag.lake.summaries import COVERED, MEASURED_SQL
from traceviz_dag.show.page import palette
from traceviz_dag.show.report.charts import Piece
from traceviz_dag.show.report.evidence import Asked
from traceviz_dag.show.report.parts.part import Page

SPLIT_SQL = f"""
{MEASURED_SQL},
facts AS (
    SELECT rank, dimension, exposed_wait_ns AS waits, exposed_transfer_ns AS transfers, NULL AS exposed
    FROM collectives WHERE run = $run AND iteration = $iteration AND fault IS NULL AND {COVERED}
    UNION ALL
    SELECT rank, dimension, NULL, NULL, exposed_ns FROM measured
),
sums AS (
    SELECT rank, dimension, coalesce(sum(waits), 0) AS waits, coalesce(sum(transfers), 0) AS transfers,
        -- Of a rank, or of all, dimensions that communicate at once count once.
        if(dimension IS NULL, sum(exposed) FILTER (dimension = 'all'), sum(exposed)) AS exposed
    FROM facts GROUP BY GROUPING SETS (rank, dimension, ())
)
SELECT rank, dimension, waits::BIGINT AS wait_ns, transfers::BIGINT AS transfer_ns,
    greatest(exposed - waits - transfers, 0)::BIGINT AS unknown_ns,
    greatest(exposed, waits + transfers)::BIGINT AS all_ns
FROM sums WHERE greatest(exposed, waits + transfers) > 0
ORDER BY rank NULLS FIRST, dimension NULLS FIRST
"""


class Split(NamedTuple):
    """Sums over communication kernels, ns, and what is exposed beyond them: of kernels of which no wait is known."""

    wait_ns: int
    transfer_ns: int
    unknown_ns: int
    all_ns: int


class Splits(NamedTuple):
    """The split of each rank, of each dimension and, under None, of all; empty where no wait is known at all."""

    asked: Asked | None
    of: dict[int | str | None, Split]

    def pieces(self, exposed_ns: int, key: int | str | None = None) -> list[Piece]:
        """Exposed communication of a rank, a dimension or of all as pieces of a bar."""
        if not self.of:
            return [Piece("exposed communication", exposed_ns, palette.EXPOSED)]
        split = self.of.get(key, Split(0, 0, 1, 1))
        waits, transfers = (round(exposed_ns * ns / split.all_ns) for ns in (split.wait_ns, split.transfer_ns))
        if not split.unknown_ns:
            transfers = exposed_ns - waits
        return [
            Piece("exposed wait for other ranks", waits, palette.EXPOSED_WAIT),
            Piece("exposed transfer", transfers, palette.EXPOSED_TRANSFER),
            Piece("exposed, wait or transfer unknown", exposed_ns - waits - transfers, palette.EXPOSED_UNTOLD),
        ]


def exposed_splits(page: Page) -> Splits:
    """What ``collectives`` says of the waits of the page's iteration."""
    if not page.book.source.holds("collectives"):
        return Splits(None, {})
    asked = page.book.ask("How much of exposed communication waits and transfers, sums over kernels", SPLIT_SQL)
    of = {
        row["dimension"] if row["rank"] is None else row["rank"]: Split(*(row[name] for name in Split._fields))
        for row in asked.rows
    }
    known = None in of and of[None].unknown_ns < of[None].all_ns
    return Splits(asked, of if known else {})
