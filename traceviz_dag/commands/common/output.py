"""How commands print: one table style, one number style, JSON that any program can read.

Names in traces are text of others. While a command runs, ``plain_streams`` lets no control character of them reach a
terminal; colours and progress bars go past it through ``terminal``, which cleans what it is given itself.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from textwrap import wrap
from typing import IO, TYPE_CHECKING, Any, TypeVar

import msgspec
import typer

from traceviz_dag.analyze.measures import SHARE, Unit, measure
from traceviz_dag.analyze.wording import ABSENT
from traceviz_dag.commands.common.columns import least_width, stacked, widths
from traceviz_dag.commands.common.plain_table import markdown_table, plain_line, plain_table, plain_width
from traceviz_dag.printable import printable, without_surrogates

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_ROWS = 20
"""Rows of a table that are printed where nobody asked for more."""

MARKDOWN = "TRACEVIZ_MARKDOWN"
"""The variable that has tables printed as Markdown."""

_IN_TITLES = ("ms", "MiB")
"""Units that a title states for all columns of a table that have them."""

_Row = TypeVar("_Row")
_WIDTH = 200
"""Letters of a line where no terminal says how many it shows."""


class PlainStream:
    """A text stream that shows control characters as visible escapes; line feeds and tabs stay.

    Args:
        stream: where the text goes.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text and return its length, as it was given."""
        self.stream.write(printable(text, lines=True))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_MOST_ROWS = ContextVar("most_rows", default=MOST_ROWS)


@contextmanager
def at_most(rows: int) -> Iterator[None]:
    """Print at most this many rows of each table; 0 for all."""
    before = _MOST_ROWS.set(rows)
    try:
        yield
    finally:
        _MOST_ROWS.reset(before)


def most_printed() -> int | None:
    """How many rows of a table are printed; None for all."""
    return _MOST_ROWS.get() or None


def shown(rows: Sequence[_Row], *, last: bool = False) -> Sequence[_Row]:
    """The rows of a table that are printed: the first of many, or the last."""
    most = min(most_printed() or len(rows), len(rows))
    return rows[len(rows) - most :] if last else rows[:most]


def rest_of(count: int) -> str:
    """What is left out of a table of this many rows, and how to see it; empty where nothing is."""
    left = count - _MOST_ROWS.get()
    return f"{left:,} more {'row' if left == 1 else 'rows'}: --all" if 0 < left < count else ""


@contextmanager
def plain_streams() -> Iterator[None]:
    """Let nothing but plain text through to standard output and standard error."""
    with redirect_stdout(_plain_stream(sys.stdout)), redirect_stderr(_plain_stream(sys.stderr)):
        yield


def terminal(*, stderr: bool = False, width: int | None = None) -> Console:
    """A rich console on a standard stream; what it prints as text is cleaned first."""
    # Imported here: programs that ask for JSON need not wait for it.
    from rich.console import Console
    from rich.text import Text

    class CleanConsole(Console):
        """A console that cleans text before it styles it."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text, lines=True), **options)

    stream = sys.stderr if stderr else sys.stdout
    return CleanConsole(file=stream.stream if isinstance(stream, PlainStream) else stream, width=width, stderr=stderr)


def print_json(value: Any) -> None:
    """Print a value as JSON; NaN is null, NULL is null."""
    typer.echo(printable(msgspec.json.format(msgspec.json.encode(_plain(value)), indent=2).decode(), lines=True))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], count: int = 0, *, last: bool = False
) -> None:
    """Print rows as a table; columns that do not fit on the screen follow below, and what is left out is said.

    Without rows there is no table but in Markdown: its title says "none".

    Args:
        count: how many rows there are, where ``rows`` are those ``shown`` alone.
        last: show the last of many instead of the first.
    """
    count, title = max(count, len(rows)), printable(title)
    every, more = shown(rows, last=last), rest_of(count)
    title = f"{title}: the {'last' if last else 'first'} {len(every)} of {count:,}" if more else title
    if not every and not os.environ.get(MARKDOWN):
        print_wrapped(f"{title}: none", 2, "\n")
        return
    known = [[row[place] for row in every if row[place] is not None] for place in range(len(columns))]
    numeric = [all(map(_is_number, values)) and bool(values) for values in known]
    # Texts are no markup, whatever brackets a name holds.
    cells = [[ABSENT if value is None else printable(str(value)) for value in row] for row in every]
    if os.environ.get(MARKDOWN):
        # A line right below would be a row of it.
        sys.stdout.write(markdown_table(title, columns, cells, numeric) + (f"\n{more}\n" if more else "\n"))
        return
    width = plain_width(_WIDTH)
    text = None if width is None else _plain_text(title, columns, cells, numeric, more, width)
    if text is not None:
        sys.stdout.write(text)
        return
    console = terminal(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _WIDTH)
    console.print(f"\n{title}", style="bold", markup=False, highlight=False)
    for block in stacked(columns, cells, numeric, console.width):
        names = [columns[place] for place in block]
        printed = [[row[place] for place in block] for row in cells]
        console.print(_table(names, printed, [numeric[place] for place in block], console.width))
    if more:
        console.print(more)


