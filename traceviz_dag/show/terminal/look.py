"""What a terminal can show: colours, block characters; and whether it is one that screens can be drawn on."""

from __future__ import annotations

import codecs
import locale
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter, NoColor

from traceviz_dag.errors import UsageError


@dataclass(frozen=True, slots=True)
class Look:
    """How a screen is drawn.

    Attributes:
        unicode: whether the terminal shows characters beyond ASCII.
        colour: whether it shows colours, and the user wants them.
    """

    unicode: bool = True
    colour: bool = True


def look_of_terminal(environment: Mapping[str, str], command: str) -> Look:
    """How this process's terminal is drawn on.

    Args:
        command: as the user called it, for the line that refuses.

    Raises:
        UsageError: input or output is no terminal, or one that cannot move its cursor.
    """
    # Textual reads keys from standard input and draws on standard error.
    if not all(stream is not None and stream.isatty() for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        raise UsageError(f"{command} draws on a terminal, and this is none: run it in one, without a pipe or file")
    kind = environment.get("TERM", "")
    if kind in ("", "dumb", "unknown"):
        raise UsageError(f"{command} moves the cursor, which TERM={kind or '(unset)'} cannot: set TERM, as to xterm")
    encoding = codecs.lookup(locale.getpreferredencoding(False)).name
    return Look(unicode=encoding == "utf-8", colour=not environment.get("NO_COLOR") and not kind.startswith("vt"))


def filters_of(look: Look) -> list[LineFilter]:
    """What changes each line on its way to the terminal."""
    found: list[LineFilter] = []
    if not look.colour:
        found.append(NoColor())
    if not look.unicode:
        found.append(ToAscii())
    return found


_ASCII = str.maketrans(
    {
        **dict(zip("▁▂▃▄▅▆▇█", "._-=+*%#", strict=True)),
        **dict(zip("▏▎▍▌▋▊▉", ":::||##", strict=True)),
        **dict(zip("░▒▓", "oO@", strict=True)),
        **dict(zip("─│┌┐└┘├┤┬┴┼━┃▬", "-|+++++++++=|=", strict=True)),
        **dict(zip("▸▾◂▴▲△▼←→↑↓·…–×≤≥∑µ•", "+-<^^^v<>^v.~-x<>Su*", strict=True)),
    }
)


class ToAscii(LineFilter):
    """Other characters become ASCII ones of the same width, for terminals that show nothing else."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments in ASCII."""
        return [
            segment if segment.text.isascii() else Segment(as_ascii(segment.text), segment.style, segment.control)
            for segment in segments
        ]


def as_ascii(text: str) -> str:
    """A text in ASCII, as wide as it was."""
    known = text.translate(_ASCII)
    return "".join(letter if letter.isascii() else "?" * cell_len(letter) for letter in known)
