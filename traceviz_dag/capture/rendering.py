"""What a target makes of a configuration: text to paste, and what a reader should know about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from traceviz_dag.spans import spanned


@dataclass(frozen=True, slots=True)
class Rendering:
    """One target's text.

    Attributes:
        target: short name, for --target and JSON.
        title: for people.
        text: to paste; empty where the target cannot do what is asked, as the notes then say.
        notes: one sentence each.
    """

    target: str
    title: str
    text: str
    notes: tuple[str, ...] = ()


def iteration_words(iterations: range) -> str:
    """Iterations in words: ``iteration 120`` or ``iterations 120 to 122``."""
    first, last = iterations[0], iterations[-1]
    return f"iteration {first}" if first == last else f"iterations {first} to {last}"


def rank_words(ranks: Iterable[int]) -> str:
    """Ranks as runs: ``0-3,8``."""
    return spanned(ranks).replace(" ", "")
