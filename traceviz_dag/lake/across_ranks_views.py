"""Views across ranks, over the views of the tables: kernels on the common clock."""

from __future__ import annotations

from dataclasses import dataclass

from traceviz_dag.tables import KERNELS, PARTITION_COLUMNS


@dataclass(frozen=True, slots=True)
class View:
    """A view, which has no files of its own.

    Attributes:
        sql: its SELECT over the views of the tables.
        columns: (name, comment) of each column, in order.
    """

    name: str
    comment: str
    sql: str
    columns: tuple[tuple[str, str], ...]


_PLACE = tuple((column.name, column.comment) for column in PARTITION_COLUMNS.values())

KERNELS_ALIGNED = View(
    "kernels_aligned",
    "Every kernel with its start on the common clock of all ranks.",
    """
SELECT
    kernels.*,
    start_ns - offset_ns
        - CAST(round(coalesce(drift_ppm, 0) * 1e-6 * (start_ns - reference_ns)) AS BIGINT) AS aligned_start_ns,
    component AS clock_component,
    greatest(abs(residual_p05_ns), abs(residual_p95_ns)) AS clock_error_ns,
    refusal AS clock_refusal
FROM kernels LEFT JOIN rank_clocks USING (run, iteration, rank)
""",
    (
        *_PLACE,
        *((column.name, column.comment) for column in KERNELS.columns),
        ("aligned_start_ns", "start_ns on the common clock; NULL where the rank's clock is refused."),
        ("clock_component", "Instants of different components have nothing in common."),
        ("clock_error_ns", "90 % of the residuals of the rank's clock are no larger, ns."),
        ("clock_refusal", "Why the rank's clock is not solved; NULL where it is."),
    ),
)

VIEWS = (KERNELS_ALIGNED,)
