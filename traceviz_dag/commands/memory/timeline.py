"""``traceviz memory timeline``: how much was requested and reserved over time, and by which category."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.analyze.memory.timeline import Interval, intervals
from traceviz_dag.analyze.wording import counted
from traceviz_dag.commands.common.options import JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.memory.common import (
    DeviceOption,
    SnapshotArgument,
    end_partial,
    opened,
    print_devices,
    print_notes,
    since_first,
)
from traceviz_dag.errors import NoEvidenceError


def timeline(
    file: SnapshotArgument,
    points: Annotated[int, typer.Option(min=1, max=100_000, help="Parts that the recording is cut into.")] = 30,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Show requested and reserved memory over the recording: each row has the highest of its part, by category.

    Parts have equally many events. Allocated are the blocks in use; active, and requested, also include those
    given back while a stream still used them. Sizes of blocks that are gone at the end are as requested, rounded up.
    """
    devices = opened(file, device)
    if not any(len(one.replay.action) for one in devices):
        raise NoEvidenceError(f"{file} holds no events; only they show other times than the end")
    parts = {one.device: intervals(one, points) for one in devices}
    if json:
        print_devices(file, devices, [_answer(one, parts[one.device]) for one in devices])
    else:
        for one in devices:
            _print(one, parts[one.device])
    end_partial(devices)


def _answer(one: Examined, parts: list[Interval]) -> dict[str, Any]:
    replay = one.replay
    return {
        "device": one.device,
        "optimizer_steps": [
            {"first_event": first if first >= 0 else None, "last_event": last}
            for first, last in zip(one.steps.first.tolist(), one.steps.last.tolist(), strict=True)
        ],
        "steps_evidence": one.steps.evidence,
        "parts": [
            {
                "first_event": part.first,
                "last_event": part.last,
                "first_time_ns": replay.time_ns(part.first),
                "last_time_ns": replay.time_ns(part.last),
                "highest_event": part.highest,
                "requested_bytes": part.requested_bytes,
                "pending_bytes": part.pending_bytes,
                "allocated_bytes": part.allocated_bytes,
                "active_bytes": part.active_bytes,
                "reserved_bytes": part.reserved_bytes,
                "steps": list(part.steps),
                "categories": part.categories,
            }
            for part in parts
        ],
    }


def _print(one: Examined, parts: list[Interval]) -> None:
    print_notes(one)
    names = list(dict.fromkeys(name for part in parts for name, size in part.categories.items() if size))
    sizes = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
    print_columns(
        f"GPU {one.device}: the highest of {counted(len(parts), 'part', 'parts')} of the recording",
        [
            {
                **{name: getattr(part, name) for name in sizes},
                **{f"{name}_bytes": part.categories[name] for name in names},
                "first": part.first,
                "since": since_first(one, part.first),
                "in_step": " › ".join(part.steps) or None,
            }
            for part in parts
        ],
        [
            *(("first", "from event"), ("since", "from ms"), "in_step", *sizes),
            *(f"{name}_bytes" for name in names),
        ],
    )
    for number, (first, last) in enumerate(zip(one.steps.first.tolist(), one.steps.last.tolist(), strict=True)):
        begin = f"event {first:,}" if first >= 0 else "before the recording"
        typer.echo(f"optimizer step {number}: from {begin} to event {last:,} (evidence: {one.steps.evidence})")
