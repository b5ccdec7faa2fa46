"""What became of every watched folder: written by the registering runs, read by the sensor at each tick.

The sensor's cursor holds only what is still unsettled; what is done is listed in HOME/watched_folders.json. Losing
the file costs one look at every folder and recomputes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from traceviz_dag.system.json_bytes import decoded
from traceviz_dag.system.whole_files import changing, write_atomically

FILE_NAME = "watched_folders.json"


class FolderState(StrEnum):
    """What the last registering run made of a folder."""

    REGISTERED = "registered"
    WAITING = "waiting"
    NOTHING = "nothing"


class FolderRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder as a registering run left it.

    Attributes:
        digest: of the look that the run was asked for.
        ranks: ranks that were found in it.
        changed_ns: the folder's own time of change at that look.
        newest_ns: the last time of change of its files at that look.
        is_leaf: it had no folders in it.
        is_iteration: the folder above it is the run's, so its siblings are further iterations of the run.
        reason: why it waits, or why nothing of it can be used.
    """

    digest: str
    state: FolderState
    ranks: int = 0
    changed_ns: int = 0
    newest_ns: int = 0
    is_leaf: bool = False
    is_iteration: bool = False
    reason: str = ""


def read_ledger(home: Path) -> dict[str, FolderRecord]:
    """Folder → record; empty where nothing was registered yet, or the file is damaged."""
    try:
        return decoded((home / FILE_NAME).read_bytes(), dict[str, FolderRecord])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def update_ledger(home: Path, records: Mapping[str, FolderRecord], gone: Collection[str] = ()) -> None:
    """Add or replace records, and drop those of folders that are gone; safe beside other writers."""
    with changing(home / FILE_NAME):
        ledger = {folder: record for folder, record in read_ledger(home).items() if folder not in gone} | dict(records)
        write_atomically(home / FILE_NAME, msgspec.json.encode(dict(sorted(ledger.items()))))
