"""``traceviz memory leak``: what grows from step to step."""

from __future__ import annotations

from dataclasses import asdict

import typer

from traceviz_dag.analyze.memory.leaks import LEAST_STEPS, leaks, step_ends
from traceviz_dag.analyze.wording import counted, mebibytes
from traceviz_dag.commands.common.options import JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.memory.common import (
    DeviceOption,
    SnapshotArgument,
    end_partial,
    opened,
    print_devices,
    print_notes,
)
from traceviz_dag.errors import NoEvidenceError


def leak(file: SnapshotArgument, device: DeviceOption = None, json: JsonOption = False) -> None:
    """Show call stacks that hold more memory at the end of every step than at the end of the step before.

    Ends of steps are known from profiler steps or optimizer steps in the recording; four are needed, since the first
    step is left out.
    """
    devices = opened(file, device)
    answers, untold = [], []
    for one in devices:
        ends = step_ends(one.replay, one.steps)
        found = leaks(one.replay, ends)
        if found is None:
            known = counted(len(ends), "end of a training step", "ends of training steps")
            untold.append(f"GPU {one.device}: the recording has {known}; finding a leak takes {LEAST_STEPS + 1}")
        answers.append(
            {
                "device": one.device,
                "step_end_events": ends.tolist(),
                "leaks": None
                if found is None
                else [
                    {**asdict(each), "site": one.sites[each.stack], "text": one.stack_texts[each.stack]}
                    for each in found
                ],
                "reason": untold[-1] if found is None else None,
            }
        )
    if json:
        print_devices(file, devices, answers)
    else:
        for one, answer in zip(devices, answers, strict=True):
            rows = answer["leaks"]
            if rows is None:
                continue
            count = len(answer["step_end_events"])
            if not rows:
                typer.echo(f"GPU {one.device}: no call stack holds more at each of {count} ends of steps")
            else:
                total = sum(row["bytes_per_step"] for row in rows)
                typer.echo(
                    f"GPU {one.device}: {counted(len(rows), 'call stack holds', 'call stacks hold')} more at each "
                    f"of {count} ends of steps, the first left out; together {mebibytes(total)} MiB more per step"
                )
                print_columns(
                    "What grows",
                    [{**row, "held_bytes": row["bytes"], "grown_bytes": row["bytes_per_step"]} for row in rows],
                    [("grown_bytes", "per step"), ("held_bytes", "at the last end"), "blocks", ("site", "who")],
                )
            print_notes(one)
    if untold:
        raise NoEvidenceError("; ".join(untold))
    end_partial(devices)
