"""What ``accuracy`` prints, each with the SQL that its numbers are those of: kernels beside the truth of their launch.

The truth's files are read here without the product's reader, and its words are put into those of the tables anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from tests.commands.sentences.printed import Home, PrintedTable, Sentence


@dataclass(frozen=True)
class WithTruth:
    """Queries over the tables of a lake, and over ``truth``: the files beside the traces of a simulated run."""

    home: Home
    traces: Path

    def query(self, sql: str, parameters: Mapping[str, object]) -> pa.Table:
        tables = {name: self.home.query(f"FROM {name}", {}) for name in ("kernels", "microbatches", "overlap")}
        with duckdb.connect() as connection:
            for name, table in tables.items():
                connection.register(name, table)
            connection.execute(
                f"CREATE VIEW truth AS FROM read_parquet('{self.traces}/truth/rank_*.parquet') "
                "WHERE (rank, iteration) IN (SELECT (rank, iteration) FROM kernels)"
            )
            return connection.sql(sql, params=dict(parameters)).to_arrow_table()


_BOTH = """
    WITH words AS (
        SELECT rank, iteration, correlation, nullif(graph_node_id, -1) AS graph_node_id, dur_ns AS ns,
            CASE kind WHEN 'compute' THEN 'computation' WHEN 'comm' THEN 'communication' ELSE kind END AS kind,
            CASE WHEN category = 'other' AND kind = 'memory' THEN 'memory' WHEN category <> 'other' THEN category
                WHEN kind LIKE 'comm%' THEN 'other_communication' ELSE 'other_computation' END AS category,
            CASE WHEN recompute THEN 'recompute' WHEN phase IN ('p2p', 'finalize', 'zero_grad_buffer') THEN 'other'
                ELSE phase END AS phase,
            if(kind LIKE 'comm%', dimension, NULL) AS dimension, nullif(microbatch, -1) AS microbatch,
            nullif(chunk, -1) AS chunk
        FROM truth
    ),
    told AS (
        SELECT rank, iteration, correlation, graph_node_id, kernel_id, start_ns, duration_ns, step, device,
            CAST(kind AS VARCHAR) AS kind, CAST(category AS VARCHAR) AS category, CAST(phase AS VARCHAR) AS phase,
            CAST(dimension AS VARCHAR) AS dimension, microbatch, chunk,
            CAST(phase_evidence AS VARCHAR) AS phase_evidence, CAST(phase_rule AS VARCHAR) AS phase_rule,
            CAST(dimension_evidence AS VARCHAR) AS dimension_evidence, CAST(dimension_rule AS VARCHAR) AS dimension_rule
        FROM kernels
    ),
    joined AS (
        SELECT t, k, t.ns, k.kernel_id IS NOT NULL AND t.ns IS NOT NULL AS read
        FROM words AS t FULL JOIN told AS k ON t.rank = k.rank AND t.iteration = k.iteration
            AND t.correlation = k.correlation AND t.graph_node_id IS NOT DISTINCT FROM k.graph_node_id
    ),
    known AS (FROM joined WHERE ns IS NOT NULL)
