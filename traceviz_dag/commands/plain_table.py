"""Tables for pipes and files, in the very letters that rich prints, without what colours and narrow screens cost."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import east_asian_width

_GAP = "   "


def plain_table(headers: Sequence[str], right: Sequence[bool], rows: Sequence[Sequence[str]], width: int) -> str | None:
    """The lines of a table as ``rich`` prints it without colours, box SIMPLE_HEAD.

    Args:
        right: which columns are set against the right.
        width: letters that a line has at the most.

    Returns:
        None where that takes more than setting letters in columns: a line that does not fit, letters of another width
        than one, line breaks, columns without a name, or what ``rich`` takes for markup.
    """
    every = [headers, *rows]
    if not all(headers) or not all(is_plain(cell) for row in every for cell in row):
        return None
    widths = [max(len(row[column]) for row in every) for column in range(len(headers))]
    total = sum(widths) + len(_GAP) * (len(widths) - 1)
    if total + 2 > width:
        return None
    lines = [
        _GAP.join(
            cell.rstrip().rjust(wide) if of_right else cell.ljust(wide)
            for cell, wide, of_right in zip(row, widths, right, strict=True)
        )
        for row in every
    ]
    blank = " " * total
    return "".join(f" {line} \n" for line in (blank, lines[0], "─" * total, *lines[1:], blank))


def is_plain(text: str) -> bool:
    """Whether a text is shown letter by letter: no markup, no emoji by name, nothing wide and nothing invisible."""
    if text.isascii():
        return text.isprintable() and "[" not in text and not _may_name_emoji(text)
    return (
        text.isprintable()
        and "[" not in text
        and not _may_name_emoji(text)
        and all(letter.isascii() or letter in "–…·" or _is_one_wide(letter) for letter in text)
    )


def _may_name_emoji(text: str) -> bool:
    if text.count(":") < 2:
        return False
    from rich.emoji import Emoji

    return Emoji.replace(text) != text


def _is_one_wide(letter: str) -> bool:
    return east_asian_width(letter) in ("Na", "N") and letter.isalnum()
