"""How the rows of a query are printed: all of them as JSON, or as many rows and columns as a screen shows."""

from __future__ import annotations

import os
import sys

import msgspec
import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from traceviz_dag.commands.common.output import MARKDOWN, most_printed, rest_of
from traceviz_dag.commands.common.plain_table import markdown_table
from traceviz_dag.printable import printable

_WIDEST_CELL = 48
_CELL_PADDING = 3


def as_json(rows: pa.Table) -> str:
    """The rows as a JSON list of objects, a line each; values that are not finite are null, integers stay exact."""
    encoder = msgspec.json.Encoder(decimal_format="number", enc_hook=str)
    lines = [encoder.encode(row).decode() for batch in rows.to_batches() for row in batch.to_pylist()]
    return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"


def print_rows(rows: pa.Table, console: Console) -> None:
    """As many rows and columns as are of use on a screen, and what was left out."""
    cells = [[_cell(value) for value in column[: most_printed()].to_pylist()] for column in rows.columns]
    names = [printable(name) for name in rows.column_names]
    if os.environ.get(MARKDOWN):
        numeric = [_is_numeric(column.type) for column in rows.columns]
        sys.stdout.write(markdown_table("", names, list(zip(*cells, strict=True)), numeric))
        typer.echo(_summary(rows.num_rows, []))
        return
    fitting = _columns_that_fit(names, cells, console.width)
    table = Table()
    for name, column in zip(names[:fitting], rows.columns, strict=False):
        table.add_column(
            Text(name), justify="right" if _is_numeric(column.type) else "left", no_wrap=True, overflow="ellipsis"
        )
    for row in zip(*cells[:fitting], strict=True):
        table.add_row(*map(Text, row))
    console.print(table)
    console.print(Text(_summary(rows.num_rows, names[fitting:])), soft_wrap=True)


def _is_numeric(of: pa.DataType) -> bool:
    return pa.types.is_integer(of) or pa.types.is_floating(of) or pa.types.is_decimal(of)


def _columns_that_fit(names: list[str], cells: list[list[str]], width: int) -> int:
    used = 1
    for count, (name, column) in enumerate(zip(names, cells, strict=True)):
        used += max(map(len, [name, *column])) + _CELL_PADDING
        if used > width:
            return max(count, 1)
    return len(names)


def _summary(count: int, hidden: list[str]) -> str:
    text = "1 row" if count == 1 else f"{count:,} rows"
    rest = rest_of(count)
    if hidden:
        text += f"; {len(hidden)} more columns do not fit, --json prints them: {', '.join(hidden)}"
    return f"{text}; {rest}" if rest else text


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = "".join(character if character.isprintable() else "·" for character in text)
    return text if len(text) <= _WIDEST_CELL else text[: _WIDEST_CELL - 1] + "…"
