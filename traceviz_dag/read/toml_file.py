"""Reads a user's TOML or JSON file: any file that is none is one clear line."""

from __future__ import annotations

import io
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.regular_file import open_stream

LARGEST_BYTES = 1 << 20
"""A file that a person writes is far smaller."""

_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""")
"""A key of more than 64 parts: Python's parser takes time with the square of their number."""


def read_toml(path: Path, remedy: str = "fix the syntax") -> dict[str, Any]:
    """The document in a TOML file.

    Args:
        remedy: what to do about a file that is no TOML.

    Raises:
        BadInputError: the file is missing, unreadable, too large, or no TOML.
    """
    return parse_toml(read_text(path), path, remedy)


def read_text(path: Path) -> str:
    """The text of a small file.

    Raises:
        BadInputError: the file is missing, no regular file, unreadable, too large, or not UTF-8.
    """
    try:
        with open_stream(path) as file, io.BufferedReader(file) as whole:
            data = whole.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise BadInputError(path, f"cannot be read ({error.strerror})", "give the path of a text file") from None
    if len(data) > LARGEST_BYTES:
        raise BadInputError(path, f"larger than {LARGEST_BYTES >> 20} MiB", "give the path of a file written by hand")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInputError(path, f"not text (byte {error.start} is not UTF-8)", "save it as UTF-8") from None


def parse_toml(text: str, path: Path, remedy: str = "fix the syntax") -> dict[str, Any]:
    """The document that a text is; ``path`` is named in errors.

    Raises:
        BadInputError: the text is no TOML, or has a key of very many parts.
    """
    if _LONG_KEY.search(text):
        raise BadInputError(path, "is not a valid settings file (a key of more than 64 parts)", remedy)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        fault = str(error)
    # Python's own limits on the digits of an integer and the depth of a document are faults of the text, too.
    except ValueError:
        fault = "a number or date in it is out of range"
    except RecursionError:
        fault = "it is nested too deeply"
    raise BadInputError(path, f"is no TOML file ({fault})", remedy)


def parse_json(text: str, path: Path, remedy: str = "fix the syntax") -> Any:
    """The JSON document that a text is; ``path`` is named in errors.

    Raises:
        BadInputError: the text is no JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        fault = str(error)
    except ValueError:
        fault = "a number in it has too many digits"
    except RecursionError:
        fault = "it is nested too deeply"
    raise BadInputError(path, f"is no JSON file ({fault})", remedy)
