"""What a materialization records of the files that it left in the lake, so that others are known at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    """Whether the files of these tables are those that were recorded, here and by the lake.

    The bytes decide, which a process reads once: a disk that fails changes neither size nor time. A file that was
    converted from an earlier version is the one that it was converted from.
    """
    known = digests_in(tags)
    for name in tables:
        content = lake.content(name, run=run, iteration=iteration, rank=rank)
        if content is None or known.get(name) not in (content.digest, content.former):
            return False
        if not lake.is_as_written(name, run=run, iteration=iteration, rank=rank):
            return False
    return True


def lack_columns(lake: Lake, tables: Sequence[str], run: str, iteration: int, rank: int | None = None) -> bool:
    """Whether an earlier version computed some of these tables, without a column of this one."""
    contents = (lake.content(name, run=run, iteration=iteration, rank=rank) for name in tables)
    return any(content is not None and content.missing for content in contents)


def digests_in(tags: Mapping[str, str]) -> dict[str, str]:
    """Table → digest, of all files that were recorded."""
    return {
        tag.removeprefix(_FILE_TAG): value.rpartition("-")[2]
        for tag, value in tags.items()
        if tag.startswith(_FILE_TAG)
    }
