"""Figures as files: PNG, SVG and PDF with the same bytes for the same data, and small previews for a web page."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from traceviz_dag.errors import UsageError
from traceviz_dag.show.page.typography import typography
from traceviz_dag.system.whole_files import write_atomically
from traceviz_dag.vocabulary import FIGURE_FORMATS, PREVIEWS_FOLDER

FORMATS = FIGURE_FORMATS

DOTS_PER_INCH = 200
"""Of the PNG files; the data's blocks are merged for it, in every format."""

MOST_PREVIEW_BYTES = 150_000
"""Of a preview's PNG: a page with dozens of them still loads at once."""

# The first is as wide as the user interface shows pictures in place.
_PREVIEW_DOTS = (48, 36, 24)
# Dates and versions would make the same figure differ from day to day.
_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "traceviz_dag"},
    "pdf": {"CreationDate": None, "Creator": "traceviz_dag", "Producer": "matplotlib"},
}


def encode(figure: Figure, file_format: str = "png", dots_per_inch: int = DOTS_PER_INCH) -> bytes:
    """The bytes of a figure's file; equal figures give equal bytes under one version of matplotlib.

    Raises:
        UsageError: no such format.
    """
    if file_format not in FORMATS:
        raise UsageError(f"no figure format {file_format!r}; there are {', '.join(FORMATS)}")
    buffer = BytesIO()
    with typography():
        if file_format == "png":
            FigureCanvasAgg(figure)
        figure.savefig(buffer, format=file_format, dpi=dots_per_inch, metadata=_METADATA[file_format])
    return buffer.getvalue()


def write_preview(figure: Figure, folder: Path, name: str) -> Path:
    """Write the preview of a figure of a folder, and return its path."""
    path = folder / PREVIEWS_FOLDER / f"{name}.png"
    write_atomically(path, preview(figure))
    return path


def preview(figure: Figure, most_bytes: int = MOST_PREVIEW_BYTES) -> bytes:
    """A PNG as large as fits into so many bytes; the smallest one where none fits."""
    image = b""
    for dots in _PREVIEW_DOTS:
        image = encode(figure, "png", dots)
        if len(image) <= most_bytes:
            break
    return image


def write_figure(figure: Figure, folder: Path, name: str, formats: Sequence[str] = FORMATS) -> dict[str, Path]:
    """Write a figure in some formats; a reader sees a whole file or none.

    Returns:
        Format → path.

    Raises:
        UsageError: no such format.
        OutputError: a file cannot be written.
    """
    paths = {}
    for file_format in formats:
        paths[file_format] = folder / f"{name}.{file_format}"
        write_atomically(paths[file_format], encode(figure, file_format))
    return paths
