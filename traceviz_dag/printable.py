"""Text of others made safe to show: what a terminal would obey becomes a visible escape."""

from __future__ import annotations

import re
from pathlib import Path

SCHEME = "s3://"
OBJECTS_FOLDER = "s3.objects"
"""Folder of a home for what stands in for objects of a store, at BUCKET/KEY below it."""

_NOT_SHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NOT_SHOWN_BUT_LINES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> str:
    """``text`` as UTF-8 can hold it: the bytes of a file name that are not UTF-8 become visible escapes."""
    return text if text.isascii() else _SURROGATE.sub(_escape, text)


def printable(text: str, *, lines: bool = False) -> str:
    """``text`` with control characters, marks that turn its direction and halves of surrogate pairs as ``\\u001b``.

    Halves of surrogate pairs are how Python holds the bytes of a file name that is not UTF-8. The escapes are those of
    JSON, so a JSON document stays one.

    Args:
        lines: line feeds and tabs stay.
    """
    pattern = _NOT_SHOWN_BUT_LINES if lines else _NOT_SHOWN
    return pattern.sub(_escape, text)


def named(path: Path | str) -> str:
    """A path as people know it: what stands in for an object of a store, by the object's address."""
    before, mark, key = str(path).partition(f"/{OBJECTS_FOLDER}/")
    return f"{SCHEME}{key}" if mark else before


def is_object_url(text: str) -> bool:
    """Whether a text is ``s3://…``, also as ``Path`` spells it, with one slash."""
    return text.startswith(SCHEME[:-1])


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
