"""``traceviz memory summary``: what was allocated and reserved, at the peak and at the end."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.analyze.wording import counted, mebibytes
from traceviz_dag.commands.common.options import JsonOption
from traceviz_dag.commands.common.output import print_json
from traceviz_dag.commands.memory.common import (
    DeviceOption,
    SnapshotArgument,
    all_notes,
    end_partial,
    opened,
    print_categories,
    print_notes,
)


def summary(file: SnapshotArgument, device: DeviceOption = None, json: JsonOption = False) -> None:
    """Show what a snapshot holds: requested and reserved memory at its end and at the peak, by category.

    JSON has the device with most reserved memory at its top, and all of them in a list.
    """
    devices = opened(file, device)
    answers = [_answer(one) for one in devices]
    if json:
        print_json({"file": str(file), **answers[0], "devices": answers, "notes": all_notes(devices)})
    else:
        for one, answer in zip(devices, answers, strict=True):
            _print(one, answer)
    end_partial(devices)


def _answer(one: Examined) -> dict[str, Any]:
    end, replay = one.at_end, one.replay
    peak = one.peak_requested_bytes
    return {
        "device": one.device,
        "events": len(replay.action),
        "segments": len(replay.segments),
        "live_blocks": len(replay.live_blocks),
        "live_requested_bytes": end.requested_bytes,
        "live_bytes": end.requested_bytes + end.rounding_bytes,
        "reserved_bytes": end.reserved_bytes,
        "inactive_bytes": end.inactive_bytes,
        "largest_free_block_bytes": end.largest_free_block_bytes,
        "pending_bytes": end.pending_bytes,
        "peak_requested_bytes": peak,
        "peak_event": None if peak is None or replay.peak_event < 0 else replay.peak_event,
        "peak_time_ns": replay.time_ns(replay.peak_event),
        "peak_reserved_bytes": int(replay.reserved.max()) if peak is not None else None,
        "start_requested_bytes": int(replay.requested[0]) if peak is not None else None,
        "categories_at_peak": [asdict(part) for part in one.parts(replay.peak_event)] if peak is not None else None,
        "categories_at_end": [asdict(part) for part in one.parts(len(replay.action) - 1)],
        "out_of_memory_events": len(_failed(one)),
        "contradictions": replay.contradictions,
    }


def _failed(one: Examined) -> list[int]:
    import numpy as np

    from traceviz_dag.read.memory.snapshot import Action

    return [int(place) for place in np.flatnonzero(one.replay.action == Action.OOM)]


def _print(one: Examined, answer: dict[str, Any]) -> None:
    peak = answer["peak_requested_bytes"]
    blocks = counted(answer["live_blocks"], "live block", "live blocks")
    segments = counted(answer["segments"], "segment", "segments")
    typer.echo(
        f"GPU {one.device}: {mebibytes(answer['live_requested_bytes'])} MiB requested in {blocks} of "
        f"{mebibytes(answer['live_bytes'])} MiB; {mebibytes(answer['reserved_bytes'])} MiB reserved in {segments}, of "
        f"which {mebibytes(answer['inactive_bytes'])} MiB are free; the largest free block has "
        f"{mebibytes(answer['largest_free_block_bytes'])} MiB"
    )
    if peak is not None:
        where = "before the first event" if one.replay.peak_event < 0 else f"after event {one.replay.peak_event:,}"
        typer.echo(f"most was requested {where}: {mebibytes(peak)} MiB")
    if answer["out_of_memory_events"]:
        failed = answer["out_of_memory_events"]
        typer.echo(f"{counted(failed, 'request', 'requests')} failed; traceviz memory oom says why")
    print_notes(one)
    moments = {"at the end": len(one.replay.action) - 1}
    if peak is not None:
        moments = {"at the peak": one.replay.peak_event, **moments}
    for moment, event in moments.items():
        parts = one.parts(event)
        whole = sum(part.requested_bytes for part in parts)
        print_categories(f"GPU {one.device} {moment}, by category", parts, whole)
