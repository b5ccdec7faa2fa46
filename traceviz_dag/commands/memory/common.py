"""What the memory commands share: their options, opening a snapshot, and what is said of its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from traceviz_dag.analyze.memory.examination import Examined, Part, examined, losses
from traceviz_dag.analyze.wording import ABSENT, counted, mebibytes
from traceviz_dag.commands.common.output import print_columns, print_json
from traceviz_dag.errors import BadInputError, IncompleteError
from traceviz_dag.read.memory.reader import read_snapshot

SnapshotArgument = Annotated[
    Path, typer.Argument(help="Snapshot: a file of torch.cuda.memory._dump_snapshot.", show_default=False)
]
DeviceOption = Annotated[
    int | None, typer.Option("--device", min=0, help="Take only this GPU of the process.", show_default=False)
]
StacksOption = Annotated[bool, typer.Option("--stacks", help="Distinguish whole Python stacks, not only who asked.")]


def opened(path: Path, device: int | None = None) -> list[Examined]:
    """Read and examine a snapshot: its devices, the one with most reserved memory first.

    Raises:
        BadInputError: it is no snapshot, holds no memory of a GPU, or not the device.
    """
    found = examined(read_snapshot(path))
    if not found:
        raise BadInputError(
            path,
            "holds neither a segment nor an event of a GPU",
            "take it in a process that uses a GPU, and start recording before the memory is allocated",
        )
    wanted = [one for one in found if device in (None, one.device)]
    if not wanted:
        numbers = ", ".join(str(one.device) for one in found)
        raise BadInputError(path, f"holds no device {device}", f"choose one that it holds: {numbers}")
    return wanted


def notes(one: Examined) -> list[str]:
    """What a reader must know of the limits of a snapshot's recording."""
    found = [_of_recording(one)]
    unknown = one.snapshot.unknown
    if unknown:
        names = ", ".join(list(unknown)[:3])
        told = counted(sum(unknown.values()), "key or action", "keys or actions")
        found.append(f"not understood and left out: {told} ({names})")
    return found + losses([one])


def all_notes(devices: Sequence[Examined]) -> list[str]:
    """:func:`notes` of every device, in order; of several each names its GPU."""
    if len(devices) == 1:
        return notes(devices[0])
    return [f"GPU {one.device}: {note}" for one in devices for note in notes(one)]


def end_partial(devices: Sequence[Examined]) -> None:
    """End a command, after its answer, where parts of the snapshot could not be used or contradict each other.

    Raises:
        IncompleteError: they could not.
    """
    lost = list(dict.fromkeys(loss for one in devices for loss in losses([one])))
    if lost:
        raise IncompleteError(f"partial result: {'; '.join(lost)}")


def print_devices(path: Path, devices: Sequence[Examined], answers: Sequence[dict[str, Any]]) -> None:
    """Print an answer for each device as JSON."""
    print_json({"file": str(path), "devices": list(answers), "notes": all_notes(devices)})


def print_notes(one: Examined) -> None:
    """Print what a reader must know, a line each."""
    for note in notes(one):
        typer.echo(note)


def share(part: int, whole: int) -> float | None:
    """A part of a whole; None of nothing."""
    return part / whole if whole else None


def since_first(one: Examined, event: int) -> str:
    """When an event was, from the first on, in milliseconds."""
    first, time = one.replay.time_ns(0), one.replay.time_ns(event)
    return ABSENT if first is None or time is None else f"{(time - first) / 1e6:,.3f}"


def _the_first_of(events: int) -> str:
    return "the only event" if events == 1 else f"the first of {events:,} events"


def _of_recording(one: Examined) -> str:
    if not len(one.replay.action):
        known = "known in part" if losses([one]) else "whole"
        return (
            f"it holds no events: what was allocated before, and the peak, are unknown; the state at its end is {known}"
        )
    overflowed, most = one.snapshot.ring
    early = int(one.replay.requested[0])
    begin = f"{mebibytes(early)} MiB were requested before {_the_first_of(len(one.replay.action))}"
    kept = f" of which the recording keeps {most:,}" if most is not None else ""
    if overflowed is None:
        full = ", and its events may be all that it keeps" if most == len(one.replay.action) else ""
        return f"{begin}{kept}; the file does not record whether older events were overwritten{full}"
    if overflowed:
        return f"{begin}{kept}; older events were overwritten: an earlier peak is unknown"
    return f"{begin}{kept}; no event was overwritten"


def print_categories(title: str, parts: Sequence[Part], whole: int) -> None:
    """Print what each category holds of a whole number of bytes."""
    rows = [{**asdict(part), "share": share(part.requested_bytes, whole)} for part in parts]
    print_columns(title, rows, ["category", "evidence", "requested_bytes", "share", "blocks"])
