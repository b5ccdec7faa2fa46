"""The page ``docs/accuracy.md``, which two benchmarks write: the classification first, then predicted gains."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
PREDICTIONS = "## Predicted gains"
"""The heading at which the second part begins."""


def write_classification(text: str, page: Path = PAGE) -> None:
    """Replace the first part; the other one stays."""
    _, second = _parts(page)
    page.write_text(text.rstrip() + "\n" + (f"\n{second}" if second else ""))


def write_predictions(text: str, page: Path = PAGE) -> None:
    """Replace the second part; the other one stays."""
    first, _ = _parts(page)
    page.write_text(f"{first.rstrip()}\n\n{PREDICTIONS}\n\n{text.rstrip()}\n")


def _parts(page: Path) -> tuple[str, str]:
    text = page.read_text() if page.exists() else ""
    first, heading, second = text.partition(PREDICTIONS)
    return first, heading + second
