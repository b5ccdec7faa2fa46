"""``traceviz memory diff``: what changed the peak from one snapshot to another, or from one iteration to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.analyze.memory.comparison import Held, by_category, held_at_peak, peak_changes
from traceviz_dag.analyze.memory.examination import BEFORE, FRAMELESS, Examined
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, print_table
from traceviz_dag.commands.memory.common import DeviceOption, LimitOption, end_partial, mebibytes, notes, opened
from traceviz_dag.errors import NoEvidenceError, UsageError


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two: what holds its peak, and what a reader must know of it."""

    held: Held
    device: int | None
    notes: Sequence[str]
    snapshot: Examined | None = None

    @property
    def peak_bytes(self) -> int:
        return sum(size for size, _ in self.held.values())


def diff(
    file: Annotated[
        Path,
        typer.Argument(help="Snapshot; with --rank an iteration of the home, as RUN@ITERATION.", show_default=False),
    ],
    other: Annotated[Path, typer.Argument(help="What to compare with it, alike.", show_default=False)],
    sites: Annotated[bool, typer.Option("--sites", help="Tell apart who asked, not whole Python stacks.")] = False,
    device: DeviceOption = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Compare this rank of two iterations of the home.", show_default=False)
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    limit: LimitOption = 20,
    json: JsonOption = False,
) -> None:
    """Show what changed the peak, by call stack; addresses do not matter, and the changes add up to that of the peak.

    Of each snapshot the GPU with most reserved memory is taken, or the one that --device names. Without events, the
    state at the end counts as the peak.
    """
    if rank is not None and device is not None:
        raise UsageError("give --device with snapshots, or --rank with iterations of a home")
    sides = [
        _of_file(each, device, sites=sites) if rank is None else _of_home(home, str(each), rank, sites=sites)
        for each in (file, other)
    ]
    before, after = sides
    changes = peak_changes(before.held, after.held)
    peaks = [side.peak_bytes for side in sides]
    changed = peaks[1] - peaks[0]
    if json:
        print_json(
            {
                "files": [str(file), str(other)],
                "devices": [before.device, after.device],
                "rank": rank,
                "peak_requested_bytes": peaks,
                "change_bytes": changed,
                "categories": by_category(changes),
                "changes": [{**asdict(one), "change_bytes": one.change_bytes} for one in changes],
                "notes": [list(before.notes), list(after.notes)],
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
        for name, side in zip((file, other), sides, strict=True):
            for note in side.notes:
                typer.echo(f"{name.name}: {note}")
    end_partial([side.snapshot for side in sides if side.snapshot is not None])


def _of_file(path: Path, device: int | None, *, sites: bool) -> _Side:
    one = opened(path, device)[0]
    return _Side(held_at_peak(one, whole_stacks=not sites), one.device, notes(one), one)


def _of_home(home: Path, key: str, rank: int, *, sites: bool) -> _Side:
    from traceviz_dag.lake.lake import open_lake
    from traceviz_dag.lake.memory_peaks import stored_at_peak
    from traceviz_dag.lake.partition_keys import parse_iteration_key

    run, iteration = parse_iteration_key(key)
    absent = {"before": BEFORE, "frameless": FRAMELESS}
    held = stored_at_peak(open_lake(home), run, iteration, rank, whole_stacks=not sites, **absent)
    if held is None:
        raise NoEvidenceError(f"{home} holds no snapshot of GPU memory of rank {rank} in {key}; analyze takes those")
    return _Side(held, None, [])
