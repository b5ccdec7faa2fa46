"""How much communication is hidden behind computation, from what a lake holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from traceviz_dag.analyze.wording import capitals, duration, percent
from traceviz_dag.errors import NoEvidenceError, UsageError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.read.limits import LAST_INSTANT_NS
from traceviz_dag.vocabulary import ALL_DIMENSIONS, TraceStatus

if TYPE_CHECKING:
    import pyarrow as pa

    from traceviz_dag.lake.lake import Lake
    from traceviz_dag.pipeline.completeness import Completeness
    from traceviz_dag.pipeline.stored_iteration import StoredIteration


WINDOWS = ("file", "step", "kernels")
"""What is measured: each file, each training step, or each rank from its first kernel to its last."""

_OF_DIMENSION = ("communication", "hidden", "exposed")


Span = tuple[int | None, int, int]
"""A rank, with the first start and the last end of its kernels."""


class Chosen(NamedTuple):
    """The run and iteration asked for; None takes all."""

    run: str | None
    iteration: int | None

    def holds(self, run: str, iteration: int) -> bool:
        """Whether it was asked for."""
        return self.run in (None, run) and self.iteration in (None, iteration)


def check_window(window: str, start_ns: int | None, end_ns: int | None) -> None:
    """Refuse a window that there cannot be.

    Raises:
        UsageError: it has no such name, is outside all clocks, or ends before it starts.
    """
    if window not in WINDOWS:
        raise UsageError(f"no window {window!r}; there are {', '.join(WINDOWS)}")
    for option, instant in (("--start-ns", start_ns), ("--end-ns", end_ns)):
        if instant is not None and abs(instant) > LAST_INSTANT_NS:
            raise UsageError(f"{option} is a time that no clock has; give nanoseconds of at most {LAST_INSTANT_NS}")
    if start_ns is not None and end_ns is not None and end_ns < start_ns:
        raise UsageError(f"--end-ns {end_ns} is before --start-ns {start_ns}")


def overlap_of(
    home: Path, window: str, start_ns: int | None, end_ns: int | None, rank: int | None, chosen: Chosen
) -> tuple[Sequence[dict[str, Any]], list[Completeness]]:
    """Rows of what a home holds, of a window of the user's own where its times are given, and what was not read.

    Raises:
        UsageError: there is no such window, rank or iteration. NoEvidenceError: nothing can be measured.
    """
    check_window(window, start_ns, end_ns)
    if start_ns is None and end_ns is None:
        return _stored_overlap(home, window, rank, chosen)
    return _overlap_in_window(home, start_ns, end_ns, rank, chosen)


def _stored_overlap(
    home: Path, window: str, rank: int | None, chosen: Chosen
) -> tuple[Sequence[dict[str, Any]], list[Completeness]]:
    """The rows, and what of their iterations was not read."""
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

    if window == "file":
        raise UsageError("the lake keeps the windows step and kernels; give a path for --window file")
    lake = open_lake(home, refresh=False)
    if not lake.tables_folder.is_dir():
        raise lake.is_empty()
    # Of an iteration whose ranks all failed, or lost their tables, there is no row to show, but that to say.
    parts = chain(*(lake.partitions(name, chosen.run, chosen.iteration) for name in ("overlap", "traces")))
    places = sorted({(part.run, part.iteration) for part in parts})
    iterations = [StoredIteration(lake, *place) for place in places]
    rows = [row for each in iterations for row in _windows(each, window, rank)]
    found = [each.completeness for each in iterations]
    if not rows:
        _refuse_rank(lake, rank, chosen)
        if not any(one.faults for one in found):
            refuse_none(sorted({(part.run, part.iteration) for part in lake.partitions("traces")}), chosen, window)
    return rows, found


def _windows(iteration: StoredIteration, window: str, rank: int | None) -> list[dict[str, Any]]:
    """What ``OVERLAP_SQL`` gives of an iteration; so few rows are chosen and sorted before DuckDB has started."""
    unread = {row["rank"] for row in iteration.files.rows if row["status"] != TraceStatus.READ.value}
    rows = [
        {**row, "partial": row["rank"] in unread}
        for row in iteration.lake.rows("overlap", iteration.run, iteration.iteration).to_pylist()
        if row["window_name"] == window and rank in (None, row["rank"])
    ]
    # Unknown ones come last.
    order = ("rank", "device", "step", "dimension")
    return sorted(rows, key=lambda row: [(row[name] is None, row[name]) for name in order])


def _overlap_in_window(
    home: Path, start_ns: int | None, end_ns: int | None, rank: int | None, chosen: Chosen
) -> tuple[Sequence[dict[str, Any]], list[Completeness]]:
    """The rows of a window of the user's own, and what of the iterations was not read."""
    from traceviz_dag.analyze.overlap import WINDOW_COLUMNS, window_overlap
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

    lake = open_lake(home, refresh=False)
    parts = lake.partitions("kernels", chosen.run, chosen.iteration, rank)
    if not parts:
        _refuse_rank(lake, rank, chosen)
        refuse_none(sorted({(part.run, part.iteration) for part in lake.partitions("kernels")}), chosen, "kernels")
    places = sorted({(part.run, part.iteration) for part in parts})
    found = [StoredIteration(lake, *place).completeness for place in places]
    partial = {(one.run, one.iteration): {fault.rank for fault in one.faults} for one in found}
    rows: list[dict[str, Any]] = []
    spans: list[Span] = []
    for part in parts:
        kernels = lake.table("kernels", part.run, part.iteration, part.rank).arrow(WINDOW_COLUMNS)
        spans += spans_of(part.rank, kernels)
        place = {"run": part.run, "iteration": part.iteration, "rank": part.rank}
        mark = part.rank in partial[part.run, part.iteration]
        measured = window_overlap(kernels, "clip", start_ns, end_ns).to_pylist()
        rows += [{**place, **row, "partial": mark} for row in measured]
    refuse_outside(spans, start_ns, end_ns)
    return rows, found


