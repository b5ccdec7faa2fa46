"""What a part of a report is, and what it is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from markupsafe import Markup

from traceviz_dag.analyze.findings.verdict import Lead, Verdict
from traceviz_dag.analyze.measures import Unit, measure
from traceviz_dag.printable import printable
from traceviz_dag.show.page.gain_rows import signed_share
from traceviz_dag.show.report.evidence import Asked, Book, ReportSource, grid
from traceviz_dag.show.report.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Page:
    """What is known of an iteration before its page is written.

    Attributes:
        book: asks queries, and keeps them as evidence.
        timeline: what the timeline shows and leaves out.
        mark: what of the iteration was not read, in words; empty where all of it was.
        findings: rows of table ``findings``. lead: what they say first.
        against: another iteration to compare with, and what of it was not read; None without one.
        verdict: on the iteration; None where nothing was judged.
    """

    book: Book
    timeline: Timeline
    mark: str
    findings: Sequence[Mapping[str, Any]]
    lead: Lead
    against: ReportSource | None = None
    against_mark: str = ""
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A tab of the page.

    Attributes:
        name: in the page's address. title: on its tab.
        tables: what it is made from.
        markup: makes it; None where the tables show nothing.
        expected: where they show nothing, its tab says so; else there is no tab.
        relation: how what it measures differs from what limits the step, which the tab then says first.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    markup: Callable[[Page], Markup | None]
    expected: bool = True
    relation: str = ""


def section(title: str, *content: Markup | str) -> Markup:
    """A section with its heading."""
    return Markup("<section><h2>{}</h2>{}</section>").format(title, Markup("").join(content))


def paragraph(*content: Markup | str, quiet: bool = False) -> Markup:
    """A paragraph; texts in it are escaped."""
    return Markup("<p{}>{}</p>").format(
        Markup(' class="quiet"') if quiet else "", Markup("").join(map(_shown, content))
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[Markup | str]], caption: str = "") -> Markup:
    """A table; cells that hold digits alone are aligned as numbers by the style sheet's tabular figures."""
    told = Markup("<caption>{}</caption>").format(_shown(caption)) if caption else None
    return grid(columns, (map(_shown, row) for row in rows), told)


def measured(
    asked: Asked | None,
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[Any],
    caption: str = "",
    apart: Mapping[str, Asked | None] = {},
) -> Markup:
    """A table of columns as their measures say; numbers lead to the rows that they are from.

    Args:
        asked: None where no query answers.
        columns: names; or a name and the header where the table calls it otherwise.
        apart: columns of other rows; None of numbers that no single query answers.
    """
    named = [(each, measure(each).header) if isinstance(each, str) else each for each in columns]
    units = [measure(name).unit for name, _ in named]

    def cell(value: Any, unit: Unit, source: Asked | None) -> Markup | str:
        if value is None:
            return "not known" if unit.number else "–"
        if isinstance(value, Markup):
            return value
        said = unit.said(value).replace("-", "−") if unit.number else unit.said(value)
        return source.fact(said) if source and unit.number else said

    cells = [
        [cell(row[name], unit, apart.get(name, asked)) for (name, _), unit in zip(named, units, strict=True)]
        for row in rows
    ]
    return table([header for _, header in named], cells, caption)


def _shown(text: Markup | str) -> Markup | str:
    """Markup as it is; of other texts what can be shown, whatever a trace calls a thing."""
    return text if isinstance(text, Markup) else printable(text)


MOST_SHOWN = 32
"""Rows that a part shows of a long list."""

_Row = TypeVar("_Row")


def top(rows: Sequence[_Row], words: str, most: int = MOST_SHOWN) -> tuple[Sequence[_Row], Markup]:
    """The first rows, and a paragraph that says how many are left out; empty where none is."""
    if len(rows) <= most:
        return rows, Markup("")
    return rows[:most], paragraph(f"The first {most} of {len(rows):,} {words}.", quiet=True)


def percent(share_of_one: float) -> str:
    """A share of one in percent, as ``signed_share`` writes it."""
    return signed_share(round(share_of_one * 1e6), 1_000_000)


def data_rows(name: str, document: str) -> Markup:
    """JSON that the page's script reads; no text in it can end the element."""
    kept = document.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup('<template id="{}-rows">{}</template>').format(name, Markup(kept))


def sentence(text: str) -> Markup:
    """A sentence in a table, which stays wide enough to be read."""
    return Markup('<span class="words">{}</span>').format(printable(text))


LONGEST_NAME = 160


def shortened(name: str | None) -> Markup:
    """A name as a table shows it: the first letters of a long one, all of it to be read on hover."""
    text = printable(name or "unknown")
    if len(text) <= LONGEST_NAME:
        return Markup('<span class="name">{}</span>').format(text)
    hint = text if len(text) <= _LONGEST_HINT else f"{text[:_LONGEST_HINT]}…"
    return Markup('<span class="name" title="{}">{}…</span>').format(hint, text[:LONGEST_NAME])


_LONGEST_HINT = 1_000
