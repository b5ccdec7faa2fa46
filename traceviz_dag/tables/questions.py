"""Questions that commands and the report ask alike of the tables of one iteration, ``$run`` and ``$iteration``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from traceviz_dag.tables.causes import PATH_HOSTS_SQL


@dataclass(frozen=True, slots=True)
class Sums:
    """A question that sums columns of a table: as a query, and of rows that were read, without starting DuckDB.

    Attributes:
        table: whose rows. by: columns that the rows of a sum share. sums: columns that are summed.
        first: the one whose largest sum comes first; what is unknown comes last.
        count: more columns, with the number of rows. where: further conditions on rows that count, in SQL.
    """

    table: str
    by: tuple[str, ...]
    sums: tuple[str, ...]
    first: str
    count: tuple[str, ...] = ()
    where: str = ""

    @property
    def sql(self) -> str:
        """The query."""
        counted = (f"    count(*) AS {name}" for name in self.count)
        columns = ",\n".join([*counted, *(f"    sum({name})::BIGINT AS {name}" for name in self.sums)])
        by = ", ".join(self.by)
        return f"""
SELECT {by},
{columns}
FROM {self.table} WHERE run = $run AND iteration = $iteration{self.where}
GROUP BY {by} ORDER BY {self.first} DESC, {by}
"""

    def of(self, rows: pa.Table) -> list[dict[str, Any]]:
        """The answer, of the rows of an iteration that count."""
        asked = [*(([], "count_all") for _ in self.count), *((name, "sum") for name in self.sums)]
        found = rows.group_by([*self.by]).aggregate(asked).rename_columns([*self.by, *self.count, *self.sums])

        def order(row: dict[str, Any]) -> tuple[Any, ...]:
            return -row[self.first], *((row[name] is None, row[name]) for name in self.by)

        return sorted(found.to_pylist(), key=order)


COSTS = Sums("delay_costs", ("rank", "stage", "cause"), ("cost_ns", "direct_ns", "passed_on_ns"), "cost_ns")
"""Costs over the steps of an iteration by rank (NULL: nobody known) and cause."""

DELAY_COSTS_SQL = f"""
WITH costs AS ({COSTS.sql}), gains AS (
    SELECT rank, max(gain_ns) AS gain_ns FROM (
        SELECT rank, edit, sum(gain_ns)::BIGINT AS gain_ns FROM what_if
        WHERE run = $run AND iteration = $iteration AND edit IN ('fix_rank', 'fix_link') AND refusal IS NULL
        GROUP BY rank, edit
    ) GROUP BY rank
)
SELECT costs.*, cost_ns / sum(cost_ns) OVER () AS cost_share, gain_ns
FROM costs LEFT JOIN gains USING (rank) ORDER BY cost_ns DESC, rank, stage, cause
"""
"""``COSTS``, each beside the gain of fixing the rank or its links, whichever is predicted to save more."""

WAIT_PARTS = Sums(
    "collectives",
    by=("dimension",),
    sums=("hidden_wait_ns", "exposed_wait_ns", "hidden_transfer_ns", "exposed_transfer_ns"),
    first="exposed_wait_ns",
    count=("kernels",),
    where="\n    AND coalesce(wait_aligned_ns, wait_by_duration_ns) IS NOT NULL AND fault IS NULL",
)
"""Hidden and exposed communication, each split into wait and transfer: sums over the kernels of all ranks whose wait is
known, where kernels that run side by side each count."""

UNMATCHED_SQL = """
SELECT fault, count(*) AS kernels, (sum(count(*)) OVER ())::BIGINT AS of_kernels FROM collectives
WHERE run = $run AND iteration = $iteration GROUP BY fault ORDER BY kernels DESC, fault
"""
"""Communication kernels by what keeps them from being matched with all their members; NULL for those that are."""

IMBALANCE_SQL = """
SELECT category, sum(path_ns)::BIGINT AS path_ns, sum(mean_ns)::BIGINT AS mean_ns, max(ranks) AS ranks,
    sum(imbalance_ns)::BIGINT AS imbalance_ns
FROM critical_imbalance WHERE run = $run AND iteration = $iteration
GROUP BY category ORDER BY imbalance_ns DESC, category
"""
"""What the critical path has of a category beyond the mean rank, over the steps."""


def hosts_of_path_sql(hosts: str) -> str:
    """Hosts on the critical path, over steps and ranks: time until each launch, by what launches and where.

    Args:
        hosts: the view ``path_hosts``, or its query in brackets.
    """
    return f"""
SELECT operation, coalesce(caller, module) AS place, sum(path_ns)::BIGINT AS path_ns, sum(launches)::BIGINT AS launches,
    (SELECT sum(duration_ns)::BIGINT FROM path_segments WHERE run = $run AND iteration = $iteration) AS steps_ns
FROM {hosts} WHERE run = $run AND iteration = $iteration
GROUP BY ALL ORDER BY path_ns DESC, operation, place
"""


HOSTS_OF_PATH_SQL = hosts_of_path_sql(f"({PATH_HOSTS_SQL})")
"""Without the view: of tables that need not be in a lake."""

GAIN_IDS = ("edit", "rank", "ranks", "dimension", "factor")
"""What distinguishes the edits of table ``what_if``."""

GAINS_ORDER = "ORDER BY gain_ns DESC NULLS LAST, edit, rank NULLS FIRST, ranks NULLS FIRST, dimension NULLS FIRST"

GAINS_SQL = f"""
SELECT {", ".join(GAIN_IDS)}, count(*) FILTER (refusal IS NULL) AS steps,
    sum(step_ns) FILTER (refusal IS NULL)::BIGINT AS step_ns, sum(predicted_step_ns)::BIGINT AS predicted_step_ns,
    sum(gain_ns)::BIGINT AS gain_ns, least(sum(gain_low_ns), min(gain_ns) * steps)::BIGINT AS gain_low_ns,
    greatest(sum(gain_high_ns), max(gain_ns) * steps)::BIGINT AS gain_high_ns, any_value(refusal) AS refusal
FROM what_if WHERE run = $run AND iteration = $iteration AND edit IS NOT NULL
GROUP BY {", ".join(GAIN_IDS)}
{GAINS_ORDER}
"""
"""Each edit over the steps in which it is not refused, as ``analyze.causes.gains.over_steps`` sums them."""
