"""What ``iterations`` may print of judged nights, and ``baseline``, with the SQL that its numbers are those of.

A night's statement is read clause by clause. Steps, limits and levels come from
``night_steps``: nights that these tests compare have the same ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import duckdb
import pyarrow as pa

from tests.commands.sentences.of_commands import TABLES
from tests.commands.sentences.printed import PrintedTable, Reader, Sentence
from traceviz_dag.pipeline.baselines import baselines

_TIME = r"[\d.]+ (?:ms|µs|s|ns)"
_SIGNED = r"[+-]?[\d.]+ (?:ms|µs|s|ns)"
_SHARE = r"[+-]?[\d.]+ %"
_NAME = r"[\w-]+@\d+(?:-\d+)?"
_METRICS = "step time|exposed communication"

_MADE = """
CREATE TABLE keyed AS SELECT *, if(series = run, iteration, 0) AS night FROM nights;
CREATE TABLE each_step AS
    SELECT k.run, k.night, s.iteration, s.step, max(s.step_ns) AS step_ns, round(avg(s.exposed_ns)) AS exposed_ns
    FROM night_steps s JOIN keyed k USING (run, iteration) GROUP BY ALL;
CREATE TABLE levels AS
    SELECT *, row_number() OVER (PARTITION BY series ORDER BY run, night) AS place,
        run || '@' || first || if(last > first, '-' || last, '') AS name
    FROM (
        SELECT series, run, night, any_value(accepted) AS accepted, any_value(verdict) AS verdict,
            min(iteration) AS first, max(iteration) AS last, max(steps) AS steps
        FROM keyed GROUP BY series, run, night
    ) JOIN (
        SELECT run, night, quantile_disc(step_ns, 0.5) AS step_ns, quantile_disc(exposed_ns, 0.5) AS exposed_ns
        FROM each_step GROUP BY ALL
    ) USING (run, night);
CREATE TABLE raised AS
    SELECT c.* EXCLUDE (run, iteration, statement), r.series, r.place AS raised, s.place AS begins, s.name AS since
    FROM night_changes c JOIN levels r ON r.run = c.run AND c.iteration = r.last
    JOIN levels s ON s.run = c.since_run AND c.since_iteration = s.first;
