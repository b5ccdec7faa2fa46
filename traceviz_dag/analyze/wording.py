"""Numbers of ranks, pipelines and steps as people write them: all of them said, neighbours as a span."""

from __future__ import annotations

from collections.abc import Iterable


def numbered(word: str, numbers: Iterable[int]) -> str:
    """What some numbers are of, and these: ``rank 3``, ``ranks 0–3, 6``."""
    ordered = sorted(set(numbers))
    spans: list[list[int]] = []
    for number in ordered:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    words = ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in spans)
    return f"{word}{'s' if len(ordered) > 1 else ''} {words}"


def counted(count: int, one: str, many: str) -> str:
    """A number with its noun: "1 row", "1,200 rows"."""
    return f"{count:,} {one if count == 1 else many}"
