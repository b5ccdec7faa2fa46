"""The findings of an iteration, from its tables in the lake: every rule's query is asked there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import xxhash

from traceviz_dag.analyze import findings
from traceviz_dag.analyze.findings.findings import Iteration, Judged, findings_table
from traceviz_dag.analyze.findings.rule import EditKey, Rule
from traceviz_dag.analyze.findings.rules import slow_rank
from traceviz_dag.analyze.findings.rules.registry import RULES, SHARED
from traceviz_dag.analyze.findings.windows import COUNTED
from traceviz_dag.lake.lake import Lake, Session
from traceviz_dag.lake.queries import trace_files
from traceviz_dag.pipeline.certainty import capture_mode, framework_of, kind_of_steps, stored_unknown_waits

if TYPE_CHECKING:
    from traceviz_dag.analyze.causes.what_if import WhatIf

_WHAT_IF_SQL = "SELECT * FROM what_if WHERE run = $run AND iteration = $iteration"

_STEPS_SQL = f"""
SELECT count(DISTINCT step) AS steps, max(step_ns) AS step_ns FROM (
    SELECT step, sum(window_end_ns - window_start_ns) OVER (PARTITION BY rank, device) AS step_ns
    FROM overlap
    WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND window_name = 'step'
        AND {COUNTED}
)
"""


@lru_cache(maxsize=1)
def code_of_rules() -> str:
    """A digest of all code that judges: findings are made anew where a rule is new, or another one."""
    digest = xxhash.xxh3_64()
    for path in sorted(Path(findings.__path__[0]).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def iteration_findings(
    lake: Lake, run: str, iteration: int, what_ifs: Callable[[], Iterable[WhatIf]] = tuple
) -> pa.Table:
    """Ask every rule, and judge what they say.

    Args:
        lake: has the iteration's tables of ranks and those across ranks.
        what_ifs: gives the replays of its training steps, which say what fixing several findings saves.

    Returns:
        The table ``findings``.

    Raises:
        BadInputError: a file of the iteration is damaged.
    """
    with lake.session(run=run, iteration=iteration) as session:
        (told,) = session.ask_each([_reasons_sql({rule.name: rule.unable_sql for rule in RULES})], SHARED)
        unable = _reasons(told)
        able = [rule for rule in RULES if rule.name not in unable]
        in_part = {rule.name: rule.partly_sql for rule in able if rule.partly_sql is not None}
        asked = speaking_rules(session, able)
        others = [_reasons_sql(in_part), _WHAT_IF_SQL, _STEPS_SQL]
        answers = session.ask_each([*others, *(rule.sql for rule in asked)], SHARED)
        files = trace_files(session.within(), run, iteration)
    partly = _reasons(answers[0])
    what_if, (steps,), *found = (rows.to_pylist() for rows in answers[1:])
    # A share of no time is no share.
    found = [[row for row in rows if isfinite(row.get("value") or 0)] for rows in found]
    rows_of = dict(zip((rule.name for rule in asked), found, strict=True))
    judged = [
        Judged(rule, rows_of.get(rule.name, []), unable.get(rule.name), partly=partly.get(rule.name)) for rule in RULES
    ]
    unknown = stored_unknown_waits(lake, run, iteration)
    if unknown is not None:
        judged = [
            replace(one, partly=f"which rank comes late is not known: {unknown.reason}")
            if one.rule is slow_rank.RULE
            else one
            for one in judged
        ]
    told_of = capture_mode(files), kind_of_steps(files), framework_of(files)
    whole = Iteration(run, iteration, what_if, steps["step_ns"], max(steps["steps"], 1), *told_of)
    return findings_table(whole, judged, partial(_saved_together, what_ifs))


def speaking_rules(session: Session, rules: Sequence[Rule]) -> list[Rule]:
    """Some rules without those that find nothing, as the iteration has no gap of their kind: most of a healthy step."""
    kinds = {rule.name: rule.gaps for rule in rules if rule.gaps is not None}
    if not kinds:
        return list(rules)
    shown = ", ".join(f"coalesce(bool_or({kind}), false) AS {name}" for name, kind in kinds.items())
    sql = f"SELECT {shown} FROM gpu_gaps WHERE run = $run AND iteration = $iteration"
    (there,) = session.ask(sql).to_pylist()
    return [rule for rule in rules if there.get(rule.name, True)]


def _reasons_sql(queries: Mapping[str, str]) -> str:
    """Queries that give a reason each, as one: planning them is most of what they take, so each is asked once."""
    rules: dict[str, list[str]] = {}
    for name, sql in queries.items():
        rules.setdefault(sql, []).append(name)
    asked = "\nUNION ALL\n".join(f"SELECT {names} AS rules, reason FROM (\n{sql}\n)" for sql, names in rules.items())
    return asked or "SELECT [] AS rules, NULL AS reason WHERE false"


def _reasons(told: pa.Table) -> dict[str, str]:
    return {rule: str(row["reason"]) for row in told.to_pylist() for rule in row["rules"]}


def _saved_together(
    what_ifs: Callable[[], Iterable[WhatIf]], sets: Sequence[Sequence[EditKey]]
) -> Sequence[int] | None:
    """What each of some sets of edits saves together, over all training steps; None where no step can be replayed."""
    steps = [one.saved_by(sets) for one in what_ifs()]
    return [sum(saved) for saved in zip(*steps, strict=True)] if steps else None
