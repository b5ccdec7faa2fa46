"""The verdict on a run as commands print it: at most eight lines of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceviz_dag.analyze.findings.verdict import Verdict, in_sentences
from traceviz_dag.analyze.wording import share
from traceviz_dag.commands.common.output import wrapped

WIDTH = 80
MOST_LINES = 8

LEAST_COPIES = 0.005
"""Share of copies without a kernel beside them from which they are a part of the step."""


def verdict_lines(run: str, title: str, verdict: Verdict, differs: str, parts: str, after: Sequence[str]) -> list[str]:
    """The lines; what limits the step is whole before anything else is.

    Args:
        title: iteration, ranks and step: after the run's name, of which it leaves as much as fits. differs: how another
            iteration differs, or nothing. parts: what the step is made of; left out where there is no room.
        after: the next command and the report, a line each; these are whole, however long.
    """
    limit, fixes, doubts = in_sentences(verdict)
    _, fewer, _ = in_sentences(replace(verdict, then=verdict.then[:1]))
    said = [_cut(limit, 3), _cut(fixes, 2), _cut(differs, 1), _cut(parts, 2), _cut(doubts, 2)]
    # What is given up first, until all of it fits: what takes most of the step is said before a third fix is.
    for place, shorter in ((4, _cut(doubts, 1)), (3, _cut(parts, 1)), (1, _cut(fewer, 1)), (3, []), (1, [])):
        if sum(map(len, said)) + 1 + len(after) > MOST_LINES:
            said[place] = shorter
    named = max(WIDTH - len(title) - 3, 8)
    name = run if len(run) <= named else f"{run[: named - 1]}…"
    return [f"{name} · {title}", *(line for lines in said for line in lines), *after]


def parts_in_words(of: str, computation: float | None, exposed: float | None, idle: float | None) -> str:
    """What a step is made of, by shares of it (mean of ranks); empty where not known.

    Args:
        of: what has these parts.
    """
    known = {"computation": computation, "exposed communication": exposed, "idle": idle}
    words = [f"{share(value)} {name}" for name, value in known.items() if value is not None]
    if len(words) == len(known):
        copies = 1 - sum(value for value in known.values() if value is not None)
        words += [f"{share(copies)} copies"] if copies >= LEAST_COPIES else []
    return f"{of}: {', '.join(words)}." if words else ""


def _cut(text: str, most: int) -> list[str]:
    """A text on so many lines at the most."""
    lines = wrapped(text, WIDTH)
    if len(lines) > most:
        kept = f"{lines[most - 1]} {lines[most]}"[: WIDTH - 1]
        lines = [*lines[: most - 1], f"{kept[: kept.rindex(' ')]} …"]
    return lines
