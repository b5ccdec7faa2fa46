"""Which files beside traces are snapshots of CUDA memory, and of which rank and iteration, by their names."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from traceviz_dag.read.path_names import iteration_of, rank_of
from traceviz_dag.read.regular_file import kind_of

_NAME = re.compile(r"^(?!\.).*(?:snapshot|memory).*\.(?:pickle|pkl)$", re.IGNORECASE)
_RANK = re.compile(r"snapshot_(\d+)\.(?:pickle|pkl)$", re.IGNORECASE)
_STOP = b"."


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A snapshot beside traces; rank and iteration are None where its name does not show."""

    path: Path
    rank: int | None
    iteration: int | None


def is_snapshot_name(name: str) -> bool:
    """Whether a file may be a snapshot: a pickle with "snapshot" or "memory" in its name, as Megatron-LM
    (``snapshot_3.pickle``), Megatron Bridge (``snapshot_oom_rank-0.pickle``) and our plugin (``….memory.pickle``) write
    it."""
    return _NAME.match(name) is not None


def snapshots_in(folder: Path) -> list[FoundSnapshot]:
    """The snapshots in a folder, by name; what is no regular file is left out.

    Raises:
        OSError: the folder cannot be listed.
    """
    names = sorted(entry.name for entry in folder.iterdir() if is_snapshot_name(entry.name))
    return [_found(folder / name) for name in names if _is_regular(folder / name)]


def of_iteration(found: Collection[FoundSnapshot], iteration: int, beside: Collection[int]) -> list[FoundSnapshot]:
    """Which snapshots of a folder are of an iteration: those that name it; those that name none are of the last one
    that has traces in the folder.

    Args:
        beside: the iterations that have traces in the folder.
    """
    last = max(beside, default=iteration)
    return [one for one in found if (last if one.iteration is None else one.iteration) == iteration]


def is_whole_snapshot(path: Path) -> bool:
    """Whether a file ends as a pickle does: one that is still being written does not."""
    try:
        with path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == _STOP
    except OSError:
        return False


def _is_regular(path: Path) -> bool:
    try:
        return kind_of(path) is None
    except (OSError, ValueError):
        return False


def _found(path: Path) -> FoundSnapshot:
    stated = _RANK.search(path.name)
    return FoundSnapshot(path, int(stated[1]) if stated else rank_of(path), iteration_of(path))
