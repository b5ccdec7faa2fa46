"""The Perfetto UI: its files, the commands that it starts with, and the policy under which it works."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from traceviz_dag.system.paths import real_path

PIPELINE_COMMANDS = (
    {"id": "dev.perfetto.PinTracksByRegex", "args": ["^rank \\d+ · stage"]},
    {"id": "dev.perfetto.ExpandTracksByRegex", "args": ["^(pipeline|Global Track Events)"]},
)
"""Start-up commands that show the pipelines of an export at once: the micro-batches of every rank, pinned."""

EXPAND_ALL = ({"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]},)
"""Start-up commands that open every track of another trace."""

UI_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "connect-src 'self' data: blob:; object-src 'none'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy under which the UI works, and connects to nobody but who serves it."""


def ui_file(ui: Path, name: str) -> Path | None:
    """A file of the UI by its path there, its first page without one; None where there is no such file.

    Args:
        ui: the folder ``wasm_folder()`` names.
    """
    folder = real_path(ui.parent)
    try:
        path = real_path(folder / (name or "index.html"))
        # Without its service worker the UI keeps no copy of itself in the browser.
        known = path.is_relative_to(folder) and path.is_file() and path.name != "service_worker.js"
    except (OSError, ValueError):
        # No name of a file: too long, or with a NUL.
        known = False
    return path if known else None


def kind_of(path: Path) -> str:
    """The media type of a file of the UI."""
    kind = "application/wasm" if path.suffix == ".wasm" else mimetypes.guess_type(path.name)[0]
    return kind or "application/octet-stream"
