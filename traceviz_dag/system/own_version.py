"""The version of this program."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str | None:
    """The installed version; None where the program runs from its sources."""
    try:
        return version("traceviz-dag")
    except PackageNotFoundError:
        return None
