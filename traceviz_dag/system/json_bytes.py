"""Decodes JSON that may be damaged, however it is damaged, with one error to catch."""

from __future__ import annotations

from typing import TypeVar

import msgspec

Decoded = TypeVar("Decoded")


def decoded(data: bytes, kind: type[Decoded]) -> Decoded:
    """What a document holds.

    Raises:
        msgspec.DecodeError: it is no JSON, not of this type, not UTF-8 or nested too deeply; msgspec itself raises
            errors of other classes for the last two.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8 ({error.reason})") from error
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
