"""Paths as the system sees them."""

from __future__ import annotations

import os
from pathlib import Path


def real_path(path: Path) -> Path:
    """The absolute path, its links followed.

    Where links lead in a circle, the path stays as far as it could be followed, and whoever opens it gets the system's
    own error; ``Path.resolve`` raises one that names no file.
    """
    return Path(os.path.realpath(path))
