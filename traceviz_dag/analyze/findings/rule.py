"""What a rule is: a query, the sentence that its rows become, and the edit that predicts what fixing them saves."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from traceviz_dag.lake.catalogue import quoted_text, with_values
from traceviz_dag.tables.findings import CULPRIT_COLUMNS
from traceviz_dag.vocabulary import FindingClass, StepKind, TrainingFramework

Row = Mapping[str, Any]
"""A row of a rule's query."""


class EditKey(NamedTuple):
    """A row of table ``what_if``: the edit, and what it is applied to."""

    edit: str
    rank: int | None = None
    dimension: str | None = None
    ranks: str | None = None


def nothing_fixes(_: Row) -> EditKey | None:
    """The edit of rules whose gains nothing predicts."""
    return None


MEASURE = "share of the time measured"
"""Rules with this measure can be compared: their values are parts of the same time."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where findings of a rule show in time.

    Attributes:
        sql: with $run and $iteration; its rows have rank, start_ns and duration_ns on the rank's clock, weight (how
            much of the finding lies there), and the columns of ``keys``.
        keys: columns that name who or what is at fault, by which the places of one finding are chosen.
    """

    sql: str
    keys: tuple[str, ...] = ("rank",)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    Attributes:
        name: as users name it. question: what it asks, in a few words; remedy: what to do about what it finds.
        sql: its query over the tables of an iteration, with ``$run`` and ``$iteration``; each row is a finding. It has
            those of ``CULPRIT_COLUMNS`` that apply; ``class`` where it differs from ``of_class``; ``inferred``, whether
            rows behind it are; ``at_most_ns``, upper bound on what fixing this, and all
            rows that the same edit fixes, saves;
            ``value``; and every other number that the sentence has.
        measure: what ``value`` is.
        sentence: what a row says, in one short sentence; its numbers are those of the row. detail: the same of what
            it rests on.
        edit: the edit of table ``what_if`` that fixes what a row says; None: nothing predicts it. otherwise: the edit
            that comes next to it, where the step shows nothing of that one, such as layers without call stacks.
        unable_sql: gives one row with a text (``reason``) where the tables of an iteration do not let the rule judge,
            so that finding nothing would say nothing: also where they are empty.
        partly_sql: the same where they let it judge a part, such as some of the ranks; None: it judges all or nothing.
        gaps: condition on rows of ``gpu_gaps``: where an iteration has no such row, the query gives none; None: it says
            nothing of that.
        key: columns that tell rows apart beside those of the culprit.
        unpredicted: why nothing predicts a gain, of rules that have no edit.
        remedy_of: what to do about one row, where that differs between them; None: ``remedy``.
        serving: what to do instead where the job serves a model, and options of training would not help.
        forward: what to do about one row instead in a step without a backward pass; None: the same.
        elsewhere: what to do about one row instead where another framework than Megatron-LM trains; None: the same,
            without options of Megatron-LM, which stand in brackets that name it.
        places: where its findings show in time; None where they are of no particular time.
    """

    name: str
    of_class: FindingClass
    question: str
    remedy: str
    sql: str
    measure: str
    sentence: Callable[[Row], str]
    unable_sql: str
    detail: Callable[[Row], str] = lambda _: ""
    edit: Callable[[Row], EditKey | None] = nothing_fixes
    otherwise: Callable[[Row], EditKey | None] = nothing_fixes
    partly_sql: str | None = None
    gaps: str | None = None
    key: tuple[str, ...] = ()
    unpredicted: str = "no edit of the step fixes it"
    remedy_of: Callable[[Row], str | None] = lambda _row: None
    places: Places | None = None
    serving: str | None = None
    forward: Callable[[Row, TrainingFramework | None], str | None] = lambda _row, _framework: None
    elsewhere: Callable[[Row, TrainingFramework], str | None] = lambda _row, _framework: None

    def what_to_do(
        self, row: Row, kind: StepKind | None = None, framework: TrainingFramework | None = TrainingFramework.MEGATRON
    ) -> str:
        """The remedy of a row of the query, in a step of this kind that this framework trains; None: not known."""
        if kind is StepKind.INFERENCE and self.serving is not None:
            return self.serving
        own = self.forward(row, framework) if kind is StepKind.FORWARD_ONLY else None
        own = self.elsewhere(row, framework) if own is None and framework is not None else own
        if own is not None:
            return own
        remedy = self.remedy_of(row) or self.remedy
        return remedy if framework in _MEGATRONS else _OF_MEGATRON.sub("", remedy)


_MEGATRONS = (TrainingFramework.MEGATRON, TrainingFramework.MEGATRON_FSDP)
_OF_MEGATRON = re.compile(r" \(Megatron-LM: [^)]*\)")


def fixing_edit(
    rule: Rule, row: Row, predicted: Collection[EditKey], refused: Collection[EditKey | None] = ()
) -> EditKey | None:
    """The edit that fixes what a row says: of those that do the first predicted one, else the first refused one, else
    the last."""
    edits = [edit for edit in (rule.edit(row), rule.otherwise(row)) if edit is not None]
    known = (edit for some in (predicted, refused) for edit in edits if edit in some)
    return next(known, edits[-1] if edits else None)


def culprit(row: Row) -> dict[str, Any]:
    """The columns of a row that name who or what is at fault."""
    return {name: row[name] for name in CULPRIT_COLUMNS if row.get(name) is not None}


def evidence_sql(rule: Rule, run: str, iteration: int, row: Row) -> str:
    """The query that yields this row alone, ready to be asked."""
    keys = [name for name in (*CULPRIT_COLUMNS, *rule.key) if name in row]
    wanted = " AND ".join(f"{name} IS NOT DISTINCT FROM {_literal(row[name])}" for name in keys)
    asked = with_values(rule.sql, {"run": _literal(run), "iteration": _literal(int(iteration))}).strip()
    return f"SELECT * FROM (\n{asked}\n) WHERE {wanted or 'true'}"


def places_sql(rule: Rule, finding: Row, others: Collection[Row], most: int) -> str | None:
    """The query for the places of a finding in time, the weightiest first; None where its rule has none.

    Args:
        finding: a row of table ``findings``. others: all of them; a rank that has a finding of its own is not in one of
            the same rule that names no rank.
        most: places.
    """
    if rule.places is None:
        return None
    chosen = [f"{key} = {_literal(finding[key])}" for key in rule.places.keys if finding[key] is not None]
    alone = {row["rank"] for row in others if row["rule"] == rule.name and row["rank"] is not None}
    if finding["rank"] is None and alone:
        chosen.append(f"rank NOT IN ({', '.join(map(str, sorted(alone)))})")
    return (
        f"SELECT rank, start_ns, duration_ns, weight FROM (\n{rule.places.sql.strip()}\n)\n"
        f"WHERE weight > 0 AND {' AND '.join(chosen) or 'true'}\n"
        f"ORDER BY weight DESC, rank, start_ns LIMIT {most}"
    )


def _literal(value: object) -> str:
    if value is None or isinstance(value, int):
        return "NULL" if value is None else str(value)
    return quoted_text(str(value))
