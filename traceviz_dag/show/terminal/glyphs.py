"""Bars and curves of block characters, and texts of others cut to a width."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, chop_cells

from traceviz_dag.printable import printable

HEIGHTS = " ▁▂▃▄▅▆▇█"
_WIDTHS = " ▏▎▍▌▋▊▉█"


def bar(value: int, most: int, width: int) -> str:
    """A bar of up to ``width`` characters, to an eighth of one, as long as the value is of the most; padded."""
    eighths = 0 if most <= 0 else min(max(value, 0) * width * 8 // most, width * 8)
    return ("█" * (eighths // 8) + _WIDTHS[eighths % 8].strip()).ljust(width)


def curve(values: Sequence[int | None], width: int) -> str:
    """The last values as columns from 0 to the highest, one character each; a blank where there is none."""
    shown = list(values)[-width:] if width > 0 else []
    most = max((value for value in shown if value is not None), default=0)
    return "".join(
        " " if value is None else HEIGHTS[max(min(-(-value * 8 // most), 8), 1) if most > 0 else 1] for value in shown
    )


def flat(text: str) -> str:
    """A text of others on one line: control characters as visible escapes, white space as single blanks."""
    return printable(" ".join(text.split()))


def cut(text: str, width: int) -> str:
    """A text that is flat, in at most ``width`` cells, with an ellipsis where something was cut off."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    return f"{(chop_cells(text, width - 1) or [''])[0] if width > 1 else ''}…"


def cut_inside(text: str, width: int) -> str:
    """As ``cut``, but with the end of the text, which distinguishes long names."""
    if width < 8 or cell_len(text) <= width:
        return cut(text, width)
    tail = text[-(width * 2 // 3) :]
    while cell_len(tail) > width * 2 // 3:
        tail = tail[1:]
    return cut(text, width - cell_len(tail)) + tail


def padded(text: str, width: int) -> str:
    """A text that is flat, in exactly ``width`` cells."""
    shown = cut(text, width)
    return shown + " " * (width - cell_len(shown))


def wrapped(text: str, width: int) -> list[str]:
    """A text that is flat, broken at blanks into lines of at most ``width`` cells."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        for number, part in enumerate(chop_cells(word, max(width, 1)) or [""]):
            if not line and number == 0:
                line = part
            elif number == 0 and cell_len(line) + 1 + cell_len(part) <= width:
                line += f" {part}"
            else:
                lines.append(line)
                line = part
    return [*lines, line] if line or not lines else lines
