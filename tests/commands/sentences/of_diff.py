"""What ``diff`` may print of two runs of one step each, with the SQL that its numbers are those of."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tests.commands.sentences.printed import Home, PrintedTable, Sentence
from traceviz_dag.pipeline.diff.comparison import Comparison

_SIGNED = r"[+-]?[\d.]+ (ms|µs|s|ns)"
_SIDE = "run = ${side} AND iteration = ${side}_iteration"
_A, _B = (_SIDE.replace("{side}", side) for side in "ab")
_EITHER = f"(({_A}) OR ({_B}))"

_STEP = f"""
    SELECT sum(duration_ns) FILTER ({_A}) AS a_ns, sum(duration_ns) FILTER ({_B}) AS b_ns, b_ns - a_ns AS change,
        change / 1e6 AS ms, change / a_ns AS share
    FROM path_segments WHERE {_EITHER}
"""


def _changes(rows: str, named: str = "") -> str:
    """Rows of a table of changes: time and calls of both sides, and the change split into calls and their length.

    Args:
        named: the column of names, which are shown as short as they are told apart.
    """
    shown, lengths = named, (96, 48) if named else ()
    for most in lengths:
        short = f"if(length({named}) > {most}, {named}[:{most - 1}] || '…', {named})"
        told_apart = f"(SELECT count(DISTINCT {short}) = count(DISTINCT {named}) FROM changed)"
        shown = f"if({told_apart}, {short}, {shown})"
    return f"""
        WITH each AS ({rows}), sides AS (
            SELECT * EXCLUDE (run, iteration, ns, calls),
                coalesce(sum(ns) FILTER ({_A}), 0) AS a_ns, coalesce(sum(ns) FILTER ({_B}), 0) AS b_ns,
                coalesce(sum(calls) FILTER ({_A}), 0) AS a_calls, coalesce(sum(calls) FILTER ({_B}), 0) AS b_calls
            FROM each WHERE {_EITHER} GROUP BY ALL
        ), changed AS (FROM sides WHERE a_ns <> b_ns OR a_calls <> b_calls)
        SELECT *, {shown or "NULL"} AS shown, a_ns / 1e6 AS a_ms, b_ns / 1e6 AS b_ms, (b_ns - a_ns) / 1e6 AS change_ms,
            CASE WHEN a_calls > 0 THEN (b_calls - a_calls) * a_ns / a_calls / 1e6
                WHEN b_calls > 0 AND a_ns = 0 THEN change_ms ELSE 0 END AS calls_ms,
            change_ms - calls_ms AS length_ms,
            CASE WHEN a_calls = 0 AND a_ns = 0 THEN 'only B' WHEN b_calls = 0 AND b_ns = 0 THEN 'only A' END AS note
        FROM changed
    """


_COLUMNS = {
    **{"A": "a_ms", "B": "b_ms", "change": "change_ms", "calls A": "a_calls", "calls B": "b_calls"},
    **{"by calls": "calls_ms", "by length": "length_ms", "note": "note"},
}
_OF_PATH = ("what", "stage", "phase", "dimension", "module")
_OPERATION = "if(kind = 'communication', coalesce(collective, operator, name), coalesce(operator, name))"
_PATH = f"""
    SELECT p.run, p.iteration, p.stage, p.phase, p.dimension,
        if(p.cause IN ('work', 'transfer', 'unmatched'), p.category, p.cause) AS what,
        regexp_replace(p.module, '_[0-9]+$', '') AS module, {_OPERATION} AS operation,
        sum(p.duration_ns) AS ns, count(*) AS calls
    FROM path_segments p LEFT JOIN kernels k USING (run, iteration, rank, kernel_id) WHERE p.cause <> 'host'
    GROUP BY ALL
    UNION ALL
    SELECT h.run, h.iteration, stage, NULL, NULL, 'host', regexp_replace(coalesce(h.caller, h.module), '_[0-9]+$', ''),
        coalesce(operation, 'after the last launch'), sum(path_ns), sum(launches)
    FROM path_hosts h JOIN topology USING (run, iteration, rank) GROUP BY ALL
"""
_PARTS = f"SELECT run, iteration, stage, what, sum(ns) AS ns, sum(calls) AS calls FROM ({_PATH}) GROUP BY ALL"
_KERNELS = """
    SELECT run, iteration, kind, {what} AS what, sum(duration_ns) AS ns, count(*) AS calls
    FROM kernels GROUP BY ALL
