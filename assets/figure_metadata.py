"""What every figure asset records: the finding, where the files lie, and a preview that opens in the user interface."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
import xxhash
from pydantic import Field

from traceviz_dag.vocabulary import FIGURE_FORMATS

if TYPE_CHECKING:
    from traceviz_dag.figure_pipeline import DrawnFigure

KINDS = {"matplotlib", "png"}

MOST_PREVIEW_TEXT = 190_000
"""Characters of previews in one event; every one of them is kept in the event log."""


class FigureConfig(dg.Config):
    """Which files a figure asset writes."""

    formats: list[str] = Field(default=list(FIGURE_FORMATS), description="Any of png, svg and pdf.")


def figure_metadata(drawn: Sequence["DrawnFigure"]) -> Mapping[str, Any]:
    """Per figure its title and the path of its first file, and as many previews as fit into an event."""
    from traceviz_dag.show.rendering import as_markdown

    metadata: dict[str, Any] = {"figures": dg.MetadataValue.int(len(drawn))}
    room = MOST_PREVIEW_TEXT
    for figure in drawn:
        name = figure.task.name
        metadata[f"{name}_file"] = dg.MetadataValue.path(str(next(iter(figure.paths.values()))))
        metadata[f"{name}_title"] = figure.title
        text = as_markdown(figure.preview, figure.title) if figure.preview is not None else ""
        if text and len(text) <= room:
            metadata[f"{name}_preview"] = dg.MetadataValue.md(text)
            room -= len(text)
    return metadata


def data_version(drawn: Sequence["DrawnFigure"]) -> str:
    """Changes whenever a file of the figures does."""
    digest = xxhash.xxh3_128()
    for figure in drawn:
        for path in figure.paths.values():
            digest.update(path.read_bytes())
    return digest.hexdigest()
