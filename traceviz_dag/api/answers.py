"""What the API returns: answers with the sentence that the command prints, their rows, evidence and conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze.measures import AS_IS, Unit, measure
from traceviz_dag.analyze.wording import ABSENT, counted
from traceviz_dag.printable import printable

if TYPE_CHECKING:
    import duckdb
    from matplotlib.figure import Figure as MatplotlibFigure

MOST_SHOWN = 20
"""Rows that a notebook shows of an answer."""

_MOST_COLUMNS = 12


@dataclass(frozen=True, slots=True)
class Source:
    """What an answer is made of.

    Attributes:
        digest: of the traces' digests, in the order of the ranks; equal sources have equal digests.
        window: what is measured, such as ``training step``.
    """

    run: str
    iteration: int
    ranks: tuple[int, ...]
    digest: str
    window: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer:
    """An answer about an iteration.

    Attributes:
        statement: what the command prints first. statements: all sentences, that one included.
        rows: the rows of the answer, as the command's ``--json`` has them. values: the whole of it.
        row_ids: the columns that identify a row. evidence_sql: a query for ``Job.sql`` whose rows have these columns
            and the numbers; None where no table has them.
        command: the command line that gives the answer again.
        partial: whether something was not read; None where nothing states how much there is. conditions: sentences on
            what was not read, and on clocks.
        certain: False where the traces do not show the answer, or not for sure; ``reason`` says why.
        sources: what it is made of; of a comparison, of each side.
    """

    statement: str
    statements: tuple[str, ...]
    rows: Sequence[Any]
    values: Mapping[str, Any]
    row_ids: tuple[str, ...]
    evidence_sql: str | None
    command: str
    partial: bool | None
    conditions: tuple[str, ...]
    certain: bool
    reason: str | None
    sources: tuple[Source, ...]

    def relation(self) -> duckdb.DuckDBPyRelation:
        """The rows as a DuckDB relation, with ``df()``, ``arrow()`` and ``pl()``; without rows, an empty one."""
        import pyarrow as pa

        from traceviz_dag.api.relations import relation

        rows = [_plain(row) for row in self.rows]
        # DuckDB has no relation without a column.
        return relation(pa.Table.from_pylist(rows) if rows else pa.table({"statement": pa.array([], pa.string())}))

    def __repr__(self) -> str:
        return f"<{printable(self.statement)}: {counted(len(self.rows), 'row', 'rows')}>"

    def _repr_html_(self) -> str:
        notes = [*self.conditions, *([self.reason] if self.reason else [])]
        return "".join(
            [
                f"<p><b>{_text(self.statement)}</b></p>",
                *(f"<p><i>{_text(note)}</i></p>" for note in notes),
                html_table([_plain(row) for row in self.rows]),
            ]
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of table ``findings``: what is wrong, who is at fault, what fixing it would save, in nanoseconds.

    Attributes:
        finding: its number in the table. severity: finding, note or not_looked_at. class_: fault or opportunity.
        culprit: rank, ranks, stage, dimension, module or operation at fault.
        gain_ns, gain_low_ns, gain_high_ns: predicted saving and its error bar; None with ``refusal``. Gains do not add
            up.
        evidence_sql: its one row has every number of the statement but the gain's.
    """

    finding: int
    rule: str
    class_: str
    severity: str
    culprit: Mapping[str, Any]
    statement: str
    detail: str | None
    remedy: str | None
    step_ns: int | None
    gain_ns: int | None
    gain_low_ns: int | None
    gain_high_ns: int | None
    refusal: str | None
    confidence: str
    evidence_sql: str | None


@dataclass(frozen=True, slots=True)
class Gain:
    """What an edit would save, as the replay of the step predicts it.

    Attributes:
        edit: its word, such as ``fix_rank``; ``together`` for several at once. statement: the saving in a sentence.
        predicted_step_ns: the step with the edit. gain_low_ns, gain_high_ns: ends of the error bar.
    """

    edit: str
    rank: int | None
    ranks: str | None
    dimension: str | None
    factor: float | None
    step_ns: int
    predicted_step_ns: int
    gain_ns: int
    gain_low_ns: int
    gain_high_ns: int
    statement: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of an iteration.

    Attributes:
        title: its sentence. figure: as matplotlib has it.
    """

    kind: str
    title: str
    figure: MatplotlibFigure

    def png(self) -> bytes:
        """The picture as PNG."""
        from traceviz_dag.show.page.rendering import preview

        return preview(self.figure)

    def _repr_png_(self) -> bytes:
        return self.png()


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as an HTML table: the first of many, and the columns that hold plain values."""
    if not rows:
        return ""
    names = [
        name
        for name in rows[0]
        if any(row[name] is not None for row in rows) and not any(isinstance(row[name], list | dict) for row in rows)
    ][:_MOST_COLUMNS]
    units = {name: measure(name).unit for name in names}
    heads = (f"{measure(name).header} {unit.word}".strip() for name, unit in units.items())
    head = "".join(f"<th>{_text(text)}</th>" for text in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{_text(row[name], unit)}</td>' for name, unit in units.items())}</tr>"
        for row in rows[:MOST_SHOWN]
    )
    left = len(rows) - MOST_SHOWN
    more = f"<p>{counted(left, 'more row', 'more rows')}</p>" if left > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _plain(row: Any) -> dict[str, Any]:
    from dataclasses import asdict, is_dataclass

    return asdict(row) if is_dataclass(row) and not isinstance(row, type) else dict(row)


def _text(value: object, unit: Unit = AS_IS) -> str:
    if value is None:
        return ABSENT
    # A column of a query may have the name of another one, with texts.
    if not unit.number or isinstance(value, int | float):
        value = unit.cell(value)
    return escape(printable(f"{value:.6g}" if isinstance(value, float) else str(value)))
