"""The verdict on a run as commands print it: at most eight lines of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from traceviz_dag.analyze.findings.verdict import Verdict, in_sentences
from traceviz_dag.analyze.wording import share
from traceviz_dag.commands.common.output import wrapped

WIDTH = 80
MOST_LINES = 8


def verdict_lines(title: str, verdict: Verdict, made_of: str, after: Sequence[str]) -> list[str]:
    """The lines.

    Args:
        title: run, iteration, ranks and step. made_of: the parts of the step's time; empty where not known.
        after: the next command and the report, a line each; these are whole, however long.
    """
    limit, fixes, doubts = in_sentences(verdict)
    rest = [part for part in (fixes, made_of) if part]
    room = MOST_LINES - 1 - len(after) - len(rest)
    sure = _cut(doubts, 1 if room < 4 else 2)
    told = _cut(limit, room - len(sure))
    return [_cut(title, 1)[0], *told, *(_cut(part, 1)[0] for part in rest), *sure, *after]


def parts_in_words(computation: float | None, exposed: float | None, idle: float | None) -> str:
    """What a rank's step is made of, by shares of it; empty where not known."""
    known = {"computation": computation, "exposed communication": exposed, "idle": idle}
    words = [f"{share(value)} {name}" for name, value in known.items() if value is not None]
    return f"A rank's step: {', '.join(words)}." if words else ""


def _cut(text: str, most: int) -> list[str]:
    """A text on so many lines at the most."""
    lines = wrapped(text, WIDTH) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1][: WIDTH - 2]} …"]
    return lines
