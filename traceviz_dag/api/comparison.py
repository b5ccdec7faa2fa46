"""Two sides compared, as an answer."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze.diff.changes import PART_KEY
from traceviz_dag.analyze.diff.words import Outcome, main_cause
from traceviz_dag.analyze.wording import capitalised
from traceviz_dag.api.answers import Answer
from traceviz_dag.api.held import Held
from traceviz_dag.api.iteration import Iteration
from traceviz_dag.errors import UsageError
from traceviz_dag.lake.catalogue import quoted_text
from traceviz_dag.lake.inputs import folder_of_run
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.answers.critical_path import path_doubts
from traceviz_dag.pipeline.answers.diff import diff_answer, diff_verdict
from traceviz_dag.pipeline.diff.comparison import compare
from traceviz_dag.pipeline.diff.sides import Side, side_at
from traceviz_dag.tables.causes import PATH_CATEGORY_SQL

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

USUAL_LEAST = 1.0
"""Percent of a step from which a change counts, where a call does not say."""


def compared(a: object, b: object, home: Path, *, anyway: bool, least: float) -> Answer:
    """What changed from A to B; see ``traceviz_dag.diff``."""
    if not 0 <= least < inf:
        raise UsageError(f"least {least}: name a percentage, 0 or more")
    named = [_side(each, home) for each in (a, b)]
    of_traces = all(isinstance(each, Iteration) and each.traces is not None for each in (a, b))
    in_home = [] if of_traces else ["--home", str(home)]
    given = [each.given for each in named]
    with ExitStack() as opened:
        sides = [opened.enter_context(each.opened()) for each in named]
        found = compare(*sides, anyway=anyway)
        judged = diff_verdict(found, least)
        values = diff_answer(given, sides, found, judged)
        # The rows are of paths; of sides that are not compared there is none.
        doubts = [
            f"{each.run}@{each.iteration}: {doubt}" for side in sides for each in side for doubt in path_doubts(each)
        ]
        every = [Iteration(Held(each.lake), each.run, each.iteration) for side in sides for each in side]
        completeness = [each.completeness for side in sides for each in side]
        refused = "; ".join(one.sentence for one in found.differences if one.refused)
        reason = (refused or "they are not comparable") if found.refused else found.no_path or found.no_replay
        said = [judged.sentence] if judged is not None else []
        if judged is not None and found.step is not None and judged.outcome is not Outcome.NO_CHANGE:
            cause = main_cause(found.replay, found.step)
            said += [cause] if cause is not None else []
        statements = [capitalised(one) for one in said] or [f"Not compared: {reason}"]
        return Answer(
            statement=statements[0],
            statements=tuple(statements),
            rows=tuple(values["parts"]),
            values=values,
            row_ids=PART_KEY,
            evidence_sql=_evidence(sides),
            command=shlex.join(["traceviz", "diff", *given, *_options(anyway, least), *in_home]),
            partial=_partial([one.partial for one in completeness]),
            conditions=(
                *_conditions(every),
                *([] if found.refused else dict.fromkeys(doubts)),
                *(one.sentence for one in found.differences),
                *(f"not compared, as one of the two does not record it: {one}" for one in found.unstated),
            ),
            certain=reason is None,
            reason=reason,
            sources=tuple(each.source() for each in every),
        )


def _conditions(every: Sequence[Iteration]) -> list[str]:
    """What was not read of each iteration, and on its clocks; each names its iteration."""
    found: list[str] = []
    for one in every:
        name = f"{one.run}@{one.number}"
        found += [line if line.startswith(name) else f"{name}: {line}" for line in one.conditions]
    return list(dict.fromkeys(found))


def _options(anyway: bool, least: float) -> list[str]:
    return [*(["--anyway"] if anyway else []), *([] if least == USUAL_LEAST else ["--least", f"{least}"])]


def _side(given: Any, home: Path) -> Side:
    if isinstance(given, Iteration):
        return Side(_named(given, home), None, given.home, given.run, given.number)
    try:
        return side_at(os.fspath(given), home)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{given!r} is no iteration, and no path of one") from error


def _named(given: Iteration, home: Path) -> str:
    """What names it to the command; of traces, these: the folder of their tables will be gone."""
    # Refused where its job was closed.
    _ = given.ranks
    if given.traces is None:
        return f"{'' if given.home == home else f'{given.home}/'}{given.run}@{given.number}"
    runs = {part.run for part in Lake(given.home).partitions("kernels")}
    folder = given.traces if len(runs) == 1 else folder_of_run(given.home, given.run)
    return f"{folder}@{given.number}"


def _partial(several: Sequence[bool | None]) -> bool | None:
    return True if True in several else None if None in several else False


def _evidence(sides: Sequence[Sequence[StoredIteration]]) -> str | None:
    """The parts of each side's mean step along its path; None where the sides are in different homes."""
    every = [each for side in sides for each in side]
    if len({each.lake.home for each in every}) > 1 or any(each.inputs is not None for each in every):
        return None
    places = ", ".join(
        f"('{name}', {quoted_text(each.run)}, {each.iteration})"
        for name, side in zip("ab", sides, strict=True)
        for each in side
    )
    means = ", ".join(
        f"coalesce(round(sum(duration_ns) FILTER (side = '{name}') / any_value(steps_{name})), 0)::BIGINT AS {name}_ns"
        for name in "ab"
    )
    steps = ", ".join(
        f"count(DISTINCT (run, iteration, step)) FILTER (side = '{name}') OVER () AS steps_{name}" for name in "ab"
    )
    return (
        f"SELECT stage, {PATH_CATEGORY_SQL} AS category, cause, {means}, b_ns - a_ns AS change_ns FROM (\n"
        f"    SELECT *, {steps}\n"
        f"    FROM path_segments JOIN (VALUES {places}) AS sides (side, run, iteration) USING (run, iteration)\n"
        ") GROUP BY ALL ORDER BY abs(change_ns) DESC"
    )
