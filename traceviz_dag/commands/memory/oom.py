"""``traceviz memory oom``: why a request failed."""

from __future__ import annotations

from dataclasses import asdict

import typer

from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.analyze.memory.out_of_memory import OutOfMemory, Verdict, out_of_memory
from traceviz_dag.analyze.wording import mebibytes
from traceviz_dag.commands.common.options import JsonOption
from traceviz_dag.commands.memory.common import (
    DeviceOption,
    SnapshotArgument,
    end_partial,
    opened,
    print_devices,
    print_notes,
)
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.memory.snapshot import UNKNOWN


def oom(file: SnapshotArgument, device: DeviceOption = None, json: JsonOption = False) -> None:
    """Explain each request that failed: what it asked for, what was free, and whether that was in too small pieces.

    Fragmentation: enough was free, on the device and inside the segments together. Really full: not even together.
    """
    devices = opened(file, device)
    if not any(len(one.replay.action) for one in devices):
        raise NoEvidenceError(f"{file} holds no events; only they record requests that failed")
    found = {one.device: out_of_memory(one.replay) for one in devices}
    if json:
        print_devices(
            file,
            devices,
            [
                {
                    "device": one.device,
                    "out_of_memory": [
                        {**asdict(each), "site": _site(one, each), "explanation": explanation(each)}
                        for each in found[one.device]
                    ],
                }
                for one in devices
            ],
        )
    else:
        for one in devices:
            for each in found[one.device]:
                typer.echo(f"GPU {one.device}, event {each.event:,}, {_site(one, each)}: {explanation(each)}")
            if not found[one.device]:
                typer.echo(f"GPU {one.device}: no request failed in this recording")
            print_notes(one)
    end_partial(devices)


def explanation(each: OutOfMemory) -> str:
    """Why a request failed, in a sentence."""
    free = "an unknown amount" if each.device_free_bytes is None else f"{mebibytes(each.device_free_bytes)} MiB"
    facts = (
        f"{mebibytes(each.asked_bytes)} MiB were asked for; the device had {free} free, and "
        f"{mebibytes(each.inactive_bytes)} MiB were free inside {mebibytes(each.reserved_bytes)} MiB of segments, of "
        f"which the request could use a block of at most {mebibytes(each.largest_free_block_bytes)} MiB"
    )
    more = []
    if each.other_streams_bytes:
        more.append(f"{mebibytes(each.other_streams_bytes)} MiB of what was free inside belong to other streams")
    if each.pending_bytes:
        more.append(f"{mebibytes(each.pending_bytes)} MiB wait for another stream to be done with them")
    end = f" ({'; '.join(more)})" if more else ""
    return f"{_VERDICTS[each.verdict].format(missing=mebibytes(each.missing_bytes))}: {facts}{end}"


_VERDICTS = {
    Verdict.FRAGMENTATION: "fragmentation, enough was free but in pieces",
    Verdict.REALLY_FULL: "really full, {missing} MiB were missing",
    Verdict.LIMIT: "a limit, the device alone had enough free",
    Verdict.UNKNOWN: "unknown, since the snapshot does not record what the device had free",
}


def _site(one: Examined, each: OutOfMemory) -> str:
    return one.sites[each.stack] if each.stack != UNKNOWN else "no frames"