"""
"""known: every kernel of the truth (t), with what the lake has of it (k, NULL where no trace holds it)."""


def _aspect(name: str, unknown: str | None) -> str:
    says = f"k.{name} IS NOT NULL" if unknown is None else f"coalesce(k.{name}, '{unknown}') <> '{unknown}'"
    same = f"read AND k.{name} IS NOT DISTINCT FROM t.{name}"
    return f"""
        SELECT '{name}' AS aspect, sum(ns) FILTER ({same}) / sum(ns) AS right,
            sum(ns) FILTER ({says} AND t.{name} IS NOT NULL) / sum(ns) FILTER (t.{name} IS NOT NULL) AS told,
            coalesce(sum(ns) FILTER ({says} AND NOT ({same})), 0) / sum(ns) AS wrong
        FROM known"""


_DOWN = "floor(100000 * ({})) / 100000"
"""Shares of the truth are rounded down, to a thousandth of a percent: only a whole reads 100 %."""

_UNKNOWN = {"category": "unclassified", "phase": "unknown", "dimension": "unknown", "microbatch": None, "chunk": None}

_RIGHT = """sum(ns) FILTER (read AND k.category = t.category
    AND (t.microbatch IS NULL OR t.microbatch IS NOT DISTINCT FROM k.microbatch)
    AND (t.chunk IS NULL OR t.chunk IS NOT DISTINCT FROM k.chunk)) / sum(ns)"""

_AS_IT_WAS = f"""{_BOTH},
    placed AS (
        SELECT k.rank AS rank, k.iteration AS iteration, k.device AS device, k.step AS step, t.chunk AS chunk,
            t.microbatch AS microbatch, t.dimension AS dimension, k.start_ns AS a, k.start_ns + k.duration_ns AS b,
            unnest(CASE t.phase WHEN 'forward' THEN ['forward'] WHEN 'backward' THEN ['backward']
                WHEN 'recompute' THEN ['backward', 'recompute'] ELSE [] END) AS phase
        FROM known WHERE read AND t.microbatch IS NOT NULL
    )
"""

# A row for all and for each dimension whose communication is in the micro-batch.
_SPANS = f"""{_AS_IT_WAS},
    steps AS (
        SELECT rank, iteration, device, step, chunk, microbatch, phase, min(a) AS a, max(b) AS b, count(*) AS kernels,
            list(DISTINCT dimension) FILTER (dimension IS NOT NULL) AS dimensions
        FROM placed GROUP BY ALL
    ),
    spans AS (SELECT *, unnest(list_concat(['all'], coalesce(dimensions, []))) AS dimension FROM steps)
    SELECT count(s.a) AS expected, count(*) FILTER (m.span_start_ns IS NULL) AS missing,
        count(*) FILTER (s.a IS NULL) AS unexpected,
        count(*) FILTER (s.a = span_start_ns AND s.b = span_end_ns AND s.kernels = m.kernels) AS equal,
        coalesce(max(greatest(abs(s.a - span_start_ns), abs(s.b - span_end_ns))), 0) AS ns
    FROM spans AS s FULL JOIN microbatches AS m ON s.rank = m.rank AND s.iteration = m.iteration
        AND s.device = m.device AND s.step IS NOT DISTINCT FROM m.step AND s.chunk IS NOT DISTINCT FROM m.chunk
        AND s.microbatch = m.microbatch AND s.phase = m.phase AND s.dimension = m.dimension
"""

# The rows are counted anew. Their figures are unions of intervals; what is held of these is that no row differs of a
# rank whose kernels are all in the truth, with their kind and dimension, and that every row of another rank does.
_OVERLAP = f"""{_BOTH},
    expected AS (
        SELECT DISTINCT t.rank AS rank, t.iteration AS iteration,
            unnest(['all', t.dimension]) AS dimension FROM known WHERE read
    ),
    rows AS (
        SELECT e.rank AS e, o.rank AS o, coalesce(e.rank, o.rank) AS rank FROM (FROM expected
            WHERE dimension <> '') AS e
        FULL JOIN (FROM overlap WHERE window_name = 'kernels') AS o
            ON e.rank = o.rank AND e.iteration = o.iteration AND e.dimension = o.dimension
    ),
    mistaken AS (
        SELECT DISTINCT coalesce(k.rank, t.rank) AS rank FROM joined WHERE NOT read OR k.kind <> t.kind
            OR k.dimension IS DISTINCT FROM nullif(t.dimension, '')
    )
    SELECT count(e) AS expected, count(*) FILTER (o IS NULL) AS missing, count(*) FILTER (e IS NULL) AS unexpected,
        count(*) FILTER (rank NOT IN (FROM mistaken)) AS equal, if((SELECT count(*) FROM mistaken) = 0, 0, NULL) AS ns
    FROM rows
