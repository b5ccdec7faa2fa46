"""How commands print: one table style, one number style, JSON that any program can read."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import typer

from traceviz_dag.commands.plain_table import is_plain, plain_table

MOST_ROWS = 200
"""Rows that a printed table shows at the most; JSON shows all."""

ABSENT = "–"
_WIDTH = 200


def print_json(value: Any) -> None:
    """Print a value as JSON; NaN is null, NULL is null."""
    typer.echo(msgspec.json.format(msgspec.json.encode(_plain(value)), indent=2).decode())


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a table; what is cut off is said."""
    every = list(rows)
    right = [
        bool(every) and all(isinstance(row[index], int | float) or _is_number(row[index]) for row in every)
        for index in range(len(columns))
    ]
    shown = [[ABSENT if value is None else str(value) for value in row] for row in every[:MOST_ROWS]]
    width = None if sys.stdout.isatty() else _WIDTH
    plain = plain_table(columns, right, shown, width) if width is not None and len(title) <= width else None
    if plain is not None and is_plain(title):
        sys.stdout.write(f"\n{title}\n{plain}")
    else:
        _print_with_rich(title, columns, right, shown, width)
    if len(every) > MOST_ROWS:
        typer.echo(f"{len(every) - MOST_ROWS} more rows; --json prints all")


def _print_with_rich(
    title: str, columns: Sequence[str], right: Sequence[bool], rows: Sequence[Sequence[str]], width: int | None
) -> None:
    # Imported here because most output goes to pipes, and the import takes as long as some commands.
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column, of_right in zip(columns, right, strict=True):
        table.add_column(column, justify="right" if of_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(file=sys.stdout, width=width)
    console.print(f"\n{title}", style="bold", markup=False, highlight=False)
    console.print(table)


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
