"""The findings of an iteration, from its tables in the lake: every rule's query is asked there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash

from traceviz_dag.analyze import findings
from traceviz_dag.analyze.clocks.clock_summary import clock_facts
from traceviz_dag.analyze.findings.findings import Iteration, Judged, findings_table
from traceviz_dag.analyze.findings.notes import may_be_finding
from traceviz_dag.analyze.findings.rule import EditKey, Rule
from traceviz_dag.analyze.findings.rules import slow_rank
from traceviz_dag.analyze.findings.rules.environment import KNOWN_SQL
from traceviz_dag.analyze.findings.rules.registry import RULES, SHARED
from traceviz_dag.analyze.findings.verdict import NOTABLE, Evidence, Verdict, verdict
from traceviz_dag.analyze.findings.windows import COUNTED
from traceviz_dag.analyze.waits.blame import uncertain_waits
from traceviz_dag.analyze.waits.unknown_waits import UNKNOWN_COLUMNS, UnknownWaits, lost_kernels, unknown_waits
from traceviz_dag.lake.lake import Lake, Session
from traceviz_dag.tables import FINDINGS
from traceviz_dag.vocabulary import StepKind, TrainingFramework

if TYPE_CHECKING:
    from traceviz_dag.analyze.causes.what_if import WhatIf

_JUDGED = {
    FINDINGS.name: None,
    "iterations": ("ranks", "unclassified_share"),
    "rank_clocks": None,
    "collectives": UNKNOWN_COLUMNS,
}
"""What a verdict rests on: tables, and the columns that it reads; None: all."""

_WHAT_IF_SQL = "SELECT * FROM what_if WHERE run = $run AND iteration = $iteration"

_CAPTURE_SQL = """
SELECT
    list(DISTINCT format ORDER BY format) FILTER (format IS NOT NULL) AS formats,
    bool_and(has_stacks) AS stacks,
    bool_and(has_shapes) AS shapes,
    bool_or(has_stacks) AS some_stacks,
    CASE WHEN count(DISTINCT step_kind) = 1 AND count(*) = count(step_kind) THEN any_value(step_kind)::VARCHAR
    END AS kind,
    CASE WHEN count(DISTINCT framework) = 1 THEN any_value(framework)::VARCHAR END AS framework
