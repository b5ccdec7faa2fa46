"""Numbers as options take them and tables hold them: ``0-3, 6``."""

from __future__ import annotations

from collections.abc import Collection, Iterable


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
        ValueError: it is none, or a number is larger than any rank.
    """
    spans = [(int(low), int(high or low)) for low, _, high in (part.strip().partition("-") for part in text.split(","))]
    if max(high for _, high in spans) > _LARGEST:
        raise ValueError(f"{text} goes beyond {_LARGEST}")
    return tuple(sorted({number for low, high in spans for number in range(low, high + 1)}))


_LARGEST = 10_000_000


def expected_ranks(stated: Iterable[str | None], world: int | None, found: Iterable[int]) -> Collection[int]:
    """Ranks that should have a trace: those that the capture meant to record, else those of the world.

    A choice is believed where each trace states the same one, and is of one of its ranks.

    Args:
        stated: what each trace states, as such a text. world: ranks of the job. found: ranks with a trace.
    """
    choices = {*stated}
    choice = choices.pop() if len(choices) == 1 else None
    chosen = frozenset(unspanned(choice)) if choice is not None else frozenset()
    return chosen if chosen and chosen.issuperset(found) else range(world or 0)
