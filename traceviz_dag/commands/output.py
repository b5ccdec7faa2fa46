"""How commands print: one table style, one number style, JSON that any program can read."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer

MOST_ROWS = 200
"""Rows that a printed table shows at the most; JSON shows all."""

ABSENT = "–"
_WIDTH = 200
"""Letters of a line where no terminal says how many it shows."""


def print_json(value: Any) -> None:
    """Print a value as JSON; NaN is null, NULL is null."""
    typer.echo(msgspec.json.format(msgspec.json.encode(_plain(value)), indent=2).decode())


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a table; what is cut off is said."""
    # Imported here: programs that ask for JSON need not wait for it.
    from rich import box
    from rich.console import Console
    from rich.table import Table

    every = list(rows)
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        numeric = bool(every) and all(isinstance(row[index], int | float) or _is_number(row[index]) for row in every)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in every[:MOST_ROWS]:
        table.add_row(*(ABSENT if value is None else str(value) for value in row))
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDTH)
    console.print(f"\n{title}", style="bold", markup=False, highlight=False)
    console.print(table)
    if len(every) > MOST_ROWS:
        console.print(f"{len(every) - MOST_ROWS} more rows; --json prints all")


def home_option(home: Path) -> str:
    """``--home …`` as a shell takes it, for commands that are printed as hints."""
    return f"--home {shlex.quote(str(home))}"


def milliseconds(nanoseconds: int | None) -> str:
    """A duration for people: milliseconds with three decimals."""
    return ABSENT if nanoseconds is None else f"{nanoseconds / 1e6:,.3f}"


def percent(share: float | None) -> str:
    """A share for people: percent with one decimal."""
    return ABSENT if share is None else f"{share:.1%}"


def _is_number(value: object) -> bool:
    return isinstance(value, str) and (
        value == ABSENT or value.rstrip("%").replace(",", "").replace(".", "", 1).lstrip("-").isdigit()
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
