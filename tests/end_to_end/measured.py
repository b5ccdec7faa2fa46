"""The numbers that a page shows of a measured window."""

from __future__ import annotations

from typing import Any

COLUMNS = {
    **{word: f"{word}_ns" for word in ("communication", "hidden", "exposed", "memory", "busy", "idle")},
    "computation": "compute_ns",
    "operations": "kernels",
}
"""Words of a page → keys of what the command prints."""


def measured(page: Any, lane: str) -> list[dict[str, int]]:
    """By their words, of each device of a rank or GPU."""
    found = []
    for told in page.locator(f'[data-measured="{lane} all"]').all():
        names, texts = (told.locator(tag).all_inner_texts() for tag in ("dt", "dd"))
        values = (int(text.partition(" ns")[0].replace(",", "")) for text in texts)
        found.append(dict(zip(names, values, strict=True)))
    return found


def printed(row: dict[str, Any]) -> dict[str, int]:
    """What the command prints, under the words of a page."""
    return {word: row[key] for word, key in COLUMNS.items() if key in row}
