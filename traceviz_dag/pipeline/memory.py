"""What is known of GPU memory in an iteration, stored rank by rank: of snapshots beside the traces, else of traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.memory.examination import examined, losses
from traceviz_dag.analyze.memory.matching import Seen, matched, seen_by_snapshot, seen_by_trace
from traceviz_dag.analyze.memory.tables import memory_tables, tables_of_trace
from traceviz_dag.errors import BadInputError, StoreError, file_system_line
from traceviz_dag.lake.inputs import IterationInputs, RankInput, SnapshotInput
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.marking import mark_stale, unmark
from traceviz_dag.lake.stale import Stale
from traceviz_dag.lake.write import Written
from traceviz_dag.pipeline.formats.registry import trace_format
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.made import CODE_VERSION, made_word
from traceviz_dag.read.memory.reader import read_snapshot
from traceviz_dag.system.processes import WorkerDiedError, spread
from traceviz_dag.tables import MEMORY_RECORDINGS, MEMORY_TABLES
from traceviz_dag.vocabulary import StaleCause, StaleStage


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


MemorySource = SnapshotInput | RankInput
"""A snapshot of a rank; else its trace, where that records memory."""


def memory_sources(lake: Lake, inputs: IterationInputs) -> tuple[MemorySource, ...]:
    """What records the memory of each rank: its snapshot, else its trace where memory was recorded in it.

    The lake has table ``traces`` of the iteration, as far as that was made. A rank whose snapshot is gone keeps its
    tables.
    """
    run, iteration = inputs.run, inputs.iteration
    traced = lake.rows("traces", run, iteration, ["rank", "has_memory_events"]).to_pylist()
    told = {row["rank"] for row in traced if row["has_memory_events"]}
    has_snapshot = {one.rank for one in inputs.snapshots}
    if told:
        events = lake.rows("memory_events", run, iteration, ["rank", "source"])
        of_snapshots = pc.equal(events["source"].cast(pa.string()), "snapshot")
        has_snapshot |= set(pc.unique(events["rank"].filter(of_snapshots)).to_pylist())
    traces = [one for one in inputs.ranks if one.rank in told and one.rank not in has_snapshot]
    found: tuple[MemorySource, ...] = (*inputs.snapshots, *(one for one in traces if Path(one.path).exists()))
    return tuple(sorted(found, key=lambda one: one.rank))


NOT_TAKEN_REMEDY = "put that of this trace in its place; traceviz memory summary reads a snapshot alone"
"""What to do with a snapshot that is not of the trace beside it."""


def mark_mismatched(lake: Lake, inputs: IterationInputs) -> dict[int, str]:
    """Mark the tables of snapshots that are not of their rank's trace as it is now; report what the others match by.

    Automation may read snapshots before traces, and traces change: whoever asks the tables calls this first.

    Returns:
        Rank → why.
    """
    place = (inputs.run, inputs.iteration)
    found = {}
    # A snapshot that could not be read stays marked, whatever the tables match that it had.
    marks = [row for row in lake.stale(*place) if row.stage == StaleStage.MEMORY and row.cause == StaleCause.OUTDATED]
    mismatched = {row.rank for row in marks if row.rank is not None}
    for part in lake.partitions(MEMORY_RECORDINGS.name, *place, with_stale=True):
        if part.rank is None:
            continue
        rows = lake.table(MEMORY_RECORDINGS.name, *place, part.rank).arrow().to_pylist()
        first = min((row["first_ns"] for row in rows if row["first_ns"] is not None), default=None)
        last = max((row["last_ns"] for row in rows if row["last_ns"] is not None), default=None)
        seen = Seen(first, last, frozenset(row["device"] for row in rows))
        evidence, refusal = matched(seen, _seen_by_trace(lake, *place, part.rank))
        if refusal:
            found[part.rank] = refusal
            mark_stale(lake, *place, [Stale(part.rank, StaleStage.MEMORY, StaleCause.OUTDATED, refusal)])
            continue
        unmark(lake, *place, StaleStage.MEMORY, mismatched & {part.rank})
        if any(row["matched_by"] != evidence for row in rows):
            told = [{**row, "matched_by": str(evidence)} for row in rows]
            table = pa.Table.from_pylist(told, MEMORY_RECORDINGS.schema)
            run, iteration, rank = inputs.run, inputs.iteration, part.rank
            content = lake.content(MEMORY_RECORDINGS.name, run=run, iteration=iteration, rank=rank)
            made = content.made if content is not None else ""
            lake.write(MEMORY_RECORDINGS.name, table, run=run, iteration=iteration, rank=rank, made=made)
    return found


def set_aside_unreadable(lake: Lake, inputs: IterationInputs) -> list[int]:
    """Set aside the tables of ranks without a snapshot that a version with other columns wrote, or that are damaged:
    they keep everything else of the iteration from being read, and no snapshot makes them anew.

    Returns:
        Those ranks.
    """
    made_anew = {one.rank for one in inputs.snapshots}
    place = (inputs.run, inputs.iteration)
    unreadable = {
        part.rank
        for name in MEMORY_TABLES
        for part in lake.partitions(name, *place, with_stale=True)
        if part.rank is not None
        and part.rank not in made_anew
        and not lake.is_readable(name, run=inputs.run, iteration=inputs.iteration, rank=part.rank)
    }
    for rank in unreadable:
        lake.delete(*MEMORY_TABLES, run=inputs.run, iteration=inputs.iteration, rank=rank, set_aside=True)
    return sorted(unreadable)


def read_in_part(lake: Lake, inputs: IterationInputs) -> dict[int, str]:
    """Rank → what could not be used of the snapshot that its tables are of."""
    rows = lake.rows(MEMORY_RECORDINGS.name, inputs.run, inputs.iteration, ["rank", "fault"]).to_pylist()
    return {row["rank"]: row["fault"] for row in rows if row["fault"] is not None}


def store_memory(
    lake: Lake, run: str, iteration: int, sources: Sequence[MemorySource], workers: int
) -> Iterator[SnapshotOutcome]:
    """Read and store what records memory, side by side; what cannot be read costs its rank alone, whose tables stay as
    they were, marked as stale.

    Yields:
        An outcome for each rank, as it is finished.
    """
    work = partial(_store, lake, run, iteration)
    if len(sources) < 2 or workers == 1:
        yield from map(work, sources)
        return
    for number, outcome in spread(work, sources, workers):
        rank = sources[number].rank
        yield SnapshotOutcome(rank, fault=str(outcome)) if isinstance(outcome, WorkerDiedError) else outcome


def stored_memory(lake: Lake, inputs: IterationInputs, ranks: Iterable[int]) -> list[SnapshotOutcome]:
    """What :func:`store_memory` said of ranks whose tables are there."""
    faults = read_in_part(lake, inputs)
    place = partial(lake.written, run=inputs.run, iteration=inputs.iteration)
    return [
        SnapshotOutcome(rank, {name: place(name, rank=rank) for name in MEMORY_TABLES}, faults.get(rank, ""))
        for rank in ranks
    ]


def _store(lake: Lake, run: str, iteration: int, source: MemorySource) -> SnapshotOutcome:
    try:
        if isinstance(source, RankInput):
            rows = _of_trace(lake, run, iteration, source)
            written = _written(lake, run, iteration, source, tables_of_trace(rows, source.format))
            return SnapshotOutcome(source.rank, written)
        return _store_snapshot(lake, run, iteration, source)
    except (BadInputError, StoreError, OSError) as error:
        line = file_system_line(error) if isinstance(error, OSError) else str(error)
        rank = source.rank
        if all(lake.is_readable(name, run=run, iteration=iteration, rank=rank) for name in MEMORY_TABLES):
            mark_stale(lake, run, iteration, [Stale(source.rank, StaleStage.MEMORY, StaleCause.UNREADABLE, line)])
        else:
            lake.delete(*MEMORY_TABLES, run=run, iteration=iteration, rank=rank)
        return SnapshotOutcome(source.rank, fault=line)


def _seen_by_trace(lake: Lake, run: str, iteration: int, rank: int) -> Seen:
    """When and where the trace of a rank was recorded; nothing where it was not read, or not yet."""
    if not lake.partitions("traces", run, iteration, rank):
        return Seen(None, None, frozenset())
    columns = ["first_ns", "last_ns", "devices", "format"]
    (row,) = lake.table("traces", run, iteration, rank).arrow(columns).to_pylist()
    return seen_by_trace(row["first_ns"], row["last_ns"], row["devices"] or (), row["format"] or "")


def _of_trace(lake: Lake, run: str, iteration: int, entry: RankInput) -> pa.Table:
    """What a rank's trace shows of memory; of a file of several steps only during the iteration's own."""
    trace = RankTrace(Path(entry.path), entry.name, entry.rank, entry.step, entry.part, lake.home)
    rows = trace_format(entry.format).memory(trace)
    if entry.step is None:
        return rows
    windows = lake.table("overlap", run, iteration, entry.rank).arrow(["window_start_ns", "window_end_ns"])
    first, last = pc.min(windows["window_start_ns"]), pc.max(windows["window_end_ns"])
    return rows.filter(pc.and_(pc.greater_equal(rows["time_ns"], first), pc.less_equal(rows["time_ns"], last)))


def memory_word(source: MemorySource) -> str:
    """Of what the tables of GPU memory of a rank are made."""
    return made_word(source=source.version, code=CODE_VERSION)


def _written(
    lake: Lake, run: str, iteration: int, source: MemorySource, tables: Mapping[str, pa.Table]
) -> dict[str, Written]:
    write = partial(lake.write, run=run, iteration=iteration, rank=source.rank, made=memory_word(source))
    written = {name: write(name, table) for name, table in tables.items()}
    unmark(lake, run, iteration, StaleStage.MEMORY, {source.rank})
    return written


def _store_snapshot(lake: Lake, run: str, iteration: int, snapshot: SnapshotInput) -> SnapshotOutcome:
    path = Path(snapshot.path)
    content = read_snapshot(path)
    devices = examined(content)
    evidence, refusal = matched(seen_by_snapshot(devices), _seen_by_trace(lake, run, iteration, snapshot.rank))
    if refusal:
        raise BadInputError(path, f"not taken: {refusal}", NOT_TAKEN_REMEDY)
    if not devices:
        raise BadInputError(path, "holds neither a segment nor an event of a GPU", "record it again")
    lost = losses(devices)
    fault = str(BadInputError(path, f"read in part: {'; '.join(lost)}", "record it again")) if lost else ""
    made = memory_tables(content, devices, snapshot.name, evidence, fault or None)
    tables = _written(lake, run, iteration, snapshot, made)
    return SnapshotOutcome(snapshot.rank, tables, fault, devices[0].peak_requested_bytes)
