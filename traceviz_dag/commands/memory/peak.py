"""``traceviz memory peak``: who holds the memory when most is requested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.analyze.wording import counted, mebibytes
from traceviz_dag.commands.common.options import JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.memory.common import (
    DeviceOption,
    SnapshotArgument,
    StacksOption,
    end_partial,
    opened,
    print_categories,
    print_devices,
    print_notes,
    share,
)
from traceviz_dag.errors import UsageError


class Moment(StrEnum):
    """When to look."""

    PEAK = "peak"
    START = "start"
    END = "end"


def peak(
    file: SnapshotArgument,
    at: Annotated[Moment, typer.Option(help="peak: when most is requested; start: before the first event; end.")] = (
        Moment.PEAK
    ),
    event: Annotated[
        int | None, typer.Option(min=0, help="Show the memory after this event instead.", show_default=False)
    ] = None,
    stacks: StacksOption = False,
    modules: Annotated[bool, typer.Option("--modules", help="Distinguish only the source files of who asked.")] = False,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Show who holds the memory at the peak, or at another time: by category with its evidence, and by who asked."""
    if stacks and modules:
        raise UsageError("give --stacks or --modules, not both")
    devices = opened(file, device)
    answers = []
    for one in devices:
        when = _event(one, at, event)
        answers.append(
            {
                "device": one.device,
                "event": when if when >= 0 else None,
                "time_ns": one.replay.time_ns(when),
                "requested_bytes": int(one.replay.requested[when + 1]),
                "reserved_bytes": int(one.replay.reserved[when + 1]),
                "categories": [asdict(part) for part in one.parts(when)],
                "holders": [asdict(holder) for holder in one.holders(when, whole_stacks=stacks, modules=modules)],
            }
        )
    if json:
        print_devices(file, devices, answers)
    else:
        for one, answer in zip(devices, answers, strict=True):
            _print(one, answer)
    end_partial(devices)


def _event(one: Examined, at: Moment, event: int | None) -> int:
    last = len(one.replay.action) - 1
    if event is not None:
        if event > last:
            raise UsageError(
                f"--event {event}: device {one.device} has {counted(last + 1, 'event', 'events')}, from 0 on"
            )
        return event
    if last < 0:
        return last
    return {Moment.PEAK: one.replay.peak_event, Moment.START: -1, Moment.END: last}[at]


def _print(one: Examined, answer: Mapping[str, object]) -> None:
    when = answer["event"]
    assert when is None or isinstance(when, int)
    event = -1 if when is None else when
    whole = int(one.replay.requested[event + 1])
    place = f"after event {event:,}" if event >= 0 else "before the first event"
    if not len(one.replay.action):
        place = "at the end"
    typer.echo(
        f"GPU {one.device} {place}: {mebibytes(whole)} MiB requested, "
        f"{mebibytes(int(one.replay.reserved[event + 1]))} MiB reserved"
    )
    print_notes(one)
    print_categories("By category", one.parts(event), whole)
    holders = answer["holders"]
    assert isinstance(holders, list)
    print_columns(
        "By who asked for it",
        [{**row, "share": share(row["requested_bytes"], whole)} for row in holders],
        ["requested_bytes", "share", "blocks", "category", ("text", "who")],
    )
