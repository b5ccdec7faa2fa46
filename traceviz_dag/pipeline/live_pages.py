"""Sources of live pages: iterations of a home, and profiles or pairs that a command was given."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from traceviz_dag.lake.digests import stamp_of
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.pipeline.screens import (
    EVERYTHING,
    TABLES,
    Chosen,
    bookmarks_of_iteration,
    bookmarks_of_profile,
    iteration_model,
    profile_model,
)
from traceviz_dag.show.lanes.lane import LaneKind, Window
from traceviz_dag.show.perfetto.clocks import TraceClocks, shifted_past_zero, trace_clocks
from traceviz_dag.show.screens.model import ScreenModel
from traceviz_dag.show.screens.side_by_side import SideBySide
from traceviz_dag.show.web.live.sources import Source, Walked
from traceviz_dag.system.paths import real_path
from traceviz_dag.tables.rows import RankClockRow, columns_of
from traceviz_dag.vocabulary import TimeAlignment

if TYPE_CHECKING:
    from traceviz_dag.pipeline.report import StoredReportSource


def iteration_source(home: Path, run: str, iteration: int, alignment: TimeAlignment = TimeAlignment.SOLVED) -> Source:
    """An iteration of a home, absolute."""

    def opened() -> Walked:
        # Imported here because profiles need nothing of it, and it loads all that draws.
        from traceviz_dag.pipeline.report import StoredReportSource

        lake = open_lake(home)
        model = iteration_model(lake, run, iteration, alignment)
        moved = _perfetto_clock(StoredReportSource(lake, run, iteration), model)
        return Walked(model, bookmarks_of_iteration(home, run, iteration), moved)

    return Source(f"{run}, iteration {iteration}", lambda: _digest(_files(home, run, iteration)), opened)


def profile_source(path: Path, home: Path, rules: Path | None = None, chosen: Chosen = EVERYTHING) -> Source:
    """A profile, or what is chosen of it, read and kept in the home, absolute, where that is the first time."""

    def opened() -> Walked:
        return Walked(profile_model(path, home, rules, chosen), bookmarks_of_profile(home, path))

    return Source(path.name, lambda: _digest([path, *([rules] if rules else [])]), opened)


def pair_source(first: Source, second: Source, number: int | None = None) -> Source:
    """Two sources on one axis, laid by an iteration that both have; no bookmarks are kept of them."""

    def opened() -> Walked:
        return Walked(SideBySide(first.open().model, second.open().model, number))

    return Source(f"{first.title} beside {second.title}", lambda: f"{first.digest()}-{second.digest()}", opened)


def _files(home: Path, run: str, iteration: int) -> list[Path]:
    lake = Lake(real_path(home))
    return [
        lake.path(name, run=run, iteration=iteration, rank=each.rank)
        for name in TABLES
        for each in lake.partitions(name, run, iteration)
    ]


def _digest(paths: list[Path]) -> str:
    """Of how files look; one that is gone looks like nothing."""
    digest = xxhash.xxh3_64()
    for path in paths:
        try:
            look = stamp_of(path)
        except OSError:
            look = (-1, -1, -1)
        digest.update(f"{path}\0{look}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _perfetto_clock(source: StoredReportSource, model: ScreenModel) -> Callable[[Window], Window] | None:
    """A window on the clock of a trace of all ranks, as ``traceviz perfetto export`` makes it by default."""
    lanes = [lane.key for lane in model.lanes() if lane.kind is LaneKind.RANK]
    if not lanes:
        return None
    ranks = [int(lane.partition(":")[2]) for lane in lanes]

    @cache
    def clocks() -> TraceClocks:
        # Reads the begin of each rank, so only once somebody asks.
        solved = source.table("rank_clocks", columns_of(RankClockRow)) if len(ranks) > 1 else None
        return shifted_past_zero(trace_clocks(solved, ranks), source, ranks)

    def moved(window: Window) -> Window:
        own = np.array([model.own_time(lanes[0], time) for time in window], np.int64)
        start, end = clocks().of_trace(ranks[0], own).tolist()
        return Window(start, end)

    return moved
