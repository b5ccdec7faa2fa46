"""Numbers of ranks, pipelines and steps as people write them: all of them said, neighbours as a span."""

from __future__ import annotations

from collections.abc import Iterable


def numbered(word: str, numbers: Iterable[int]) -> str:
    """What some numbers are of, and these: ``rank 3``, ``ranks 0–3, 6``."""
    known = set(numbers)
    return f"{word}{'s' if len(known) > 1 else ''} {spanned(known).replace('-', '–')}"


def spanned(numbers: Iterable[int]) -> str:
    """Numbers as options take them and tables hold them: ``0-3, 6``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def unspanned(text: str) -> tuple[int, ...]:
    """The numbers of such a text, in order.

    Raises:
        ValueError: it is none.
    """
    spans = (part.strip().partition("-") for part in text.split(","))
    return tuple(sorted({number for low, _, high in spans for number in range(int(low), int(high or low) + 1)}))


def counted(count: int, one: str, many: str) -> str:
    """A number with its noun: "1 row", "1,200 rows"."""
    return f"{count:,} {one if count == 1 else many}"
