"""Views across ranks, over the views of the tables: kernels on the common clock, profiles of the critical path."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from traceviz_dag.system.duckdb_memory import interruptible, scratch_database
from traceviz_dag.tables import KERNELS, PARTITION_COLUMNS
from traceviz_dag.tables.causes import PATH_HOSTS_SQL, PATH_WHAT_SQL
from traceviz_dag.tables.modules import MODULES_COLUMNS, MODULES_SQL


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

PROFILED_BY = ("cause", "rank", "stage", "category", "module", "dimension")
"""Columns of ``path_segments`` by which there is a profile of the critical path."""

PATH_PROFILES = View(
    "path_profiles",
    "What of a step's critical path is of one cause, rank, stage, category, module or dimension: six profiles.",
    "\nUNION ALL\n".join(
        f"""
SELECT
    run, iteration, step, '{by}' AS profile, CAST({PATH_WHAT_SQL if by == "category" else by} AS VARCHAR) AS name,
    CAST(sum(duration_ns) AS BIGINT) AS path_ns,
    sum(duration_ns) / sum(sum(duration_ns)) OVER (PARTITION BY run, iteration, step) AS share
FROM path_segments GROUP BY run, iteration, step, name
""".strip()
        for by in PROFILED_BY
    ),
    (
        *((name, PARTITION_COLUMNS[name].comment) for name in ("run", "iteration")),
        ("step", "Number of the ProfilerStep; NULL where the file has none."),
        ("profile", "What it is by: cause, rank, stage, category, module or dimension."),
        (
            "name",
            "Which of these the part is of, as text; NULL where there is none or unknown. The category of time in "
            "which no kernel runs is its cause.",
        ),
        ("path_ns", "Its time on the path, ns; the parts of one profile add up to the step."),
        ("share", "path_ns over the step."),
    ),
)

PATH_HOSTS = View(
    "path_hosts",
    "Hosts where the critical path runs on them: time until each launch, by what launches.",
    PATH_HOSTS_SQL,
    (
        *((name, PARTITION_COLUMNS[name].comment) for name in ("run", "iteration")),
        ("step", "Number of the ProfilerStep; NULL where the file has none."),
        ("rank", "The global rank whose host it is."),
        ("caller", "The Python function, none of torch's, that a gap of the GPU shows before the launch; else NULL."),
        ("module", "Innermost nn.Module around the launch; NULL where there is none or unknown."),
        (
            "operation",
            "What a pause before the launch was spent in, else the innermost CPU operator around the launch, else its "
            "call; NULL for what comes after the last launch.",
        ),
        ("path_ns", "Time on the path, ns, each piece from the launch before, of any thread, to the next one."),
        ("launches", "Launches that end these pieces."),
    ),
)

MODULES = View(
    "modules",
    "Each rank's modules of the model, each with all that is in it, by phase, against the roofline, and to its equals.",
    MODULES_SQL,
    (*_PLACE, *MODULES_COLUMNS),
)

VIEWS = (KERNELS_ALIGNED, PATH_PROFILES, PATH_HOSTS, MODULES)


def rows_of_query(sql: str, run: str, iteration: int, **tables: pa.Table) -> pa.Table:
    """What a query gives of tables of one iteration that need not be in a lake.

    Args:
        sql: the query of a view, or one of ``tables.questions``.
        tables: what it names; partition columns are added where they lack.
    """
    place = {"run": run, "iteration": iteration}
    with scratch_database() as connection:
        for name, table in tables.items():
            lacking = [column for column in place if column not in table.column_names]
            columns = [*table.columns, *(pa.repeat(place[column], table.num_rows) for column in lacking)]
            connection.register(name, pa.table(columns, [*table.column_names, *lacking]))
        asked = {name: value for name, value in place.items() if f"${name}" in sql}
        return interruptible(connection, lambda: connection.execute(sql, asked).to_arrow_table())
