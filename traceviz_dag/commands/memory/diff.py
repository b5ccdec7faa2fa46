"""``traceviz memory diff``: what changed the peak from one snapshot to another."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.analyze.memory.comparison import by_category, peak_changes
from traceviz_dag.commands.common.options import JsonOption
from traceviz_dag.commands.common.output import print_json, print_table
from traceviz_dag.commands.memory.common import (
    DeviceOption,
    LimitOption,
    SnapshotArgument,
    end_partial,
    mebibytes,
    notes,
    opened,
)


def diff(
    file: SnapshotArgument,
    other: Annotated[Path, typer.Argument(help="Snapshot to compare with it.", show_default=False)],
    sites: Annotated[bool, typer.Option("--sites", help="Tell apart who asked, not whole Python stacks.")] = False,
    device: DeviceOption = None,
    limit: LimitOption = 20,
    json: JsonOption = False,
) -> None:
    """Show what changed the peak, by call stack; addresses do not matter, and the changes add up to that of the peak.

    Of each snapshot the GPU with most reserved memory is taken, or the one that --device names. Without events, the
    state at the end counts as the peak.
    """
    before, after = opened(file, device)[0], opened(other, device)[0]
    changes = peak_changes(before, after, whole_stacks=not sites)
    peaks = [one.replay.peak_requested for one in (before, after)]
    changed = peaks[1] - peaks[0]
    if json:
        print_json(
            {
                "files": [str(file), str(other)],
                "devices": [before.device, after.device],
                "peak_requested_bytes": peaks,
                "change_bytes": changed,
                "categories": by_category(changes),
                "changes": [{**asdict(one), "change_bytes": one.change_bytes} for one in changes],
                "notes": [notes(before), notes(after)],
            }
        )
    else:
        typer.echo(f"peak {mebibytes(peaks[0])} MiB → {mebibytes(peaks[1])} MiB, a change of {mebibytes(changed)} MiB")
        print_table(
            "By category",
            ["category", "change MiB"],
            [[category, mebibytes(size)] for category, size in by_category(changes).items()],
        )
        moved = [one for one in changes if one.change_bytes or one.before_blocks != one.after_blocks]
        print_table(
            "By who asked for it" if sites else "By call stack",
            ["change MiB", "before MiB", "after MiB", "blocks before", "blocks after", "category", "who"],
            [
                [
                    mebibytes(one.change_bytes),
                    mebibytes(one.before_bytes),
                    mebibytes(one.after_bytes),
                    one.before_blocks,
                    one.after_blocks,
                    one.category,
                    one.text,
                ]
                for one in moved[:limit]
            ],
        )
        if len(moved) > limit:
            rest = sum(one.change_bytes for one in moved[limit:])
            typer.echo(
                f"{len(moved) - limit:,} more rows change it by {mebibytes(rest)} MiB; --limit shows more, --json all"
            )
        for name, one in zip((file, other), (before, after), strict=True):
            for note in notes(one):
                typer.echo(f"{name.name}: {note}")
    end_partial([before, after])