"""
_ROWS = (
    r"(?P<v_equal>[\d,]+) of (?P<v_expected>[\d,]+) equal, (?P<v_missing>\d+) missing, (?P<v_unexpected>\d+) "
    r"unexpected; largest difference "
)
ACCURACY = (
    Sentence(
        r"\S+: (?P<v_read>[\d,]+) of (?P<v_kernels>[\d,]+) kernels of (?P<v_ranks>\d+) ranks read; "
        r"(?P<v_right>[\d.]+%) of kernel time right in category, micro-batch and chunk",
        f"""{_BOTH}
        SELECT count(*) AS kernels, count(*) FILTER (read) AS read, {_DOWN.format(_RIGHT)} AS right,
            (SELECT count(DISTINCT rank) FROM told) AS ranks FROM known""",
    ),
    Sentence(
        r"(?P<v_kernels>[\d,]+) kernels of the traces are not in the truth",
        f"{_BOTH} SELECT count(*) AS kernels FROM joined WHERE ns IS NULL HAVING count(*) > 0",
    ),
    Sentence(rf"micro-batch spans: {_ROWS}(?P<v_ns>[\d,]+) ns", _SPANS),
    Sentence(rf"overlap rows: {_ROWS}((?P<v_ns>0) ns|[\d,]+ ns)", _OVERLAP),
)

_SHARES = " UNION ALL ".join(_aspect(name, unknown) for name, unknown in _UNKNOWN.items())


def _quoted(name: str) -> str:
    return f'"{name}"'


def _down(*names: str) -> str:
    return ", ".join(f'{_DOWN.format(_quoted(name))} AS "{name}"' for name in names)


def _by_rule(name: str, condition: str) -> str:
    return f"""
        SELECT '{name}' AS aspect, coalesce(k.{name}_evidence, 'none') AS evidence, coalesce(k.{name}_rule,
            'none') AS rule,
            count(*) AS kernels, sum(ns) / 1e6 AS ms,
            coalesce(sum(ns) FILTER (k.{name} IS NOT DISTINCT FROM t.{name}), 0) / sum(ns) AS right
        FROM known WHERE read AND {condition} GROUP BY ALL"""


ACCURACY_TABLES = (
    PrintedTable(
        "Shares of kernel time",
        f"{_BOTH}, shares AS ({_SHARES}) SELECT aspect, {_down('right', 'told', 'wrong')} FROM shares",
        {"of": "aspect", "right": "right", "told": "told", "wrong": "wrong"},
        ["of"],
    ),
    PrintedTable(
        "By category",
        f"""{_BOTH}, categories AS (
        SELECT t.category AS category, count(*) AS kernels, sum(ns) / 1e6 AS ms,
            coalesce(sum(ns) FILTER (k.category = t.category), 0) / sum(ns) AS right,
            coalesce(sum(ns) FILTER (coalesce(k.category, 'unclassified') = 'unclassified'),
                0) / sum(ns) AS unclassified,
            coalesce(sum(ns) FILTER (k.category NOT IN ('unclassified', t.category)), 0) / sum(ns) AS wrong
        FROM known GROUP BY ALL)
        SELECT category, kernels, ms, {_down("right", "unclassified", "wrong")} FROM categories""",
        {
            **{name: name for name in ("category", "kernels", "right", "unclassified", "wrong")},
            "time ms": "ms",
        },
        ["category"],
    ),
    PrintedTable(
        r"Confusion \(what is not as it was\)",
        f"""{_BOTH}
        SELECT t.category AS truth, if(read, k.category, 'not in the traces') AS told, count(*) AS kernels,
            sum(ns) / 1e6 AS ms
        FROM known GROUP BY ALL HAVING truth <> told""",
        {"truth": "truth", "told": "told", "kernels": "kernels", "time ms": "ms"},
        ["truth", "told"],
    ),
    PrintedTable(
        "By evidence",
        f"""{_BOTH}, rules AS (
            {_by_rule("phase", "true")} UNION ALL {_by_rule("dimension", "k.kind = 'communication'")})
        SELECT aspect, evidence, rule, kernels, ms, {_down("right")} FROM rules""",
        {
            **{"of": "aspect", "evidence": "evidence", "rule": "rule"},
            **{"kernels": "kernels", "time ms": "ms", "right": "right"},
        },
        ["of", "evidence", "rule"],
    ),
)
