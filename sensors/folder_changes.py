"""From two looks at the watched folders to what has to be registered: pure, no files, no clock, no Dagster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from sensors.ledger import FolderRecord, FolderState
from sensors.listing import FolderLook

_FORGET_SECONDS = 3600
_MOST_PENDING = 500


class Pending(msgspec.Struct, frozen=True, array_like=True):
    """A folder that is not registered as it looks now.

    Attributes:
        digest: of the look.
        since: when it was first seen like this, seconds.
        seen: when it was last seen at all, seconds.
        asked: registering runs that were asked for it since.
    """

    digest: str
    since: float
    seen: float
    asked: int = 0


@dataclass(frozen=True, slots=True)
class Patience:
    """When a folder counts as settled and complete.

    Attributes:
        deadline_seconds: unchanged for so long, it is taken as it is.
        attempts: registering runs for one state of it at most.
        expected_ranks: watched root → the ranks that every iteration below it has, where that is configured.
    """

    deadline_seconds: float
    attempts: int
    expected_ranks: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Due:
    """A folder to register now.

    Attributes:
        overdue: it goes in although it is incomplete, since nothing came for the time of the deadline.
        attempt: which try at this state of it this is, from 1.
    """

    look: FolderLook
    overdue: bool
    attempt: int


def advance(
    pending: Mapping[str, Pending],
    looks: Iterable[FolderLook],
    ledger: Mapping[str, FolderRecord],
    now: float,
    patience: Patience,
) -> tuple[dict[str, Pending], list[Due]]:
    """One step of the watch: what is unsettled after these looks, and what of it is due.

    A folder is due once two looks in a row agree, no writer's temporary file is in it, and it has the ranks that
    are expected: those configured, else those of the run's earlier iterations, where either is known; a folder that
    was registered before need not wait for more. Whether the traces themselves state more ranks, or are half-written,
    is for the registering run to say; its answer is in the ledger. A folder that was not looked at keeps its place.

    Args:
        pending: what the last step left.
        looks: folders that were listed this time; those that could not be listed are not among them.
        now: seconds.
    """
    after = {
        folder: one
        for folder, one in pending.items()
        if now - one.seen < _FORGET_SECONDS and not _is_done(ledger.get(folder), one.digest)
    }
    siblings = _ranks_by_parent(ledger)
    due = []
    for look in looks:
        record = ledger.get(look.folder)
        if _is_done(record, look.digest):
            after.pop(look.folder, None)
            continue
        before = pending.get(look.folder)
        if before is None or before.digest != look.digest:
            after[look.folder] = Pending(look.digest, now, now)
            continue
        current = msgspec.structs.replace(before, seen=now)
        after[look.folder] = current
        overdue = now - current.since >= patience.deadline_seconds
        expected = _configured(look.folder, patience.expected_ranks) or siblings.get(_parent(look.folder), 0)
        registered_before = record is not None and record.state is FolderState.REGISTERED
        found_incomplete = record is not None and record.digest == look.digest
        enough = (registered_before or look.traces == 0 or look.traces >= expected) and not found_incomplete
        if ((enough and not look.being_written) or overdue) and current.asked < patience.attempts:
            due.append(Due(look, overdue, current.asked + 1))
    return _bounded(after), due


def asked(pending: Mapping[str, Pending], due: Iterable[Due]) -> dict[str, Pending]:
    """What is pending once a run was asked to register these folders."""
    after = dict(pending)
    for one in due:
        folder = one.look.folder
        if folder in after:
            after[folder] = msgspec.structs.replace(after[folder], asked=one.attempt)
    return after


def _is_done(record: FolderRecord | None, digest: str) -> bool:
    """Whether a registering run took the folder as it looks now, or found it of no use."""
    return record is not None and record.digest == digest and record.state is not FolderState.WAITING


def _bounded(pending: dict[str, Pending]) -> dict[str, Pending]:
    """The folders that wait longest; the others are found again when these are done."""
    if len(pending) <= _MOST_PENDING:
        return pending
    oldest = sorted(pending.items(), key=lambda item: (item[1].since, item[0]))[:_MOST_PENDING]
    return dict(oldest)


def _ranks_by_parent(ledger: Mapping[str, FolderRecord]) -> dict[str, int]:
    most: dict[str, int] = {}
    for folder, record in ledger.items():
        if record.state is FolderState.REGISTERED and record.is_iteration:
            parent = _parent(folder)
            most[parent] = max(most.get(parent, 0), record.ranks)
    return most


def _parent(folder: str) -> str:
    return folder.rpartition("/")[0]


def _configured(folder: str, expected: Mapping[str, int]) -> int:
    """The ranks configured for the innermost watched root that holds the folder; 0 where none is."""
    holding = [root for root in expected if folder == root or folder.startswith(root.rstrip("/") + "/")]
    return expected[max(holding, key=len)] if holding else 0
