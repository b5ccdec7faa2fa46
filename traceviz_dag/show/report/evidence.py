"""Numbers of a page with the query and the rows that they come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from markupsafe import Markup, escape

from traceviz_dag.analyze.causes.what_if import WhatIf
from traceviz_dag.lake.catalogue import quoted_text, with_values
from traceviz_dag.printable import printable
from traceviz_dag.show.source import TableSource

MOST_ROWS = 40
"""Rows that a page shows of a query; the query itself gives all."""

_SHORT = 28
"""Letters of a fact that stays in one line."""


class ReportSource(TableSource, Protocol):
    """The tables of one iteration, and answers to queries about it."""

    def holds(self, table: str) -> bool:
        """Whether a table of the iteration was written, with or without rows."""

    def ask(self, sql: str) -> pa.Table:
        """The rows of a query, with ``$run`` and ``$iteration`` bound."""

    def ask_run(self, sql: str) -> pa.Table:
        """The same over all iterations of the run."""

    def replays(self) -> Iterator[tuple[int | None, WhatIf]]:
        """The training steps, ready to be replayed: the number of each, None without one.

        Raises:
            NoEvidenceError: nothing can be replayed, with the reason.
        """


@dataclass(slots=True)
class Book:
    """The evidence of a page, as it is written.

    Attributes:
        entries: per entry its title, its query as one can paste it, and its rows.
    """

    source: ReportSource
    entries: list[tuple[str, str, pa.Table]] = field(default_factory=list)
    _answers: dict[str, pa.Table] = field(default_factory=dict)
    """Query → its rows: parts of a page quote the same ones."""

    def ask(self, title: str, sql: str) -> Asked:
        """Ask the iteration; numbers of the answer can be shown with what they rest on."""
        if sql not in self._answers:
            self._answers[sql] = self.source.ask(sql)
        return self._asked(title, sql, self._answers[sql])

    def ask_run(self, title: str, sql: str) -> Asked:
        """Ask all iterations of the run."""
        return self._asked(title, sql, self.source.ask_run(sql))

    def quote(self, title: str, sql: str) -> str:
        """Keep a query that somebody else wrote, with its rows; returns its name on the page."""
        return self.ask(title, sql).name

    def of(self, source: ReportSource) -> Book:
        """A book on the same pages about another iteration."""
        return Book(source, self.entries)

    def bound(self, sql: str) -> str:
        """A query as one can paste it."""
        source = self.source
        return with_values(sql, {"run": quoted_text(source.run), "iteration": str(source.iteration)}).strip()

    def _asked(self, title: str, sql: str, rows: pa.Table) -> Asked:
        self.entries.append((title, self.bound(sql), rows))
        return Asked(f"evidence-{len(self.entries) - 1}", rows.to_pylist(), rows.num_rows)

    def markup(self) -> Markup:
        """All entries, each a template that the page's script shows when somebody asks for it."""
        return Markup("").join(
            Markup('<template id="evidence-{}"><h2>{}</h2>{}{}<pre class="query">{}</pre></template>').format(
                number, title, rows_table(rows.slice(0, MOST_ROWS)), _left_out(rows), sql
            )
            for number, (title, sql, rows) in enumerate(self.entries)
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows of a query, and the name of its evidence on the page."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    count: int

    def fact(self, text: str) -> Markup:
        """A number, or a few words with one, that leads to its rows and its query."""
        short = " data-short" if len(text) <= _SHORT else ""
        named = f'<a href="#" class="fact"{short} data-evidence="{self.name}">'
        return Markup(f"{named}{escape(printable(text))}</a>")

    def statement(self, text: str) -> Markup:
        """A sentence about all rows together, with a button that shows them."""
        button = '{} <button type="button" class="chip" data-evidence="{}">rows and SQL</button>'
        return Markup(button).format(printable(text), self.name)


def rows_table(table: pa.Table) -> Markup:
    """Rows as a table, with the names of their columns."""
    return grid(table.column_names, (map(_cell, row.values()) for row in table.to_pylist()))


def grid(columns: Iterable[str], rows: Iterable[Iterable[str]], caption: Markup | None = None) -> Markup:
    """A table; what is no markup is escaped. Put together as text: formatting each cell takes five times as long."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    told = f"{caption or ''}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return Markup(f'<div class="scroll"><table>{told}</table></div>')


def _left_out(table: pa.Table) -> Markup:
    if table.num_rows <= MOST_ROWS:
        return Markup("")
    return Markup('<p class="quiet">The first {} of {:,} rows.</p>').format(MOST_ROWS, table.num_rows)


def _cell(value: object) -> Markup:
    if value is None:
        return Markup('<span class="quiet">NULL</span>')
    if isinstance(value, int) and not isinstance(value, bool):
        return escape(f"{value:,}")
    return escape(printable(str(value)))
