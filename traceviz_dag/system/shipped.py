"""Files that are shipped beside the code: pages and the skill, from the wheel or from a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(name: str) -> Path:
    """A file or folder of the repository, such as ``docs/metrics.md``, which the wheel holds in ``shipped/``."""
    in_wheel = _PACKAGE / "shipped" / name
    return in_wheel if in_wheel.exists() else _PACKAGE.parent / name
