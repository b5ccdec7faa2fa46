"""What the name of a trace file, or of its folder, shows of its rank and iteration."""

from __future__ import annotations

import re
from pathlib import Path

ITERATION_FOLDER = re.compile(r"iter(?:ation)?[_-]?(\d+)", re.IGNORECASE)
_ITERATION_IN_NAME = re.compile(r"(?<![A-Za-z])iter(?:ation)?[_-]?(\d+)(?!\d)", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"(?<![A-Za-z])rank[_-]?(\d+)(?!\d)", re.IGNORECASE)


def iteration_of(file: Path) -> int | None:
    """The iteration that the folder of a file names, else its own name; None where neither shows."""
    match = ITERATION_FOLDER.fullmatch(file.parent.name) or _ITERATION_IN_NAME.search(file.name)
    return None if match is None else int(match[1])


def rank_of(file: Path) -> int | None:
    """The rank that the name of a file shows; None where it does not."""
    match = _RANK_IN_NAME.search(file.name)
    return None if match is None else int(match[1])


def without_iteration(file: Path) -> Path:
    """A file's path without the iteration in its name, so that a rank's files of several iterations have one."""
    return file.with_name(
        re.sub(rf"[_.-]?{_ITERATION_IN_NAME.pattern}", "", file.name, flags=re.IGNORECASE) or file.name
    )
