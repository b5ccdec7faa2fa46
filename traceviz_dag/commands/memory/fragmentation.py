"""``traceviz memory fragmentation``: what the reserved memory serves, and why the rest serves nobody."""

from __future__ import annotations

import typer

from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.analyze.memory.layout import Fragmentation
from traceviz_dag.analyze.wording import mebibytes
from traceviz_dag.commands.common.options import JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.memory.common import (
    DeviceOption,
    SnapshotArgument,
    end_partial,
    opened,
    print_devices,
    print_notes,
    share,
)

_CAUSES = {
    "requested_bytes": "requested and held",
    "rounding_bytes": "rounding: blocks larger than requested",
    "inactive_split_bytes": "free beside blocks in use",
    "unused_segments_bytes": "segments without a block in use",
    "uncovered_bytes": "listed in no block",
}


def fragmentation(file: SnapshotArgument, device: DeviceOption = None, json: JsonOption = False) -> None:
    """Show what the reserved memory serves, at the end and at the peak: the parts add up to what is reserved.

    At the peak, sizes of blocks that are gone at the end are taken from what was requested, rounded up to 512 bytes.
    """
    devices = opened(file, device)
    if json:
        print_devices(
            file,
            devices,
            [{"device": one.device, **{k: v.as_row() for k, v in _moments(one).items()}} for one in devices],
        )
    else:
        for one in devices:
            _print(one)
    end_partial(devices)


def _moments(one: Examined) -> dict[str, Fragmentation]:
    return {"end": one.at_end, **({"peak": one.at_peak} if len(one.replay.action) else {})}


def _print(one: Examined) -> None:
    for moment, state in _moments(one).items():
        near = "" if state.exact else " (sizes of blocks that are gone at the end: as requested, rounded up)"
        print_columns(
            f"GPU {one.device} at the {moment}{near}",
            [
                {"cause": label, "size_bytes": size, "share": share(size, state.reserved_bytes)}
                for label, size in [
                    *((label, getattr(state, name)) for name, label in _CAUSES.items()),
                    ("reserved", state.reserved_bytes),
                ]
            ],
            [("cause", "reserved memory"), ("size_bytes", ""), "share"],
        )
        typer.echo(
            f"{mebibytes(state.inactive_bytes)} MiB are free inside; the largest free block has "
            f"{mebibytes(state.largest_free_block_bytes)} MiB; {mebibytes(state.pending_bytes)} MiB of what is held is "
            "given back, but still in use by another stream"
        )
    print_notes(one)
