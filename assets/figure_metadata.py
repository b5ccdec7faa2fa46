"""What every figure asset records: the finding, where the files lie, and a picture that the user interface shows."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import dagster as dg
import xxhash
from pydantic import Field

from assets.conventions import CODE_VERSION_TAG, DATA_VERSION_TAG, served_page
from traceviz_dag.lake.partitions import escape
from traceviz_dag.pipeline.home_settings import FigureSettings
from traceviz_dag.pipeline.made import CODE_VERSION
from traceviz_dag.show.registry import Scope, kinds_of
from traceviz_dag.vocabulary import FIGURES_FOLDER, PREVIEWS_FOLDER

if TYPE_CHECKING:
    from traceviz_dag.pipeline.figures import DrawnFigure

KINDS = {"matplotlib", "png"}

MOST_INLINE_TEXT = 999
"""Characters of a Markdown entry that the user interface shows in place; a longer one needs a click."""

MOST_PREVIEWS = 24
"""Pictures in one event; the folder holds the others."""


class FigureConfig(dg.Config):
    """Which files a figure asset writes."""

    formats: list[str] = Field(
        default=[], description="Any of png, svg and pdf; empty takes those of [figures] in traceviz.toml, else all."
    )

    def chosen(self, settings: FigureSettings) -> tuple[str, ...]:
        """The formats to write."""
        return tuple(self.formats) or settings.formats


def figure_metadata(home: Path, drawn: Sequence["DrawnFigure"]) -> Mapping[str, Any]:
    """Per figure its title, the path of its first file, and the picture itself, which our web server serves."""
    metadata: dict[str, Any] = {"figures": dg.MetadataValue.int(len(drawn))}
    for number, figure in enumerate(drawn):
        name = figure.task.name
        metadata[f"{name}_file"] = dg.MetadataValue.path(str(next(iter(figure.paths.values()))))
        metadata[f"{name}_title"] = figure.title
        if figure.preview is not None and number < MOST_PREVIEWS:
            address = f"/{figure.preview.relative_to(home).as_posix()}"
            shown = f"![{name}]({quote(address)}?{_digest([figure.preview])[:8]})"
            if "png" in figure.paths:
                # A click opens the large one.
                large = figure.paths["png"].relative_to(home).as_posix()
                shown = f"[{shown}]({quote(f'/{large}')})"
            if len(shown) <= MOST_INLINE_TEXT:
                metadata[f"{name}_preview"] = dg.MetadataValue.md(shown)
    if drawn:
        metadata |= served_page(drawn[0].task.run, drawn[0].task.iteration)
    return metadata


def pictures_of(table: str, run: str, iteration: int) -> Mapping[str, Any]:
    """What is drawn across ranks from this table first, as our web server shows it as soon as it is drawn."""
    return {
        kind.name: picture(run, iteration, kind.name)
        for kind in kinds_of(Scope.ACROSS_RANKS)
        if kind.tables[0] == table
    }


def picture(run: str, iteration: int, name: str) -> dg.MetadataValue:
    """The preview of an iteration's figure, as our web server shows it; a click opens the large one."""
    folder = f"/{FIGURES_FOLDER}/{escape(run)}/{iteration}"
    return dg.MetadataValue.md(
        f"[![{name}]({quote(f'{folder}/{PREVIEWS_FOLDER}/{name}.png')})]({quote(f'{folder}/{name}.png')})"
    )


def data_version(drawn: Sequence["DrawnFigure"]) -> str:
    """Changes whenever a file of the figures does."""
    return _digest(path for figure in drawn for path in figure.paths.values())


def _digest(paths: Iterable[Path]) -> str:
    digest = xxhash.xxh3_128()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def event(
    asset: str, partition: str, home: Path, drawn: Sequence["DrawnFigure"], tags: Mapping[str, str] | None = None
) -> dg.AssetMaterialization:
    """The record of a partition's figures, for who logs it by hand.

    Args:
        tags: more to remember.
    """
    versions = {DATA_VERSION_TAG: data_version(drawn), CODE_VERSION_TAG: CODE_VERSION}
    metadata = figure_metadata(home, drawn)
    return dg.AssetMaterialization(asset, partition=partition, metadata=metadata, tags={**versions, **(tags or {})})
