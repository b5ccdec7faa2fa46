"""The colours of categories of GPU memory."""

from __future__ import annotations

from traceviz_dag.vocabulary import MemoryCategory

COLOUR: dict[str, str] = {
    MemoryCategory.PARAMETER: "#9DB4C9",
    MemoryCategory.GRADIENT: "#E0A458",
    MemoryCategory.OPTIMIZER_STATE: "#7A5C99",
    MemoryCategory.ACTIVATION: "#5FA777",
    MemoryCategory.INPUT: "#D6CE7A",
    MemoryCategory.TEMPORARY: "#C4504A",
    MemoryCategory.COMMUNICATION_BUFFER: "#3F8FA8",
    MemoryCategory.UNKNOWN: "#C9CCD1",
}

FREE = "#F6F6F6"
"""Reserved memory that nobody uses."""


def label(category: str) -> str:
    """A category as a legend names it."""
    return category.replace("_", " ")