"""
"""Nights with their places in the series and their medians, and the changes that were raised at these places."""

_LEVELS = """
WITH me AS (
    SELECT l.*, k.limit_ns, k.known, k.worse, k.moved, k.moved_ns,
        (SELECT b.place FROM levels b WHERE b.series = l.series AND b.run = k.baseline_run
            AND k.baseline_iteration BETWEEN b.first AND b.last) AS began
    FROM levels l JOIN keyed k USING (run, night) WHERE k.run = $run AND k.iteration = $iteration
),
mine AS (SELECT raised.* FROM raised, me WHERE raised.series = me.series AND raised.raised = me.place),
trusted AS (
    SELECT l.* FROM levels l, me
    WHERE l.series = me.series AND l.place < me.place AND l.place >= me.began AND l.accepted AND NOT EXISTS (
        FROM raised c WHERE c.series = l.series AND c.worse AND c.raised < me.place AND c.begins <= l.place
        AND NOT EXISTS (
            FROM raised f WHERE f.series = c.series AND f.metric = c.metric AND NOT f.worse AND f.raised < me.place
                AND f.raised > c.raised AND f.begins <= l.place))
),
reference AS (FROM trusted ORDER BY verdict = 'better', place DESC LIMIT 1)
"""
"""``me`` is tonight, ``mine`` the changes that it raises, ``trusted`` the nights that are its measure, ``reference``
the one that it is compared with."""


def _limit(metric: str) -> str:
    """The limit that the trusted nights set for a metric, and what its few steps add to it; no row without one."""
    return f"""{_LEVELS},
    middle AS (SELECT median({metric}_ns) AS median, count(*) AS nights FROM trusted),
    noise AS (
        SELECT round(1.482602 * median(abs({metric}_ns - m) / sqrt(1 - 1 / n))) AS ns FROM (
            SELECT e.{metric}_ns, median(e.{metric}_ns) OVER w AS m, count(*) OVER w AS n
            FROM each_step e JOIN levels l USING (run, night), me
            WHERE l.series = me.series AND l.place <= me.place AND l.place >= me.began
            WINDOW w AS (PARTITION BY run, night)
        ) WHERE n > 1
    ),
    widening AS (SELECT if(steps < 5, coalesce(3 * (SELECT ns FROM noise) / sqrt(steps), 0), 0) AS widened FROM me),
    set_by AS (
        SELECT median, nights, widened, median + width AS high, median - width AS low, width / median AS share,
            widened > 0 AS few
        FROM middle, widening, LATERAL (
            SELECT widened + greatest(0.03 * median, 100, (
                SELECT 5 * 1.482602 * median(abs({metric}_ns - median)) * (1 + 4 / nights) FROM trusted
            )) AS width
        ) WHERE nights >= 8
    )"""


_LIMIT = (
    rf" \(limit (?P<v_median>{_TIME}) ± (?P<v_share>{_SHARE}) from (?P<v_nights>\d+) nights"
    rf"(?P<b_few>, (?P<v_widened>{_TIME}) of it as it has few steps)?\)"
)
_KNOWN = rf"(?P<b_known>, as since (?P<v_since>{_NAME}) \((?P<v_date>\d{{4}}-\d\d-\d\d)\))?"
_LAST_RAISED = """
    LEFT JOIN (
        SELECT since, strftime(make_timestamp(since_ns // 1000), '%Y-%m-%d') AS date
        FROM raised, me WHERE raised.series = me.series AND raised.raised < me.place AND metric = '{metric}'
        ORDER BY raised.raised DESC LIMIT 1
    ) ON true
"""
_FEW_STEPS = rf"(?P<b_few> \(its few steps widen the tolerance by (?P<v_widened>{_TIME})\))?"

CLAUSES = (
    Sentence(
        rf"(?P<k_run>[\w-]+)@(?P<k_iteration>\d+)(?:-(?P<v_last>\d+))?: step (?P<v_ns>{_TIME})"
        rf"(?:, (?:as long as that of (?P<v_same>{_NAME})|(?P<v_change>{_SIGNED}) \((?P<v_share>{_SHARE})\) against "
        rf"(?P<v_reference>{_NAME})))?",
        f"""{_LEVELS}
        SELECT me.last, me.step_ns AS ns, r.name AS reference, me.step_ns - r.step_ns AS change,
            change / r.step_ns AS share, if(change = 0, r.name, NULL) AS same
        FROM me LEFT JOIN reference r ON true""",
    ),
    Sentence(
        rf"(?P<v_part>[\w ]+) (?P<v_how>grew|shrank) most, (?P<v_ns>{_SIGNED})",
        f"""{_LEVELS}, parts AS (FROM night_deltas WHERE run = $run AND iteration = $iteration),
        change AS (SELECT sum(delta_ns) AS whole FROM parts)
        SELECT part, delta_ns AS ns, if(whole > 0, 'grew', 'shrank') AS how FROM parts, change, me, reference r
        WHERE me.moved = part AND me.moved_ns = delta_ns AND whole = me.step_ns - r.step_ns
            AND delta_ns * sign(whole) = (SELECT max(delta_ns * sign(whole)) FROM parts)""",
    ),
    Sentence(
        rf"(?P<v_verdict>pass|better){_LIMIT}",
        f"""{_limit("step")}
        SELECT set_by.*, if(me.step_ns < low, 'better', 'pass') AS verdict FROM set_by, me
        WHERE me.step_ns <= high AND abs(me.limit_ns - high) <= 2 AND (me.verdict = 'better') = (me.step_ns < low)""",
    ),
    Sentence(
        rf"(?P<v_verdict>pass|better){_FEW_STEPS}",
        f"""{_limit("step")}
        SELECT me.verdict, widened, widened > 0 AS few FROM me, widening, reference r
        WHERE limit_ns IS NULL AND NOT EXISTS (FROM set_by) AND me.step_ns - widened <= 1.05 * r.step_ns
            AND (me.verdict = 'better') = (me.step_ns < r.step_ns - 0.05 * r.step_ns)""",
    ),
    *(
        Sentence(
            rf"worse: {named}{values}{_LIMIT}{_KNOWN}",
            f"""{_limit(metric)}
            SELECT set_by.*, me.{metric}_ns AS now, r.{metric}_ns AS before, since, date, me.known AS known
            FROM set_by, reference r, me {_LAST_RAISED.format(metric=named)}
            WHERE me.{metric}_ns > high AND list_contains(me.worse, '{named}')""",
        )
        for metric, named, values in (
            ("step", "step time", ""),
            ("exposed", "exposed communication", rf" (?P<v_now>{_TIME}) against (?P<v_before>{_TIME})"),
        )
    ),
    Sentence(
        rf"worse: step time{_FEW_STEPS}{_KNOWN}",
        f"""{_limit("step")}
        SELECT widened, widened > 0 AS few, since, date, me.known AS known
        FROM widening, reference r, me {_LAST_RAISED.format(metric="step time")}
        WHERE NOT EXISTS (FROM set_by) AND me.step_ns - widened > 1.05 * r.step_ns AND me.worse[1] = 'step time'""",
    ),
    Sentence(
        r"worse: step time against the median of (?P<v_nights>\d+) accepted",
        f"""{_LEVELS}
        SELECT nights FROM me, (SELECT count(*) AS nights, median(step_ns) AS usual FROM trusted)
        WHERE step_ns > 1.05 * usual AND step_ns <= 1.05 * (SELECT step_ns FROM reference) AND limit_ns IS NULL""",
    ),
    Sentence(
        rf"worse: exposed communication (?P<v_now>{_TIME}) against (?P<v_before>{_TIME}){_FEW_STEPS}",
        f"""{_limit("exposed")}
        SELECT me.exposed_ns AS now, r.exposed_ns AS before, widened, widened > 0 AS few FROM me, widening, reference r
        WHERE NOT EXISTS (FROM set_by) AND now - widened > 1.1 * before""",
    ),
    *(
        Sentence(
            rf"worse: {named}, (?P<v_now>{_TIME}), is nearer to (?P<v_level>{_TIME}) than to (?P<v_before>{_TIME})"
            rf", as since (?P<v_since>{_NAME}) \((?P<v_date>\d{{4}}-\d\d-\d\d)\)",
            f"""{_LEVELS}
            SELECT me.{metric}_ns AS now, c.after_ns AS level, c.before_ns AS before, since, date
            FROM me {_LAST_RAISED.format(metric=named)} JOIN (
                SELECT c.worse, c.after_ns, c.before_ns FROM raised c, me
                WHERE c.series = me.series AND c.raised < me.place AND metric = '{named}' ORDER BY c.raised DESC LIMIT 1
            ) c ON c.worse WHERE 2 * now > level + before AND list_contains(me.worse, '{named}')""",
        )
        for metric, named in (("step", "step time"), ("exposed", "exposed communication"))
    ),
    Sentence(
        "worse: a confirmed change",
        f"""{_limit("step")}
        SELECT 1 FROM me, set_by WHERE me.verdict = 'worse' AND me.step_ns <= high
            AND EXISTS (FROM mine WHERE mine.worse)""",
    ),
    Sentence(
        rf"confirmed change: (?P<k_metric>{_METRICS}) (?P<v_change>{_SIGNED}) \((?P<v_share>{_SHARE})\) since "
        rf"(?P<v_since>{_NAME}) \((?P<v_date>\d{{4}}-\d\d-\d\d)\): (?P<v_before>{_TIME}) before, "
        rf"(?P<v_after>{_TIME}) in (?P<v_nights>\d+) nights since, p = (?P<v_p>[\d.e-]+)",
        f"""{_LEVELS}, sides AS (
            SELECT median(ns) FILTER (place < begins) AS before, median(ns) FILTER (place >= begins) AS after,
                count(*) FILTER (place >= begins) AS nights, any_value(since) AS since, any_value(p) AS p,
                strftime(make_timestamp(any_value(since_ns) // 1000), '%Y-%m-%d') AS date, any_value(worse) AS worse
            FROM mine JOIN levels l USING (series), LATERAL (SELECT if(metric = 'step time', step_ns, exposed_ns) AS ns)
            WHERE metric = $metric AND l.place <= raised AND l.place >= coalesce(
                (SELECT max(c.begins) FROM raised c, mine m WHERE c.series = m.series AND c.metric = $metric
                    AND m.metric = $metric AND c.raised < m.raised),
                (SELECT began FROM me))
        )
        SELECT *, after - before AS change, change / before AS share FROM sides
        WHERE worse = (after > before) AND abs(share) >= 0.02 AND p <= 0.01""",
    ),
    Sentence(
        rf"(?P<v_a>{_NAME}) to (?P<v_b>{_NAME}), by replay: .+",
        f"""{_LEVELS}, nights_of AS (
            SELECT l.*, l.place >= begins AS is_since, nights FROM mine JOIN levels l USING (series)
            WHERE metric = $metric AND l.place <= raised AND l.place >= begins - nights
        )
        SELECT any_value(name) FILTER (NOT is_since) AS a, any_value(name) FILTER (is_since) AS b FROM nights_of
        JOIN (SELECT is_since, quantile_disc(step_ns, 0.5) AS step_ns FROM nights_of GROUP BY is_since)
        USING (is_since, step_ns)""",
    ),
    Sentence(
        "later nights are held against these",
        f"{_LEVELS} SELECT 1 FROM mine WHERE rebased AND NOT worse",
    ),
    Sentence(
        "the first of its series",
        f"{_LEVELS} FROM me SELECT 1 WHERE place = 1",
    ),
    Sentence(
        rf"the first of its series with (?P<v_ranks>\d+) ranks: (?P<v_reference>{_NAME}) covers (?P<v_covered>\d+) of "
        "them",
        f"""{_LEVELS}
        SELECT tonight.ranks, r.name AS reference, theirs.ranks AS covered FROM reference r,
            (SELECT count(DISTINCT rank) AS ranks FROM night_steps WHERE run = $run AND iteration = $iteration) tonight,
            LATERAL (
                SELECT count(DISTINCT s.rank) AS ranks FROM night_steps s WHERE s.run = r.run AND s.iteration = r.first
            ) theirs
        WHERE tonight.ranks > 2 * theirs.ranks""",
    ),
    Sentence(
        rf"inconclusive against (?P<v_reference>{_NAME}): they share (?P<v_shared>\d+) of (?P<v_ranks>\d+) ranks, "
        "less than 90 %",
        f"""{_LEVELS}, ranks AS (
            SELECT DISTINCT rank, s.iteration = $iteration AS tonight FROM night_steps s, reference r
            WHERE s.run = $run AND s.iteration IN ($iteration, r.first)
        )
        SELECT r.name AS reference, (SELECT count(*) - count(DISTINCT rank) FROM ranks) AS shared,
            (SELECT max(n) FROM (SELECT count(*) AS n FROM ranks GROUP BY tonight)) AS ranks
        FROM reference r, me WHERE shared < 0.9 * ranks AND (me.accepted IS NULL OR me.worse = ['not compared'])""",
    ),
    Sentence(
        r"no rank of stage (?P<v_stage>\d+) is in both",
        f"""{_LEVELS}
        SELECT min(s.pp) AS stage FROM night_steps s, reference r WHERE s.run = r.run AND s.iteration = r.first
            AND s.pp NOT IN (SELECT pp FROM night_steps WHERE run = $run AND iteration = $iteration)""",
    ),
    Sentence(
        "accept it by hand to compare later nights with it",
        f"{_LEVELS} FROM me SELECT 1 WHERE accepted IS NULL",
    ),
    Sentence(
        "accepted by hand",
        f"{_LEVELS} FROM me SELECT 1 WHERE accepted AND len(worse) > 0 AND verdict = 'pass'",
    ),
)

_OF_ITERATIONS = next(table for table in TABLES if ": iterations," in table.title)
_VERDICT = """(
    SELECT CASE WHEN verdict <> 'worse' THEN verdict
        WHEN worse[1] LIKE 'step%' AND moved_ns > 0 THEN 'worse: '
            || replace(replace(replace(moved, 'fwd_', 'forward '), 'bwd_', 'backward '), '_', ' ')
        ELSE 'worse: ' || split_part(worse[1], ':', 1) END
    FROM nights WHERE nights.run = iterations.run AND nights.iteration = iterations.iteration
)"""

NIGHTS_TABLES = (
    replace(
        _OF_ITERATIONS,
        title=_OF_ITERATIONS.title.replace(r"\w+", r"[\w-]+", 1),
        sql=_OF_ITERATIONS.sql.replace("NULL AS night", f"{_VERDICT} AS night"),
    ),
    PrintedTable(
        "Baselines",
        """
        SELECT *, if(name IN (SELECT series FROM nights), 'yes', NULL) AS gate FROM baselines
        UNION ALL SELECT series, baseline_run, baseline_iteration, 'gate', 'yes'
        FROM (SELECT *, row_number() OVER (PARTITION BY series ORDER BY run DESC, night DESC) AS back FROM keyed)
        WHERE back = 1 AND baseline_run IS NOT NULL AND series NOT IN (SELECT name FROM baselines)""",
        {"name": "name", "run": "run", "iteration": "iteration", "set by": "by", "nightly gate": "gate"},
        ["name"],
    ),
)

BASELINES = (
    Sentence(
        r"The baseline (?P<k_name>\S+) is (?P<v_key>\S+)\.",
        "SELECT run || coalesce('@' || iteration, '') AS key FROM baselines WHERE name = $name",
    ),
    Sentence(
        r"(?P<v_key>\S+) is accepted\.",
        "SELECT run || '@' || iteration AS key FROM baselines WHERE \"by\" = 'accepted'",
    ),
    Sentence(
        r"(?P<k_name>\S+) is no baseline any more\.",
        "SELECT 1 WHERE NOT EXISTS (FROM baselines WHERE name = $name)",
    ),
    Sentence(
        r"No baselines; traceviz baseline set NAME RUN sets one\.",
        "SELECT 1 WHERE NOT EXISTS (FROM baselines)",
    ),
)


@dataclass(frozen=True)
class NightsHome:
    """The tables of nights of a home, as they are when the first is asked for, and its baselines as they are."""

    folder: Path

    @cached_property
    def _client(self) -> duckdb.DuckDBPyConnection:
        client = duckdb.connect()
        client.execute(f"ATTACH '{self.folder / 'traceviz.duckdb'}' AS home (READ_ONLY)")
        for name in ("iterations", "runs", "nights", "night_steps", "night_deltas", "night_changes"):
            client.execute(f"CREATE TABLE {name} AS FROM home.{name}")
        client.execute(_MADE)
        return client

    def query(self, sql: str, parameters: dict[str, object]) -> pa.Table:
        """The rows of a query."""
        if "baselines" not in sql:
            return self._client.sql(sql, params=parameters).to_arrow_table()
        rows = [
            {"name": name, "run": one.run, "iteration": one.iteration, "by": one.by.value}
            for name, one in baselines(self.folder).items()
        ]
        names = {"name": pa.string(), "run": pa.string(), "iteration": pa.int64(), "by": pa.string()}
        self._client.register("baselines", pa.Table.from_pylist(rows, pa.schema(names.items())))
        return self._client.sql(sql, params=parameters).to_arrow_table()


_STATEMENT = re.compile(rf"{_NAME}: step ")
_REASONS = re.compile(r", (?=step time|exposed communication|OverlapScore)")


class NightsReader(Reader):
    """Reads a night's statement clause by clause; what no sentence is fails, with and without a number."""

    def sentence(self, line: str) -> None:
        """Read a line that is in no table."""
        clauses = line.split("; ") if _STATEMENT.match(line) else [line]
        for clause in clauses:
            reasons = _REASONS.split(clause.removeprefix("worse: ")) if clause.startswith("worse: ") else []
            for said in [f"worse: {reason}" for reason in reasons] or [clause]:
                assert any(re.fullmatch(known.pattern, said) for known in self.sentences), f"nobody knows {said!r}"
                super().sentence(said)


def nights_reader(home: NightsHome) -> NightsReader:
    """Reads what is printed of the nights of a home."""
    return NightsReader(home, (*CLAUSES, *BASELINES), NIGHTS_TABLES)
