"""What changed from one side of a comparison to the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from traceviz_dag.pipeline.answers.iterations import place_of_all

if TYPE_CHECKING:
    from traceviz_dag.analyze.diff.changes import Bar, Change
    from traceviz_dag.analyze.diff.words import Verdict
    from traceviz_dag.pipeline.diff.comparison import Comparison
    from traceviz_dag.pipeline.stored_iteration import StoredIteration


def diff_verdict(found: Comparison, least: float) -> Verdict | None:
    """Whether B is slower; None where the two are not compared.

    Args:
        least: percent of A's step from which a change counts.
    """
    from traceviz_dag.analyze.diff.words import verdict

    return None if found.step is None else verdict(found.step, found.steps, least / 100)


def diff_answer(
    given: Sequence[str],
    sides: Sequence[Sequence[StoredIteration]],
    found: Comparison,
    judged: Verdict | None,
) -> dict[str, Any]:
    """Both sides, what keeps them from being compared, the verdict, and what changed, in tables that add up."""
    from traceviz_dag.analyze.diff.changes import PART_KEY, PATH_KEY
    from traceviz_dag.pipeline.diff.comparison import TABLES

    step = found.step
    named = [
        {"given": text, **place_of_all(side), "steps": steps}
        for text, side, steps in zip(given, sides, found.steps, strict=True)
    ]
    replay = [
        {
            **{"order": row.order, "what": row.work.what, "is_transfer": row.work.is_transfer},
            **{"stage": row.work.stage, "change_ns": row.change_ns, **_bar(row.bar), "is_change": row.is_change},
        }
        for row in found.replay
    ]
    return {
        "a": named[0],
        "b": named[1],
        "compared": not found.refused,
        "differences": [
            {"fact": one.fact, "a": one.a, "b": one.b, "refused": one.refused, "statement": one.sentence}
            for one in found.differences
        ],
        "not_stated_by_both": list(found.unstated),
        "outcome": None if judged is None else judged.outcome.value,
        "statement": None if judged is None else judged.sentence,
        "step": None if step is None else _row((), step),
        "parts": [_row(PART_KEY, row) for row in found.parts],
        "path": [_row(PATH_KEY, row) for row in found.path],
        "replay": replay,
        "matched_share": found.matched if found.replay else None,
        "reason": found.no_path or found.no_replay,
        **{name: [_row(key, row) for row in found.tables.get(name, ())] for name, key in TABLES.items()},
        "findings": found.findings,
    }


def _row(key: Sequence[str], row: Change) -> dict[str, Any]:
    from traceviz_dag.analyze.diff.words import state_of

    return {
        **dict(zip(key, row.key, strict=True)),
        **{"a_ns": row.a_ns, "b_ns": row.b_ns, "change_ns": row.change_ns},
        **{"a_calls": row.a_calls, "b_calls": row.b_calls, "count_ns": row.count_ns, "per_call_ns": row.per_call_ns},
        **{**_bar(row.bar), "is_change": row.is_change, "state": state_of(row)},
    }


def _bar(bar: Bar | None) -> dict[str, int | None]:
    return {"low_ns": None if bar is None else bar.low_ns, "high_ns": None if bar is None else bar.high_ns}
