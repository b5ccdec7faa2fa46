"""Tables for files and pipes, where nothing has a colour: the text that rich makes, without importing it; Markdown."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from traceviz_dag.commands.common.columns import BETWEEN, EDGES

_NARROW = frozenset("–…·×µ▁▂▃▄▅▆▇█")
"""Letters beyond ASCII that are one cell wide for certain."""

_ASKS_FOR_COLOUR = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def plain_width(otherwise: int) -> int | None:
    """Letters of a line of standard output if it takes plain text; None where rich must see to it.

    Args:
        otherwise: the width where ``COLUMNS`` states none.
    """
    encoding = (sys.stdout.encoding or "").lower()
    if sys.stdout.isatty() or not encoding.startswith("utf") or any(os.environ.get(name) for name in _ASKS_FOR_COLOUR):
        return None
    stated = os.environ.get("COLUMNS")
    if not stated:
        return otherwise
    return int(stated) if stated.isdecimal() and stated.isascii() and int(stated) else None


def plain_line(text: str, width: int) -> str | None:
    """The text as a line, None if it does not fit or its width is not certain."""
    return f"{text}\n" if len(text) <= width and _is_plain(text) else None


def plain_table(names: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], width: int) -> str | None:
    """A table of which every cell fits on one line; None if one does not, or its width is not certain."""
    if not all(map(_is_plain, (*names, *(cell for row in rows for cell in row)))):
        return None
    letters = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    whole = sum(letters) + BETWEEN * (len(letters) - 1)
    if whole + EDGES > width or not all(letters):
        return None

    def line(cells: Sequence[str]) -> str:
        placed = [
            cell.rjust(own) if number else cell.ljust(own)
            for cell, own, number in zip(cells, letters, numeric, strict=True)
        ]
        return f" {(' ' * BETWEEN).join(placed)} \n"

    blank, rule = f"{' ' * (whole + EDGES)}\n", f" {'─' * whole} \n"
    return "".join([blank, line(names), rule, *map(line, rows), blank])


_MEANT = re.compile(r"[\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w)")
"""Letters that mean something in Markdown, where they do."""


def markdown_table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    """A heading, where there is one, and the table in GitHub's Markdown; texts in it are no markup."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(map(_in_markdown, cells))} |\n"

    rule = f"| {' | '.join('---:' if number else '---' for number in numeric)} |\n"
    heading = f"\n### {_in_markdown(title)}\n\n" if title else ""
    return "".join([heading, line(names), rule, *map(line, rows)])


def _in_markdown(text: str) -> str:
    # Trees are indented; Markdown drops other spaces.
    indent = "\u00a0" * (len(text) - len(text.lstrip(" ")))
    return indent + _MEANT.sub(r"\\\g<0>", " ".join(text.split()))


def _is_plain(text: str) -> bool:
    # Where a cell is moved to the right, rich leaves out the spaces behind it.
    if text[-1:] == " " or not text.isprintable():
        return False
    return text.isascii() or all(letter.isascii() or letter in _NARROW for letter in text)