def spans_of(rank: int | None, kernels: pa.Table) -> list[Span]:
    """The span of a rank's kernels; none without a kernel."""
    import pyarrow.compute as pc

    starts = kernels["start_ns"]
    return [(rank, pc.min(starts).as_py(), pc.max(pc.add(starts, kernels["duration_ns"])).as_py())] if starts else []


def refuse_outside(spans: Sequence[Span], start_ns: int | None, end_ns: int | None) -> None:
    """Refuse a window before the first kernel of every rank, or after its last: nothing shows that they idled then.

    Args:
        spans: what :func:`spans_of` gives of each rank.

    Raises:
        UsageError: names where the kernels of one are.
    """
    start, end = -LAST_INSTANT_NS if start_ns is None else start_ns, LAST_INSTANT_NS if end_ns is None else end_ns
    if spans and all(end < first or start > last for _, first, last in spans):
        rank, first, last = spans[0]
        raise UsageError(
            f"--start-ns {start} to --end-ns {end} is outside of all kernels; those of rank {rank} are from {first} to "
            f"{last}, on its own clock"
        )


def of_dimension(rows: Sequence[dict[str, Any]], dimension: str | None) -> Sequence[dict[str, Any]]:
    """The rows of one dimension; all without one.

    Raises:
        UsageError: there is no communication of it.
    """
    if dimension is None or not rows:
        return rows
    known = sorted({row["dimension"] for row in rows})
    if dimension.lower() not in known:
        raise UsageError(f"no communication of dimension {dimension!r}; there are {', '.join(known) or 'no kernels'}")
    return [row for row in rows if row["dimension"] == dimension.lower()]


def dimension_means(rows: Sequence[dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    """Communication by dimension, means over the windows of ranks that were read whole; the most exposed first.

    Returns:
        The number of windows, and a row for each dimension that communicates.
    """
    rows = [row for row in rows if not row["partial"]]
    windows = len({(row["rank"], row["device"], row["window_start_ns"]) for row in rows})
    names = sorted({row["dimension"] for row in rows})
    sums = {
        name: [sum(row[f"{measure}_ns"] for row in rows if row["dimension"] == name) for measure in _OF_DIMENSION]
        for name in names
    }
    means = [
        {
            "dimension": name,
            **{f"{part}_ns": round(one / windows) for part, one in zip(_OF_DIMENSION, each, strict=True)},
            "hidden_share": each[1] / each[0],
        }
        for name, each in sorted(sums.items(), key=lambda named: (named[0] != ALL_DIMENSIONS, -named[1][-1]))
        if each[0]
    ]
    return windows, means


def overlap_statement(windows: int, means: Sequence[dict[str, Any]]) -> str:
    """How much communication is exposed, and in which dimension most, from ``dimension_means``."""
    if not windows:
        return "Communication is not known: no rank was read whole"
    if not means:
        return "No communication"
    first = means[0]
    mean = "" if windows == 1 else f", mean of {windows} windows"
    what = "communication" if first["dimension"] == ALL_DIMENSIONS else f"{capitals(first['dimension'])} communication"
    most = ""
    if first["dimension"] == ALL_DIMENSIONS and len(means) > 1:
        most = f"; most is {capitals(means[1]['dimension'])}: {duration(means[1]['exposed_ns'])}"
    return (
        f"{duration(first['exposed_ns'])} of {duration(first['communication_ns'])} of {what} is exposed"
        f" ({percent(first['hidden_share'])} hidden{mean}){most}"
    )


def _refuse_rank(lake: Lake, rank: int | None, chosen: Chosen) -> None:
    """Say so where there is such an iteration, without that rank."""
    there = lake.partitions("kernels", chosen.run, chosen.iteration)
    if rank is not None and there and all(part.rank != rank for part in there):
        for part in lake.partitions("topology", chosen.run, chosen.iteration):
            for row in lake.stale(part.run, part.iteration):
                if row.rank == rank and not row.is_counted:
                    raise UsageError(f"{part.run} {part.iteration}: {row.line}")
        raise UsageError(f"no kernels of rank {rank} there; see traceviz topology")


def refuse_none(there: Sequence[tuple[str, int]], chosen: Chosen, window: str) -> NoReturn:
    """Say why there is nothing to show: no such iteration, or none with that window."""
    if not any(chosen.holds(*place) for place in there):
        listed = ", ".join(f"{run} {iteration}" for run, iteration in there[:5])
        raise UsageError(f"no such run or iteration; there are {listed or 'none'}")
    if window == "step":
        raise NoEvidenceError("no training step is marked in these traces: --window kernels measures without")
    raise NoEvidenceError("these traces hold no kernels")


OVERLAP_SQL = """
SELECT overlap.*, coalesce(status <> 'read', false) AS partial
FROM overlap LEFT JOIN traces USING (run, iteration, rank)
WHERE (run, iteration, rank) NOT IN (
        SELECT (run, iteration, rank) FROM stale_tables WHERE stage = 'ranks' AND cause <> 'gone'
    )
    AND window_name = $window AND ($rank IS NULL OR rank = $rank)
    AND ($run IS NULL OR run = $run) AND ($iteration IS NULL OR iteration = $iteration)
ORDER BY run, iteration, rank, device, step, dimension
"""
"""The stored rows of a window, as anybody can ask for them; NULL takes all runs, iterations and ranks."""