"""
_WHOLE = f"SELECT (sum(duration_ns) FILTER ({_B}) - sum(duration_ns) FILTER ({_A})) / 1e6 AS ms FROM kernels"

DIFF = (
    Sentence(r"A: (?P<k_a>\w+), iteration (?P<k_a_iteration>\d+)"),
    Sentence(r"B: (?P<k_b>\w+), iteration (?P<k_b_iteration>\d+)"),
    Sentence(
        rf"B's step is (?P<v_word>longer|shorter): (?P<v_change>{_SIGNED}) \((?P<v_share>[+-][\d.]+ %)\), from "
        rf"(?P<v_a_ns>{_SIGNED}) to (?P<v_b_ns>{_SIGNED}); one step alone of a side, so no error bar\.",
        f"SELECT *, if(change > 0, 'longer', 'shorter') AS word FROM ({_STEP}) WHERE abs(share) >= 0.01",
    ),
    Sentence(
        rf"By replay the largest part is (?P<v_what>.+): (?P<v_change>{_SIGNED})\.",
        f"""SELECT what, change_ns AS change FROM replay, ({_STEP}) WHERE (change_ns > 0) = (change > 0)
        ORDER BY abs(change_ns) DESC, put LIMIT 1""",
    ),
    Sentence(
        r"(?P<v_matched>[\d.]+ %) of B's kernel time is of operations that A runs, too; classes are put in one after "
        r"the other, 1 to (?P<v_classes>\d+), and what is put in earlier may hide what comes later",
        "SELECT any_value(matched) AS matched, count(*) AS classes FROM replay",
    ),
)

DIFF_TABLES = (
    PrintedTable(
        r"By replay, (?P<v_ms>[+-][\d.,]+) ms per step: what each class of work makes of it",
        "SELECT *, change_ns / 1e6 AS ms FROM replay WHERE change_ns <> 0",
        {"put in": "put", "what": "what", "change ms": "ms"},
        ["put in"],
        f"SELECT sum(change_ns) / 1e6 AS ms FROM replay HAVING sum(change_ns) = (SELECT change FROM ({_STEP}))",
    ),
    PrintedTable(
        r"By path, (?P<v_ms>[+-][\d.,]+) ms per step: what the critical path has more or less of, ms",
        f"FROM ({_changes(_PARTS)}) WHERE a_ns <> b_ns",
        {"what": "what", "stage": "stage", **_COLUMNS},
        ["what", "stage"],
        _STEP,
    ),
    PrintedTable(
        "By path, operation by operation, ms",
        f"FROM ({_changes(_PATH, 'operation')}) WHERE a_ns <> b_ns",
        {**{name: name for name in _OF_PATH}, "operation": "shown", **_COLUMNS},
        [*_OF_PATH, "operation"],
    ),
    *(
        PrintedTable(
            rf"All kernels by {word}, (?P<v_ms>[+-][\d.,]+) ms per step over the ranks, "
            "waits in communication included, ms",
            _changes(_KERNELS.format(what=what), "what"),
            {word: "shown", "kind": "kind", **_COLUMNS},
            [word, "kind"],
            _WHOLE,
        )
        for word, what in (("operation", _OPERATION), ("module", "regexp_replace(module, '_[0-9]+$', '')"))
    ),
    PrintedTable(
        "Findings, ms",
        f"""
        WITH mine AS (
            SELECT rule, culprit, run, iteration, gain_ns, statement FROM findings,
            LATERAL (SELECT [rank::TEXT, group_ranks::TEXT, stage::TEXT, dimension, module, operation] AS culprit)
            WHERE severity = 'finding' AND {_EITHER}
        )
        SELECT replace(rule, '_', ' ') AS rule, any_value(gain_ns) FILTER ({_A}) / 1e6 AS a_ms,
            any_value(gain_ns) FILTER ({_B}) / 1e6 AS b_ms,
            CASE WHEN count(*) FILTER ({_A}) = 0 THEN 'came' WHEN count(*) FILTER ({_B}) = 0 THEN 'went' ELSE 'stayed'
            END AS change,
            coalesce(any_value(statement) FILTER ({_B}), any_value(statement)) AS statement
        FROM mine GROUP BY rule, culprit
        """,
        {"change": "change", "rule": "rule", "gain A": "a_ms", "gain B": "b_ms", "finding": "statement"},
        ["finding"],
    ),
)


@dataclass(frozen=True)
class WithReplay:
    """The tables of a home, and beside them a table ``replay``: what no query of the tables gives."""

    home: Home
    found: Comparison

    def query(self, sql: str, parameters: dict[str, object]) -> pa.Table:
        """The rows of a query."""
        if "replay" not in sql:
            return self.home.query(sql, parameters)
        from traceviz_dag.analyze.diff.words import named_class

        rows = ", ".join(
            f"({row.order}, '{named_class(row.work)}', {row.change_ns}, {self.found.matched})"
            for row in self.found.replay
        )
        return self.home.query(f"WITH replay(put, what, change_ns, matched) AS (VALUES {rows}) {sql}", parameters)
