"""Snapshots of GPU memory beside the traces of an iteration: read, examined, and stored rank by rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from traceviz_dag.analyze.memory.examination import Examined, examined
from traceviz_dag.analyze.memory.tables import memory_tables
from traceviz_dag.errors import BadInputError, file_system_line
from traceviz_dag.lake.inputs import SnapshotInput
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.write import Written
from traceviz_dag.read.memory.reader import read_snapshot
from traceviz_dag.system.processes import WorkerDiedError, spread
from traceviz_dag.tables import MEMORY_TABLES


@dataclass(frozen=True, slots=True)
class SnapshotOutcome:
    """What became of one rank's snapshot.

    Attributes:
        tables: name → what was written; empty where nothing could be read.
        fault: one line on what is wrong with it; empty where nothing is.
        peak_requested_bytes: the most that was requested at once, on the device with most reserved memory.
    """

    rank: int
    tables: dict[str, Written] = field(default_factory=dict)
    fault: str = ""
    peak_requested_bytes: int | None = None


def store_snapshots(
    lake: Lake, run: str, iteration: int, snapshots: Sequence[SnapshotInput], workers: int
) -> Iterator[SnapshotOutcome]:
    """Read and store snapshots, side by side; one that cannot be read costs its rank alone, whose tables go.

    Yields:
        An outcome for each rank, as it is finished.
    """
    work = partial(_store, lake, run, iteration)
    if len(snapshots) < 2 or workers == 1:
        yield from map(work, snapshots)
        return
    for number, outcome in spread(work, snapshots, workers):
        rank = snapshots[number].rank
        yield SnapshotOutcome(rank, fault=str(outcome)) if isinstance(outcome, WorkerDiedError) else outcome


def losses(devices: Sequence[Examined]) -> list[str]:
    """What could not be used of a snapshot, and what contradicts itself, a phrase each."""
    rows = [f"{count:,} rows of {part} could not be used" for part, count in devices[0].snapshot.unusable.items()]
    return rows + [f"{count:,} {what}" for one in devices for what, count in one.replay.contradictions.items()]


def _store(lake: Lake, run: str, iteration: int, snapshot: SnapshotInput) -> SnapshotOutcome:
    path = Path(snapshot.path)
    try:
        content = read_snapshot(path)
    except (BadInputError, OSError) as error:
        for name in MEMORY_TABLES:
            lake.delete(name, run=run, iteration=iteration, rank=snapshot.rank)
        line = file_system_line(error) if isinstance(error, OSError) else str(error)
        return SnapshotOutcome(snapshot.rank, fault=line)
    devices = examined(content)
    tables = {
        name: lake.write(name, table, run=run, iteration=iteration, rank=snapshot.rank)
        for name, table in memory_tables(content, devices).items()
    }
    lost = losses(devices) if devices else ["holds neither a segment nor an event of a GPU"]
    fault = str(BadInputError(path, f"read in part: {'; '.join(lost)}", "record it again")) if lost else ""
    return SnapshotOutcome(snapshot.rank, tables, fault, devices[0].peak_requested_bytes if devices else None)
