"""The tables of a snapshot of CUDA memory."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.memory.categories import CATEGORIES, EVIDENCES
from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.analyze.memory.roles import Role, python_text, roles_of, site_of
from traceviz_dag.analyze.memory.steps import StepEvidence, annotated_steps
from traceviz_dag.arrays import Int64, lookup
from traceviz_dag.read.memory.snapshot import ACTIONS, INACTIVE, UNKNOWN, Action, Snapshot
from traceviz_dag.tables import (
    MEMORY_BLOCKS,
    MEMORY_EVENTS,
    MEMORY_PEAKS,
    MEMORY_RECORDINGS,
    MEMORY_SEGMENTS,
    MEMORY_STACKS,
    MEMORY_STEPS,
    Table,
)
from traceviz_dag.vocabulary import MatchEvidence


def memory_tables(
    snapshot: Snapshot,
    devices: Sequence[Examined],
    file: str = "",
    matched_by: MatchEvidence | None = None,
    fault: str | None = None,
) -> dict[str, pa.Table]:
    """The tables of some devices of a snapshot, by name; call stacks are those of all.

    Args:
        file: its path, for people. matched_by: what shows that it is of its rank's trace; None of a file alone.
        fault: what of it could not be used, in a line.
    """
    return {
        MEMORY_EVENTS.name: _joined(MEMORY_EVENTS, map(_events, devices)),
        MEMORY_BLOCKS.name: _joined(MEMORY_BLOCKS, map(_blocks, devices)),
        MEMORY_SEGMENTS.name: _segments(snapshot, [one.device for one in devices]),
        MEMORY_STACKS.name: _stacks(snapshot),
        MEMORY_STEPS.name: _joined(MEMORY_STEPS, map(_steps, devices)),
        MEMORY_PEAKS.name: _joined(MEMORY_PEAKS, map(_peaks, devices)),
        MEMORY_RECORDINGS.name: _recordings(snapshot, devices, file, matched_by, fault),
    }


def tables_of_trace(rows: pa.Table, source: str) -> dict[str, pa.Table]:
    """The same tables from what a trace shows of memory: its events alone, not what was requested, or by whom.

    Args:
        rows: as ``read.kineto.memory.MEMORY``, in the order of time; those of the host are left out.
        source: name of the trace's format.
    """
    rows = rows.filter(pc.and_(pc.starts_with(rows["device"], "gpu:"), pc.is_valid(rows["action"])))
    device = pc.cast(pc.utf8_slice_codeunits(rows["device"], 4), pa.int32())
    rows = rows.append_column("number", device)
    rows = rows.take(np.argsort(np.asarray(device), kind="stable"))
    numbers = np.asarray(rows["number"])
    first = np.searchsorted(numbers, numbers, "left") if len(numbers) else numbers
    nothing = pa.nulls(rows.num_rows, pa.int64())
    events = MEMORY_EVENTS.from_columns(
        {
            "event_id": np.arange(rows.num_rows) - first,
            "device": rows["number"],
            "action": rows["action"].combine_chunks().dictionary_encode(),
            "source": pa.repeat(source, rows.num_rows).dictionary_encode(),
            **{name: rows[name] for name in ("address", "bytes", "stream", "time_ns")},
            "stack_id": nothing,
            "requested_bytes": nothing,
            **{name: rows[name] for name in ("allocated_bytes", "reserved_bytes")},
            "device_free_bytes": nothing,
        }
    )
    empty = (MEMORY_BLOCKS, MEMORY_SEGMENTS, MEMORY_STACKS, MEMORY_STEPS, MEMORY_PEAKS, MEMORY_RECORDINGS)
    return {MEMORY_EVENTS.name: events, **{table.name: table.schema.empty_table() for table in empty}}


def _joined(table: Table, parts: object) -> pa.Table:
    return pa.concat_tables([table.schema.empty_table(), *parts]).unify_dictionaries()  # type: ignore[misc]


def _events(one: Examined) -> pa.Table:
    replay = one.replay
    count = len(replay.action)
    free: list[int | None] = [None] * count
    for place in np.flatnonzero(replay.action == Action.OOM).tolist():
        free[place] = one.snapshot.ooms.get(int(replay.events[place]))
    return MEMORY_EVENTS.from_columns(
        {
            "event_id": np.arange(count),
            "device": np.full(count, one.device),
            "action": _words(replay.action, ACTIONS),
            "source": pa.repeat("snapshot", count).dictionary_encode(),
            "address": replay.address,
            "bytes": replay.bytes,
            "stream": _known(replay.stream),
            "time_ns": _times(replay.time_us),
            "stack_id": _known(replay.stack),
            "requested_bytes": replay.requested[1:],
            "allocated_bytes": pa.nulls(count, pa.int64()),
            "reserved_bytes": replay.reserved[1:],
            "device_free_bytes": free,
        }
    )


def _blocks(one: Examined) -> pa.Table:
    lives = one.replay.lifetimes
    count = len(lives)
    return MEMORY_BLOCKS.from_columns(
        {
            "block_id": np.arange(count),
            "device": np.full(count, one.device),
            "address": lives.address,
            "stream": _known(lives.stream),
            "requested_bytes": lives.requested,
            "block_bytes": _known(lives.block_bytes),
            "alloc_event_id": _known(lives.begin),
            "free_requested_event_id": _known(lives.requested_free),
            "free_completed_event_id": _known(lives.end),
            "alloc_time_ns": _times(lookup(one.replay.time_us, lives.begin)),
            "free_time_ns": _times(lookup(one.replay.time_us, lives.end)),
            "stack_id": _known(lives.stack),
            "free_stack_id": _known(lives.free_stack),
            "category": _words(one.categories.category, CATEGORIES),
            "evidence": _words(one.categories.evidence, EVIDENCES),
            "live_at_peak": lives.alive(one.replay.peak_event),
        }
    )


def _segments(snapshot: Snapshot, devices: Sequence[int]) -> pa.Table:
    segments, blocks = snapshot.segments, snapshot.blocks
    count = len(segments["bytes"])
    live = blocks["state"] != INACTIVE
    requested = np.where(blocks["requested"] == UNKNOWN, blocks["bytes"], blocks["requested"])
    sums = {}
    for name, which, values in (
        ("live_blocks", live, np.ones(len(live), np.int64)),
        ("requested_bytes", live, requested),
        ("block_bytes", live, blocks["bytes"]),
        ("inactive_bytes", ~live, blocks["bytes"]),
    ):
        sums[name] = np.zeros(count, np.int64)
        np.add.at(sums[name], blocks["segment"][which], values[which])
    largest = np.zeros(count, np.int64)
    np.maximum.at(largest, blocks["segment"][~live], blocks["bytes"][~live])
    table = MEMORY_SEGMENTS.from_columns(
        {
            "segment_id": np.arange(count),
            "device": segments["device"],
            "address": segments["address"],
            "bytes": segments["bytes"],
            "stream": _known(segments["stream"]),
            "pool": _words(segments["small"], ("large", "small")),
            "expandable": segments["expandable"] == 1,
            **sums,
            "largest_free_block_bytes": largest,
            "stack_id": _known(segments["stack"]),
        }
    )
    return table.filter(pa.array(np.isin(segments["device"], devices)))


def _stacks(snapshot: Snapshot) -> pa.Table:
    every = [snapshot.stacks.of(number) for number in range(len(snapshot.stacks))]
    return MEMORY_STACKS.from_columns(
        {
            "stack_id": range(len(every)),
            "role": _words(
                np.array([list(Role).index(role) for role in roles_of(snapshot.stacks)], np.int64), tuple(Role)
            ),
            "site": pa.array([site_of(frames) for frames in every], pa.string()).dictionary_encode(),
            "python_text": [python_text(frames) for frames in every],
            "frames": [len(frames) for frames in every],
            "text": ["\n".join(frame.text for frame in frames) for frames in every],
        }
    )


def _steps(one: Examined) -> pa.Table:
    rows: list[dict[str, object]] = [
        {
            "device": one.device,
            "name": name,
            "evidence": str(StepEvidence.ANNOTATION),
            "start_ns": None if start is None else start * 1000,
            "end_ns": end * 1000,
            "first_event_id": None if first == UNKNOWN else first,
            "last_event_id": last,
        }
        for name, start, end, first, last in annotated_steps(one.replay)
    ]
    if one.steps.evidence is StepEvidence.FRAMES:
        for first, last in zip(one.steps.first.tolist(), one.steps.last.tolist(), strict=True):
            times = {"start_ns": one.replay.time_ns(first), "end_ns": one.replay.time_ns(last)}
            place = {"device": one.device, "first_event_id": first, "last_event_id": last}
            rows.append({**place, **times, "name": "optimizer", "evidence": str(StepEvidence.FRAMES)})
    return pa.Table.from_pylist(rows, MEMORY_STEPS.schema)


def _peaks(one: Examined) -> pa.Table:
    replay = one.replay
    last = len(replay.action) - 1
    moments = {"end": last} if last < 0 else {"start": UNKNOWN, "peak": replay.peak_event, "end": last}
    rows = [
        {
            "device": one.device,
            "moment": moment,
            "event_id": None if event == UNKNOWN else event,
            "time_ns": replay.time_ns(event),
            "category": str(part.category),
            "evidence": str(part.evidence),
            "requested_bytes": part.requested_bytes,
            "blocks": part.blocks,
            "reserved_bytes": int(replay.reserved[event + 1]),
        }
        for moment, event in moments.items()
        for part in one.parts(event)
    ]
    return pa.Table.from_pylist(rows, MEMORY_PEAKS.schema)


def _recordings(
    snapshot: Snapshot, devices: Sequence[Examined], file: str, matched_by: MatchEvidence | None, fault: str | None
) -> pa.Table:
    overwritten, most = snapshot.ring
    lost = {**snapshot.unusable, **snapshot.unusable_values}
    rows = []
    for one in devices:
        times = one.replay.time_us[one.replay.time_us > 0]
        rows.append(
            {
                "device": one.device,
                "file": file,
                "matched_by": None if matched_by is None else str(matched_by),
                "events": len(one.replay.action),
                "first_ns": int(times.min()) * 1000 if len(times) else None,
                "last_ns": int(times.max()) * 1000 if len(times) else None,
                "most_events": most,
                "overwritten": overwritten,
                "unknown": sum(snapshot.unknown.values()),
                "unknown_names": json.dumps(dict(snapshot.unknown)),
                "lost": sum(lost.values()),
                "lost_names": json.dumps(lost),
                "contradictions": json.dumps(one.replay.contradictions),
                "fault": fault,
            }
        )
    return pa.Table.from_pylist(rows, MEMORY_RECORDINGS.schema)


def _known(values: Int64) -> pa.Array:
    return pa.array(values, mask=values == UNKNOWN)


def _times(time_us: Int64) -> pa.Array:
    return pa.array(time_us * 1000, mask=time_us <= 0)


def _words(codes: Int64, words: Sequence[str]) -> pa.Array:
    indices = pa.array(codes.astype(np.int32), mask=codes == UNKNOWN)
    return pa.DictionaryArray.from_arrays(indices, pa.array([str(word) for word in words], pa.string()))