def print_columns(
    title: str, rows: Sequence[Any], columns: Sequence[Sequence[str]], count: int = 0, *, last: bool = False
) -> None:
    """Print columns of rows as their measures say; a unit that several share is in the title, another in its header.

    Args:
        rows: mappings or objects. columns: names, and a header where the table calls one otherwise.
        count, last: as for ``print_table``.
    """
    named = [(each, measure(each).header) if isinstance(each, str) else each for each in columns]
    units = [measure(name).unit for name, _ in named]
    words = Counter(unit.word for unit in units)
    shared = max(_IN_TITLES, key=words.__getitem__)
    shared = shared if words[shared] > 1 else ""
    headers = [
        header if unit.word == shared else f"{header} {unit.word}".strip()
        for (_, header), unit in zip(named, units, strict=True)
    ]
    cells = []
    for row in shown(rows, last=last):
        values = [row[name] if isinstance(row, Mapping) else getattr(row, name) for name, _ in named]
        cells.append([_cell(value, unit) for value, unit in zip(values, units, strict=True)])
    print_table(f"{title}, {shared}" if shared else title, headers, cells, max(count, len(rows)), last=last)


def _cell(value: Any, unit: Unit) -> object:
    if value is None:
        return ABSENT if unit.number else None
    return unit.cell(value)


def _plain_text(
    title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool], more: str, width: int
) -> str | None:
    """What ``print_table`` prints where nothing is coloured and nothing must be broken; None elsewhere."""
    parts = [plain_line(title, width)]
    for block in stacked(columns, cells, numeric, width):
        names, numbers = [columns[place] for place in block], [numeric[place] for place in block]
        parts.append(plain_table(names, [[row[place] for place in block] for row in cells], numbers, width))
    parts += [plain_line(more, width)] if more else []
    whole = [part for part in parts if part is not None]
    return "".join(["\n", *whole]) if len(whole) == len(parts) else None


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], width: int) -> Table:
    """A table of columns that fit."""
    # Imported here: programs that ask for JSON need not wait for it.
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns = [[row[place] for row in rows] for place in range(len(names))]
    wanted = [max(map(len, [name, *cells])) for name, cells in zip(names, columns, strict=True)]
    least = [least_width(*each) for each in zip(names, columns, numeric, strict=True)]
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name, number, letters in zip(names, numeric, widths(wanted, least, width), strict=True):
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold", width=letters)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def of_ranks(rank: int | None) -> str:
    """Whose sums a table has: those of one rank, or of all."""
    return "all ranks together" if rank is None else f"rank {rank} alone"


def home_option(home: Path) -> str:
    """``--home …`` as a shell takes it, for commands that are printed as hints."""
    return f"--home {shlex.quote(str(home))}"


def percent(share: float | None) -> str:
    """A share for people: percent with one decimal."""
    return ABSENT if share is None else str(SHARE.cell(share))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, str)
        and (value == ABSENT or value.rstrip("%").replace(",", "").replace(".", "", 1).lstrip("+-").isdigit())
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _plain_stream(stream: Any) -> Any:
    return stream if isinstance(stream, PlainStream) else PlainStream(stream)


def print_wrapped(text: str, indent: int = 0, lead: str = "") -> None:
    """Print a text that a terminal would break, with later lines under the first; elsewhere it stays one line.

    Args:
        indent: spaces before each line but the first. lead: before the first.
    """
    width = shutil.get_terminal_size((0, 0)).columns if sys.stdout.isatty() or os.environ.get("COLUMNS") else 0
    if width <= indent:
        typer.echo(f"{lead}{text}")
        return
    typer.echo("\n".join(wrapped(text, width, lead, " " * indent)) or lead)


_UNIT = re.compile(r"(?<=\d) (?=(?:ns|µs|ms|s|%)(?!\w))")


def wrapped(text: str, width: int, lead: str = "", indent: str = "") -> list[str]:
    """A text in lines of this width; a number stays with its unit.

    Args:
        lead, indent: before the first line, and before the others.
    """
    lines = wrap(
        _UNIT.sub("\u00a0", text),
        width,
        initial_indent=lead,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]
