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


def verdict_lines(run: str, title: str, verdict: Verdict, beside: str, after: Sequence[str]) -> list[str]:
    """The lines.

    Args:
        title: iteration, ranks and step: after the run's name, of which it leaves as much as fits. beside: what else
            there is to say in a line, or nothing.
        after: the next command and the report, a line each; these are whole, however long.
    """
    limit, fixes, doubts = in_sentences(verdict)
    if len(fixes) > WIDTH:
        _, fixes, _ = in_sentences(replace(verdict, then=verdict.then[:1]))
    rest = [part for part in (fixes, beside) if part]
    room = MOST_LINES - 1 - len(after) - len(rest)
    sure = _cut(doubts, 1 if room < 4 else 2)
    told = _cut(limit, room - len(sure))
    named = max(WIDTH - len(title) - 3, 8)
    name = run if len(run) <= named else f"{run[: named - 1]}…"
    return [f"{name} · {title}", *told, *(_cut(part, 1)[0] for part in rest), *sure, *after]


def parts_in_words(computation: float | None, exposed: float | None, idle: float | None) -> str:
    """What a step is made of, by shares of it (mean of ranks); empty where not known."""
    known = {"computation": computation, "exposed communication": exposed, "idle": idle}
    words = [f"{share(value)} {name}" for name, value in known.items() if value is not None]
    if len(words) == len(known):
        copies = 1 - sum(value for value in known.values() if value is not None)
        words += [f"{share(copies)} copies"] if copies >= LEAST_COPIES else []
    return f"Step: {', '.join(words)}." if words else ""


def _cut(text: str, most: int) -> list[str]:
    """A text on so many lines at the most."""
    lines = wrapped(text, WIDTH) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1][: WIDTH - 2]} …"]
    return lines