FROM traces WHERE run = $run AND iteration = $iteration AND status <> 'failed'
"""

_ALL_READ_SQL = """
SELECT (SELECT count(DISTINCT rank) FROM topology WHERE run = $run AND iteration = $iteration) = (
    SELECT count(DISTINCT rank) FROM traces WHERE run = $run AND iteration = $iteration AND status = 'read'
) AS all_read
"""

_DOUBTS_SQL = f"""
SELECT (
    SELECT count(*) FROM traces
    WHERE run = $run AND iteration = $iteration AND status <> 'failed' AND launched_kernels <= (1 - {NOTABLE}) * kernels
        AND kernels > 0
) AS launchless, (
    SELECT count(*) FROM process_groups WHERE run = $run AND iteration = $iteration AND disagreement IS NOT NULL
) AS contradicted
"""

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
        others = [_reasons_sql(in_part), _WHAT_IF_SQL, _STEPS_SQL, _CAPTURE_SQL]
        answers = session.ask_each([*others, *(rule.sql for rule in asked)], SHARED)
    partly = _reasons(answers[0])
    what_if, (steps,), (captured,), *found = (rows.to_pylist() for rows in answers[1:])
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
    mode, kind = _mode_in_words(captured), _kind(captured)
    framework = None if captured["framework"] is None else TrainingFramework(captured["framework"])
    whole = Iteration(run, iteration, what_if, steps["step_ns"], max(steps["steps"], 1), mode, kind, framework)
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


def stored_verdict(lake: Lake, run: str, iteration: int, lacking: str) -> Verdict | None:
    """The verdict on an iteration, from its tables; None where nothing was judged.

    Args:
        lacking: what of it was not read; empty where all was.
    """
    if not all(lake.exists(name, run=run, iteration=iteration) for name in _JUDGED):
        return None
    rows, measures, clocks, collectives = (
        lake.table(name, run, iteration).arrow(columns) for name, columns in _JUDGED.items()
    )
    if not measures.num_rows:
        return None
    (measured,) = measures.to_pylist()
    (doubts,) = lake.query_iteration(_DOUBTS_SQL, run=run, iteration=iteration).to_pylist()
    found, unknown = rows.to_pylist(), unknown_waits(collectives)
    evidence = Evidence(
        ranks=measured["ranks"],
        partial=lacking,
        clocks=clock_facts(clocks)["solved"],
        unknown_waits=None if unknown is None else unknown.reason,
        uncertain=uncertain_waits(collectives) / max(collectives.num_rows, 1),
        unclassified=measured["unclassified_share"] or 0.0,
        open=sum(map(may_be_finding, found)),
        launchless=doubts["launchless"],
        contradicted=doubts["contradicted"],
    )
    return verdict(found, evidence)


def stored_unknown_waits(lake: Lake, run: str, iteration: int) -> UnknownWaits | None:
    """Why no wait of an iteration is certain, from its table ``collectives``; None where some are, or it has none."""
    if not lake.exists("collectives", run=run, iteration=iteration):
        return None
    return unknown_waits(lake.table("collectives", run, iteration).arrow(UNKNOWN_COLUMNS))


def stored_lost_kernels(lake: Lake, run: str, iteration: int) -> UnknownWaits | None:
    """What of an iteration's communication the traces lost, from its table ``collectives``; see ``lost_kernels``."""
    if not lake.exists("collectives", run=run, iteration=iteration):
        return None
    collectives = lake.table("collectives", run, iteration).arrow(UNKNOWN_COLUMNS)
    (row,) = lake.query_iteration(_ALL_READ_SQL, run=run, iteration=iteration).to_pylist()
    return lost_kernels(collectives, all_read=row["all_read"])


def compared_environment(lake: Lake, run: str, iteration: int) -> dict[str, list[str]]:
    """What the ranks state of their environment, in words.

    Returns:
        ``alike``: what all ranks state alike; ``unknown``: what no rank states. What ranks state differently, or only
        some of them state, is in neither: rule environment reports it.
    """
    rows = lake.query_iteration(KNOWN_SQL, run=run, iteration=iteration).sort_by("place").to_pylist()
    return {
        "alike": [row["what"] for row in rows if row["ranks"] == row["of_ranks"] > 1 and row["said"] == 1],
        "unknown": [row["what"] for row in rows if row["ranks"] == 0],
    }


def kind_of_steps(lake: Lake, run: str, iteration: int) -> StepKind | None:
    """What kind of steps the ranks of an iteration ran; None where they differ, or where one does not show."""
    (row,) = lake.query_iteration(_CAPTURE_SQL, run=run, iteration=iteration).to_pylist()
    return _kind(row)


def _kind(captured: Mapping[str, Any]) -> StepKind | None:
    return None if captured["kind"] is None else StepKind(captured["kind"])


def capture_mode(lake: Lake, run: str, iteration: int) -> str:
    """What was recorded of an iteration, in words: it shows how much the profiler slows a step."""
    (row,) = lake.query_iteration(_CAPTURE_SQL, run=run, iteration=iteration).to_pylist()
    return _mode_in_words(row)


def _mode_in_words(captured: Mapping[str, Any]) -> str:
    kinds = {word.split("_")[0] for word in captured["formats"] or []}
    tools = {"kineto": "PyTorch profiler", "nsys": "Nsight Systems"}
    tool = " and ".join(sorted(tools.get(kind, kind) for kind in kinds)) or "unknown profiler"
    some = "call stacks on some ranks" if captured["some_stacks"] else "no call stacks"
    what = ["call stacks" if captured["stacks"] else some, *(["shapes"] if captured["shapes"] else [])]
    return f"{tool}, {', '.join(what)}"
