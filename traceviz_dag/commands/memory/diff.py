"""``traceviz memory diff``: what changed the peak from one snapshot to another, or from one run to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from traceviz_dag.analyze.memory.comparison import Change, Held, by_category, held_at_peak, peak_changes, together
from traceviz_dag.analyze.memory.examination import BEFORE, FRAMELESS
from traceviz_dag.analyze.wording import counted, mebibytes, numbered
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json, shown
from traceviz_dag.commands.memory.common import DeviceOption, end_partial, notes, opened
from traceviz_dag.errors import IncompleteError, NoEvidenceError, UsageError
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.memory_peaks import StoredPeak, stored_at_peaks
from traceviz_dag.lake.partition_keys import parse_iteration_key


@dataclass(frozen=True, slots=True)
class _Iteration:
    """The peaks of an iteration's ranks: of all that have a snapshot, or of the one that was asked for."""

    key: str
    peaks: Mapping[int, StoredPeak]

    def peak_bytes(self, ranks: Sequence[int]) -> int:
        return sum(self.peaks[rank].peak_bytes for rank in ranks)


def diff(
    file: Annotated[
        Path,
        typer.Argument(
            help="Snapshot; or an iteration of the home as RUN@ITERATION, or a RUN, whose last one is taken.",
            show_default=False,
        ),
    ],
    other: Annotated[Path, typer.Argument(help="What to compare with it, given the same way.", show_default=False)],
    sites: Annotated[bool, typer.Option("--sites", help="Distinguish who asked, not whole Python stacks.")] = False,
    device: DeviceOption = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Compare this rank alone of two runs or iterations.", show_default=False)
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show what changed the peak, by call stack; addresses do not matter, and the changes add up to that of the peak.

    Of each snapshot the GPU with most reserved memory is taken, or the one that --device names. Without events, the
    state at the end counts as the peak. Of runs, the ranks that both have are compared, each at its own peak.
    """
    if rank is not None and device is not None:
        raise UsageError("give --device with snapshots, or --rank with runs or iterations of a home")
    of_home = [rank is not None or _is_of_home(home, each) for each in (file, other)]
    if all(of_home):
        if device is not None:
            raise UsageError("--device is for snapshots; of runs each rank's GPU with most reserved memory is taken")
        _diff_iterations(home, [str(file), str(other)], rank, sites=sites, json=json)
    elif any(of_home):
        raise UsageError(f"{file} and {other}: give two snapshots, or two runs or iterations of a home")
    else:
        _diff_files(file, other, device, sites=sites, json=json)


def _is_of_home(home: Path, given: Path) -> bool:
    if given.exists():
        return False
    return "@" in given.name or bool(home.is_dir() and len(given.parts) == 1 and _runs(open_lake(home), str(given)))


def _runs(lake: Lake, run: str) -> list[int]:
    """Iterations of a run with snapshots."""
    found = {part.iteration for part in lake.partitions("memory_peaks", run)}
    return sorted(number for number in found if number is not None)


def _diff_files(file: Path, other: Path, device: int | None, *, sites: bool, json: bool) -> None:
    every = [opened(each, device) for each in (file, other)]
    sides = [each[0] for each in every]
    gpus = [one.device for one in sides]
    changes = peak_changes(*(held_at_peak(one, whole_stacks=not sites) for one in sides))
    peaks = [sum(one.before_bytes for one in changes), sum(one.after_bytes for one in changes)]
    if json:
        print_json(
            {
                "files": [str(file), str(other)],
                "devices": gpus,
                **_answer(changes, peaks),
                "notes": [notes(one) for one in sides],
            }
        )
    else:
        # A process has one GPU, and then its number says nothing.
        is_plain = gpus[0] == gpus[1] and not any(each[1:] for each in every)
        _print_peaks("peak" if is_plain else f"peak of GPU {gpus[0]} → GPU {gpus[1]}:", peaks)
        _print_changes(changes, sites=sites)
        for path, one in zip((file, other), sides, strict=True):
            for note in notes(one):
                typer.echo(f"{path.name}: {note}")
    end_partial(sides)


def _diff_iterations(home: Path, keys: list[str], rank: int | None, *, sites: bool, json: bool) -> None:
    lake = open_lake(home)
    before, after = (_of_home(lake, key, rank, sites=sites) for key in keys)
    both = sorted(set(before.peaks) & set(after.peaks))
    if not both:
        raise NoEvidenceError(
            f"no rank has a snapshot of GPU memory in both: {before.key} has {numbered('rank', before.peaks)}, "
            f"{after.key} {numbered('rank', after.peaks)}"
        )
    changes = peak_changes(*_held(before, after, both))
    peaks = [before.peak_bytes(both), after.peak_bytes(both)]
    alone = [sorted(set(one.peaks) - set(both)) for one in (before, after)]
    told = [_notes(one, both) for one in (before, after)]
    rows = [_row(before, after, each) for each in both]
    if json:
        print_json(
            {
                "iterations": [before.key, after.key],
                "rank": rank,
                **_answer(changes, peaks),
                "ranks": rows,
                "stages": _stages(rows),
                "ranks_of_one_alone": alone,
                "notes": told,
            }
        )
    else:
        _print_peaks("peak" if len(both) == 1 else f"peaks of {counted(len(both), 'rank', 'ranks')} together", peaks)
        if rank is None:
            _print_ranks(rows)
        _print_changes(changes, sites=sites)
        for one, ranks, lines in zip((before, after), alone, told, strict=True):
            if ranks:
                typer.echo(f"{one.key} alone has a snapshot of {numbered('rank', ranks)}: in none of these numbers")
            for line in lines:
                typer.echo(f"{one.key}: {line}")
    in_part = [
        f"{one.key}, {numbered('rank', ranks)}"
        for one in (before, after)
        if (ranks := [each for each in both if one.peaks[each].in_part])
    ]
    if in_part:
        raise IncompleteError(f"partial result: snapshots were read in part: {'; '.join(in_part)}")


def _of_home(lake: Lake, given: str, rank: int | None, *, sites: bool) -> _Iteration:
    if "@" in given:
        run, iteration = parse_iteration_key(given)
    else:
        run, iterations = given, _runs(lake, given)
        if not iterations:
            raise NoEvidenceError(f"{lake.home} holds no snapshot of GPU memory of run {given}; analyze takes those")
        iteration = iterations[-1]
    key = f"{run}@{iteration}"
    peaks = stored_at_peaks(lake, run, iteration, whole_stacks=not sites, before=BEFORE, frameless=FRAMELESS)
    if rank is not None:
        peaks = {number: one for number, one in peaks.items() if number == rank}
    if not peaks:
        of = "" if rank is None else f" of rank {rank}"
        raise NoEvidenceError(f"{lake.home} holds no snapshot of GPU memory{of} in {key}; analyze takes those")
    return _Iteration(key, peaks)


def _held(before: _Iteration, after: _Iteration, ranks: Sequence[int]) -> tuple[Held, Held]:
    return together(before.peaks[rank].held for rank in ranks), together(after.peaks[rank].held for rank in ranks)


def _row(before: _Iteration, after: _Iteration, rank: int) -> dict[str, Any]:
    sides = (before.peaks[rank], after.peaks[rank])
    peaks = [one.peak_bytes for one in sides]
    return {
        "rank": rank,
        "stages": [one.stage for one in sides],
        "devices": [one.device for one in sides],
        "peak_requested_bytes": peaks,
        "change_bytes": peaks[1] - peaks[0],
    }


def _stages(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The changes of ranks by their stage in either run; together they are the change of the peaks."""
    found: dict[tuple[int | None, ...], dict[str, Any]] = {}
    for row in rows:
        at = tuple(row["stages"])
        one = found.setdefault(at, {"stages": list(at), "ranks": 0, "peak_requested_bytes": [0, 0], "change_bytes": 0})
        one["ranks"] += 1
        one["peak_requested_bytes"] = [
            held + more for held, more in zip(one["peak_requested_bytes"], row["peak_requested_bytes"], strict=True)
        ]
        one["change_bytes"] += row["change_bytes"]
    return [found[at] for at in sorted(found, key=lambda at: [(each is None, each or 0) for each in at])]


def _notes(one: _Iteration, ranks: Sequence[int]) -> list[str]:
    """What a reader must know of the limits of an iteration's recordings."""

    def of(which: list[int]) -> str:
        return f"the {'snapshot' if len(which) == 1 else 'snapshots'} of {numbered('rank', which)}"

    peaks = one.peaks
    silent = [rank for rank in ranks if peaks[rank].events == 0]
    others = [rank for rank in ranks if peaks[rank].events != 0]
    overwritten = [rank for rank in others if peaks[rank].overwritten]
    untold = [rank for rank in others if peaks[rank].overwritten is None]
    found = []
    if silent:
        found.append(f"{of(silent)} {_verb(silent, 'holds', 'hold')} no events: the end counts as the peak")
    if overwritten:
        found.append(f"older events were overwritten in {of(overwritten)}: an earlier peak is unknown")
    if untold:
        found.append(f"{of(untold)} {_verb(untold, 'does', 'do')} not record whether older events were overwritten")
    return found


def _verb(ranks: Sequence[int], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many


def _answer(changes: list[Change], peaks: list[int]) -> dict[str, Any]:
    return {
        "peak_requested_bytes": peaks,
        "change_bytes": peaks[1] - peaks[0],
        "categories": by_category(changes),
        "changes": [{**asdict(one), "change_bytes": one.change_bytes} for one in changes],
    }


def _print_peaks(what: str, peaks: list[int]) -> None:
    changed = mebibytes(peaks[1] - peaks[0])
    typer.echo(f"{what} {mebibytes(peaks[0])} MiB → {mebibytes(peaks[1])} MiB, a change of {changed} MiB")


def _print_ranks(rows: list[dict[str, Any]]) -> None:
    def cells(row: Mapping[str, Any]) -> dict[str, Any]:
        before, after = row["peak_requested_bytes"]
        return {**row, "stage": _stage(row["stages"]), "before_bytes": before, "after_bytes": after}

    sizes = ("change_bytes", "before_bytes", "after_bytes")

    stages = _stages(rows)
    if len(stages) > 1:
        print_columns("By pipeline stage", [cells(row) for row in stages], ["stage", "ranks", *sizes])
    largest = sorted(rows, key=lambda row: (-abs(row["change_bytes"]), row["rank"]))
    print_columns("By rank", [cells(row) for row in largest], ["rank", "stage", *sizes])
    _tell_rest([row["change_bytes"] for row in largest], "rank", "ranks")


def _stage(stages: Sequence[int | None]) -> str | None:
    """A rank's stage; of other layouts both."""
    before, after = ("?" if each is None else str(each) for each in stages)
    if stages[0] is None and stages[1] is None:
        return None
    return before if before == after else f"{before} → {after}"


def _print_changes(changes: list[Change], *, sites: bool) -> None:
    categories = [{"category": name, "change_bytes": size} for name, size in by_category(changes).items()]
    print_columns("By category", categories, ["category", "change_bytes"])
    moved = [one for one in changes if one.change_bytes or one.before_blocks != one.after_blocks]
    print_columns(
        "By who asked for it" if sites else "By call stack",
        moved,
        [
            *("change_bytes", "before_bytes", "after_bytes", ("before_blocks", "blocks before")),
            *(("after_blocks", "blocks after"), "category", ("text", "who")),
        ],
    )
    _tell_rest([one.change_bytes for one in moved], "row", "rows")


def _tell_rest(changes: Sequence[int], one: str, many: str) -> None:
    """Say what the rows that are not printed add up to, where there are such."""
    rest = changes[len(shown(changes)) :]
    if rest:
        words = counted(len(rest), f"{one} left out changes", f"{many} left out change")
        typer.echo(f"{words} it by {mebibytes(sum(rest))} MiB")
