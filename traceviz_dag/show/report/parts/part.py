"""What a part of a report is, and what it is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from traceviz_dag.show.report.evidence import Book
from traceviz_dag.show.report.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of an iteration before its page is written.

    Attributes:
        book: asks queries, and keeps them as evidence.
        timeline: what the timeline shows and leaves out.
        mark: what of the iteration was not read, in words; empty where all of it was.
        remedies: rule → what to do about its findings.
        findings: rows of table ``findings``.
    """

    book: Book
    timeline: Timeline
    mark: str
    remedies: Mapping[str, str]
    findings: Sequence[Mapping[str, Any]]
    has_rows: Callable[[str], bool] = field(default=lambda table: True)


@dataclass(frozen=True, slots=True)
class Part:
    """A tab of the page.

    Attributes:
        name: in the page's address. title: on its tab.
        tables: it is left out, with a word about it, where one of these has no rows.
        markup: makes it; None where the tables tell nothing.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    markup: Callable[[Told], Markup | None]


def section(title: str, *content: Markup | str) -> Markup:
    """A section with its heading."""
    return Markup("<section><h2>{}</h2>{}</section>").format(title, Markup("").join(content))


def paragraph(*content: Markup | str, quiet: bool = False) -> Markup:
    """A paragraph; texts in it are escaped."""
    return Markup("<p{}>{}</p>").format(Markup(' class="quiet"') if quiet else "", Markup("").join(content))


def table(columns: Sequence[str], rows: Sequence[Sequence[Markup | str]], caption: str = "") -> Markup:
    """A table; cells that hold digits alone are aligned as numbers by the style sheet's tabular figures."""
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(column) for column in columns)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row))
        for row in rows
    )
    told = Markup("<caption>{}</caption>").format(caption) if caption else ""
    return Markup('<div class="scroll"><table>{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>').format(
        told, head, body
    )
