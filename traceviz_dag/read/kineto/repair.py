"""Text that is almost JSON, as some exporters write it, becomes JSON; only ever called where decoding failed."""

from __future__ import annotations

import re

_BLANK_CONTROL = b" " * 32 + bytes(range(32, 256))
_STRING_OR_NUMBER_WORD = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|-?\b(?:nan|inf(?:inity)?)\b(?:\(\w*\))?', re.IGNORECASE | re.DOTALL
)
_NUMBER_WORD = re.compile(rb"[:,\[]\s*-?(?:nan|inf)", re.IGNORECASE)
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|u[0-9a-fA-F]{0,3}\Z|\Z)|\\')
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F]|\\?\Z|\\u[0-9a-fA-F]{0,3}\Z)"
    rb"|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_REPAIRABLE_BYTE = re.compile(rb"[\x00-\x1fnNiI\x80-\xff-]")
_LONGEST_CHARACTER = 4
_DESCRIPTION = rb'(?<!\\)"Process Group Description"\s*:\s*'
_BAD_DESCRIPTION = re.compile(
    _DESCRIPTION + rb'(?:(?=[,}])|""(?P<twice>[^"\\]*)""|(?P<bare>(?!null\b)[A-Za-z_]\w*)(?=\s*[,}]))'
)
_BEFORE_FAULT = re.compile(_DESCRIPTION + rb"\S*\Z")
SEEN_BEFORE = 64
"""Bytes before a fault that ``is_repairable`` looks at."""


def repair(text: bytes) -> bytes:
    """Repair what real exporters get wrong, and nothing else.

    Control characters become blanks, NaN and Infinity outside strings become null, backslashes that escape nothing are
    doubled, descriptions of process groups that are absent or badly quoted become text, halves of surrogate pairs and
    bytes that are not UTF-8 become the replacement character. ``text`` starts outside a string and may end anywhere;
    what its end leaves open stays as it is.
    """
    text = text.translate(_BLANK_CONTROL)
    if b'"Process Group Description"' in text:
        text = _BAD_DESCRIPTION.sub(
            lambda match: b'"Process Group Description": "' + (match["twice"] or match["bare"] or b"") + b'"', text
        )
    if _NUMBER_WORD.search(text):
        text = _STRING_OR_NUMBER_WORD.sub(lambda match: match[0] if match[0].startswith(b'"') else b"null", text)
    if b"\\" in text:
        text = _ESCAPE.sub(lambda match: b"\\\\" if match[0] == b"\\" and match.end() < len(text) else match[0], text)
        text = _LONE_SURROGATE.sub(rb"\\ufffd", text)
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start <= len(text) - _LONGEST_CHARACTER:
            return text.decode("utf-8", "replace").encode("utf-8")
    return text


def is_repairable(message: str, around: bytes | bytearray) -> bool:
    """Whether ``repair`` knows what is wrong, from the decoder's message and the bytes around the fault."""
    near = _REPAIRABLE_BYTE.search(around, max(0, len(around) - 2)) is not None
    return near or "escape" in message or "surrogate" in message or _BEFORE_FAULT.search(around) is not None
