"""Numbers as options take them and tables hold them: ``0-3, 6``."""

from __future__ import annotations

from collections.abc import Iterable


def spanned(numbers: Iterable[int]) -> str:
    """The text of some numbers."""
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
