"""What lies behind the rows of an answer: the columns that identify a row, and the query that gives its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceviz_dag.lake.across_ranks_views import PATH_HOSTS, PROFILED_BY
from traceviz_dag.lake.catalogue import quoted_text, with_values
from traceviz_dag.tables.questions import DELAY_COSTS_SQL, IMBALANCE_SQL, WAIT_PARTS, hosts_of_path_sql

_HERE = "run = $run AND iteration = $iteration"
_NUMBERED_PROFILES = ("rank", "stage")
"""Profiles whose parts are numbers; in the view all are texts."""


@dataclass(frozen=True, slots=True)
class Part:
    """A list of rows of an answer.

    Attributes:
        ids: columns that identify a row. sql: rows with these columns and the numbers, of ``$run`` and ``$iteration``.
    """

    ids: tuple[str, ...]
    sql: str


def _of_table(name: str, ids: tuple[str, ...]) -> Part:
    return Part(ids, f"SELECT * FROM {name} WHERE {_HERE} ORDER BY {', '.join(ids)}")


def _by_place(name: str, places: str) -> Part:
    """Delays summed over stages or nodes; ``places``: rank → which."""
    return Part(
        (name,),
        f"SELECT {name}, count(*) AS ranks, sum(delay_ns)::BIGINT AS delay_ns, sum(own_ns)::BIGINT AS own_ns,\n"
        f"    first(rank ORDER BY own_ns DESC, rank) AS worst_rank\n"
        f"FROM late_ranks JOIN ({places}) USING (rank) WHERE {_HERE}\n"
        f"GROUP BY {name} ORDER BY own_ns DESC",
    )


def by_node(nodes: Mapping[int, int]) -> Part:
    """Delays by node; no table has the nodes of ranks."""
    ranks: dict[int, list[int]] = {}
    for rank, node in nodes.items():
        ranks.setdefault(node, []).append(rank)
    listed = " UNION ALL ".join(f"SELECT {node} AS node, unnest({of}) AS rank" for node, of in sorted(ranks.items()))
    return _by_place("node", listed or "SELECT NULL::BIGINT AS node, rank FROM late_ranks LIMIT 0")


WAITS: Mapping[str, Part] = {
    "ranks": _of_table("late_ranks", ("rank",)),
    "links": _of_table("links", ("rank", "scope")),
    "experts": _of_table("expert_loads", ("rank",)),
    "costs": Part(("rank", "stage", "cause"), DELAY_COSTS_SQL),
    "matrix": _of_table("blame", ("rank", "late_rank", "dimension")),
    "communication": Part(("dimension",), WAIT_PARTS.sql),
    "slow_ranks": _of_table("rank_speeds", ("rank",)),
    "stages": _by_place("stage", f"SELECT rank, stage FROM topology WHERE {_HERE} AND stage IS NOT NULL"),
    "nodes": by_node({}),
}
"""Parts of waits; the nodes are those of an iteration, see ``by_node``."""

PATH: Mapping[str, Part] = {
    **{
        by: Part(
            (by,),
            f"SELECT {'name::BIGINT' if by in _NUMBERED_PROFILES else 'name'} AS {by},\n"
            f"    sum(path_ns)::BIGINT AS path_ns, sum(path_ns) / sum(sum(path_ns)) OVER () AS share\n"
            f"FROM path_profiles WHERE {_HERE} AND profile = '{by}' GROUP BY name ORDER BY path_ns DESC",
        )
        for by in PROFILED_BY
    },
    "hosts": Part(("operation", "place"), hosts_of_path_sql(PATH_HOSTS.name)),
    "critical_imbalance": Part(("category",), IMBALANCE_SQL),
}
"""Parts of the critical path."""

_MEANS = ("communication", "hidden", "exposed")


def overlap_parts(sql: str) -> Mapping[str, Part]:
    """The windows of ranks, and the means by dimension over those of ranks that were read whole.

    Args:
        sql: the windows.
    """
    means = ",\n".join(
        f"    round_even(sum({name}_ns) / any_value(windows), 0)::BIGINT AS {name}_ns" for name in _MEANS
    )
    of_dimensions = (
        "SELECT dimension,\n"
        f"{means},\n"
        "    sum(hidden_ns) / sum(communication_ns) AS hidden_share\n"
        "FROM (\n"
        "    SELECT *, (count(DISTINCT (rank, device, window_start_ns)) OVER ()) AS windows\n"
        f"    FROM (\n{sql}\n) WHERE NOT partial\n"
        ") GROUP BY dimension HAVING sum(communication_ns) > 0 ORDER BY exposed_ns DESC"
    )
    return {
        "ranks": Part(("rank", "device", "step", "dimension"), sql),
        "means": Part(("dimension",), of_dimensions),
    }


_UNIONS = ("compute", "communication", "memory", "busy", "either")

OUTSIDE_SQL = f"""
SELECT rank FROM kernels WHERE {_HERE} AND ($rank IS NULL OR rank = $rank) GROUP BY rank
HAVING max(start_ns + duration_ns) < $start_ns OR min(start_ns) > $end_ns ORDER BY rank
"""
"""Ranks before whose first kernel, or after whose last, a window lies."""

WINDOW_SQL = f"""
WITH cut AS (
    SELECT rank, device, kind, coalesce(dimension, 'unknown') AS dimension, window_start_ns, window_end_ns,
        greatest(start_ns, window_start_ns) AS start_ns, least(start_ns + duration_ns, window_end_ns) AS end_ns
    FROM (
        SELECT *, coalesce($start_ns, min(start_ns) OVER (PARTITION BY rank)) AS window_start_ns,
            coalesce($end_ns, max(start_ns + duration_ns) OVER (PARTITION BY rank)) AS window_end_ns
        FROM kernels WHERE {_HERE} AND ($rank IS NULL OR rank = $rank)
    )
), dimensions AS (
    SELECT DISTINCT rank, device, window_start_ns, window_end_ns,
        unnest(CASE kind WHEN 'communication' THEN ['all', dimension] ELSE ['all'] END) AS dimension
    FROM cut
), members AS (
    SELECT dimensions.*, cut.start_ns, cut.end_ns, unnest(CASE
        WHEN kind = 'computation' THEN ['compute', 'either', 'busy']
        WHEN kind = 'memory' THEN ['memory', 'busy']
        WHEN dimensions.dimension IN ('all', cut.dimension) THEN ['communication', 'either', 'busy']
        ELSE ['busy'] END) AS part
    FROM dimensions JOIN cut USING (rank, device)
), lengths AS (
    SELECT *, greatest(0, end_ns - greatest(start_ns, coalesce(max(end_ns) OVER (
        PARTITION BY rank, device, dimension, part ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), start_ns))) AS more_ns
    FROM members WHERE end_ns > start_ns
), unions AS (
    SELECT rank, device, NULL AS step, dimension, window_start_ns, window_end_ns,
        {", ".join(f"coalesce(sum(more_ns) FILTER (part = '{name}'), 0)::BIGINT AS {name}_ns" for name in _UNIONS)}
    FROM dimensions LEFT JOIN lengths USING (rank, device, dimension, window_start_ns, window_end_ns) GROUP BY ALL
)
SELECT unions.* EXCLUDE (either_ns), compute_ns + communication_ns - either_ns AS hidden_ns,
    either_ns - compute_ns AS exposed_ns, window_end_ns - window_start_ns - busy_ns AS idle_ns,
    hidden_ns / nullif(communication_ns, 0) AS hidden_share,
    hidden_ns / nullif(least(compute_ns, communication_ns), 0) AS hidden_over_min,
    coalesce((SELECT status <> 'read' FROM traces WHERE {_HERE} AND traces.rank = unions.rank), false) AS partial
FROM unions ORDER BY rank, device, dimension
"""
"""What ``overlap`` measures in a window of the user's own: lengths of unions of kernels, cut at the window's ends."""

REPLAYED_SQL = f"""
SELECT step, sum(duration_ns)::BIGINT AS step_ns FROM path_segments WHERE {_HERE} GROUP BY step ORDER BY step
"""
"""The steps that a replay of an edit starts from."""

REPLAYED = (
    "no table has all of these gains: a replay of the kernels and their path_edges gives them, by the command; "
    "evidence_sql gives the steps that it starts from"
)
"""A condition on gains that are not in table ``what_if``."""


def with_literals(sql: str, values: Mapping[str, object]) -> str:
    """A query with values in place of its parameters, to be asked alone."""
    literals = {
        name: "NULL" if value is None else quoted_text(value) if isinstance(value, str) else str(value)
        for name, value in values.items()
    }
    return with_values(sql, literals).strip()
