"""What fixing something would save in an iteration, as the replay predicts it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze.causes.gains import (
    EDIT_COLUMNS,
    MEAN_COLUMNS,
    SUMMED_COLUMNS,
    edit_row,
    over_steps,
    refusals,
)
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.errors import NoEvidenceError, UsageError
from traceviz_dag.pipeline.answers.iterations import place, place_of_all
from traceviz_dag.pipeline.answers.wanted import Wanted

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration


_NO_STEP = "no training step is known"


def what_if_answer(iteration: StoredIteration, wanted: Wanted) -> dict[str, Any]:
    """What each edit saves, one by one and together; without an edit, the usual ones from the table.

    ``refused`` has the edits that cannot be predicted, with the reason.
    """
    rows, refused, reason = _predicted(iteration, wanted) if wanted else _stored(iteration)
    return {**place(iteration), "certain": reason is None, "reason": reason, "rows": rows, "refused": refused}


def steady_what_if_answer(iterations: Sequence[StoredIteration], wanted: Wanted) -> dict[str, Any]:
    """Edits and what they gain in each steady period of iterations of one run."""
    from traceviz_dag.pipeline.across_ranks import sets_of_ranks
    from traceviz_dag.pipeline.causes import steady_steps

    rows: list[dict[str, Any]] = []
    whole: list[str] = []
    refused: list[dict[str, Any]] = []
    period = "no steady period"
    try:
        steps = steady_steps(iterations)
        steady, (first, last) = steps.steady, steps.numbers
        period = (
            f"steady period {milliseconds(steady.period_ns)} ms, from the end of step {first} to that of step {last}"
        )
        if wanted:
            _check_ranks(iterations[-1], wanted)
            each = [wanted.edits(one, partial(sets_of_ranks, iterations[-1])) for one in steady.steps]
            single = list(zip(*each, strict=True))
            choices = [[[edit] for edit in edits] for edits in single] + ([each] if len(single) > 1 else [])
        else:
            stored = [row for one in iterations for row in one.table("what_if").to_pylist()]
            whole = [row["refusal"] for row in stored if row["refusal"] is not None and row["edit"] is None]
            refused = refusals(stored)
            usual = steady.usual(row for row in stored if row["refusal"] is None)
            choices = [[[edit] for edit in edits] for edits in usual]
        for choice in choices:
            try:
                found = steady.predict(choice)
            except NoEvidenceError as error:
                refused.append({**edit_row(choice[0]), "refusal": str(error)})
                continue
            if wanted or found.undecided is None:
                rows.append(found.as_row())
            else:
                refused.append({**edit_row(choice[0]), "refusal": found.undecided})
    except NoEvidenceError as error:
        whole = [str(error)]
    refused = refusals(refused)
    reason = next(iter([*whole, *(row["refusal"] for row in refused if wanted or not rows)]), None)
    told = [{**row, "steps": len(steps.ranked)} for row in over_steps(rows)]
    judged = {"certain": reason is None, "reason": reason}
    return {**place_of_all(iterations), **judged, "of": period, "rows": told, "refused": refused}


def what_if_rows(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each edit of each iteration, those that are refused behind the others, with ``refusal``; one without
    an edit where nothing can be predicted, with the reason."""
    unknown = dict.fromkeys((*EDIT_COLUMNS, "steps", *SUMMED_COLUMNS, *MEAN_COLUMNS, "untouched_share", "refusal"))
    rows = []
    for answer in answers:
        where = {name: value for name, value in answer.items() if name not in ("rows", "of", "refused")}
        rows += [{**where, **unknown, **row} for row in [*answer["rows"], *answer["refused"]] or [{}]]
    return rows


_Told = tuple[list[dict[str, Any]], list[dict[str, Any]], str | None]
"""Rows of edits and gains, edits that are refused, and why the answer is not certain."""


def _stored(iteration: StoredIteration) -> _Told:
    """The usual edits, from the table."""
    rows = iteration.table("what_if").to_pylist()
    told = over_steps([row for row in rows if row["refusal"] is None])
    whole = [row["refusal"] for row in rows if row["refusal"] is not None and (row["edit"] is None or not told)]
    return told, refusals(rows), next(iter(whole), None if told else _NO_STEP)


def _predicted(iteration: StoredIteration, wanted: Wanted) -> _Told:
    from traceviz_dag.pipeline.across_ranks import sets_of_ranks
    from traceviz_dag.pipeline.causes import ranked_steps

    _check_ranks(iteration, wanted)
    rows: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    reason = None
    try:
        for ranked in ranked_steps(iteration, iteration.table("collectives"), iteration.table("messages")):
            what_if = ranked.what_if()
            edits = wanted.edits(what_if, partial(sets_of_ranks, iteration))
            for each in [*([edit] for edit in edits), *([edits] if len(edits) > 1 else [])]:
                try:
                    rows.append(what_if.predict(*each).as_row())
                except NoEvidenceError as error:
                    reason = reason or str(error)
                    refused.append({**edit_row(each), "refusal": str(error)})
    except NoEvidenceError as error:
        reason = str(error)
    return over_steps(rows), refusals(refused), reason if rows or reason else _NO_STEP


def _check_ranks(iteration: StoredIteration, wanted: Wanted) -> None:
    """Refuse edits of ranks that were not read."""
    from traceviz_dag.pipeline.completeness import ranks_in_words

    asked = [(f"--{name.replace('_', '-')}", ranks) for name, ranks in wanted.together]
    for option, ranks in (("--fix-rank", wanted.ranks), ("--fix-link", wanted.links), *asked):
        unknown = sorted(set(ranks) - set(iteration.ranks))
        if unknown:
            raise UsageError(
                f"{option} {unknown[0]}: no such rank was read of {iteration.run} {iteration.iteration}; "
                f"there are {ranks_in_words(iteration.ranks)}"
            )
