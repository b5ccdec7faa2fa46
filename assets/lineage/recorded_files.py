"""What a materialization records of the files that it left in the lake, so that others are known at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.lake import Lake

_FILE_TAG = "traceviz_file/"
"""Followed by a table: size and time of change of its file, hexadecimal, and the file's digest (a tag holds 63 letters,
and no others than these)."""


def file_tags(
    lake: Lake, digests: Mapping[str, str], run: str, iteration: int, rank: int | None = None
) -> dict[str, str]:
    """The tags of the files that were just written.

    Args:
        digests: table → digest of its file.
    """
    tags = {}
    for name, digest in digests.items():
        status = lake.path(name, run=run, iteration=iteration, rank=rank).stat()
        tags[f"{_FILE_TAG}{name}"] = f"{status.st_size:x}-{status.st_mtime_ns:x}-{digest}"
    return tags


def are_as_recorded(
    lake: Lake, tags: Mapping[str, str], tables: Sequence[str], run: str, iteration: int, rank: int | None = None
) -> bool:
    """Whether the files of these tables are those that were recorded.

    A file of the recorded size and another time of change (the home was copied) is read: its digest tells.
    """
    recorded = _recorded(tags)
    return all(
        name in recorded and _is_as_recorded(lake.path(name, run=run, iteration=iteration, rank=rank), recorded[name])
        for name in tables
    )


def digests_in(tags: Mapping[str, str]) -> dict[str, str]:
    """Table → digest, of all files that were recorded."""
    return {name: digest for name, (_, _, digest) in _recorded(tags).items()}


def _recorded(tags: Mapping[str, str]) -> dict[str, tuple[int, int, str]]:
    recorded = {}
    for tag, value in tags.items():
        if tag.startswith(_FILE_TAG):
            size, changed, digest = value.split("-")
            recorded[tag.removeprefix(_FILE_TAG)] = (int(size, 16), int(changed, 16), digest)
    return recorded


def _is_as_recorded(path: Path, recorded: tuple[int, int, str]) -> bool:
    size, changed, digest = recorded
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if status.st_size != size:
        return False
    return status.st_mtime_ns == changed or digest_of(path) == digest
