"""What a home holds and what is being analysed in it, looked at again and again: only what changed is read anew.

Nothing here writes, and a file that a writer replaces or removes at this moment is looked at the next time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from traceviz_dag.errors import BadInputError, TracevizError
from traceviz_dag.lake.inputs import registered_if_any
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import parse_iteration_key
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.under_way import analyses
from traceviz_dag.vocabulary import Severity

_MEASURES = ("ranks", "covered_ranks", "partial", "step_ns", "compute_ns", "exposed_ns", "idle_ns", "hidden_share")
_VERDICT = ("accepted", "verdict", "moved", "statement")
_FINDING = ("rule", "class", "severity", "rank", "stage", "gain_ns", "step_ns", "statement", "evidence_sql")
_NOT_MEASURED = "no measures: not analysed to the end"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Iteration:
    """An iteration of the home.

    Attributes:
        row: its row of table ``iterations``; None where there is none, or it cannot be read.
        night: its row of table ``nights``; None where it was not judged.
        change_share: of the step against the iteration before it, where both cover the same ranks; else None.
        fault: why there is no row; empty where there is one.
    """

    run: str
    iteration: int
    row: Row | None = None
    night: Row | None = None
    change_share: float | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """An iteration that is being analysed, or whose analysis was cut off.

    Attributes:
        ranks: how many have their tables in the lake. listed: how many its list of inputs names; None where unknown.
        since_ns: when the analysis began, ns since the epoch.
    """

    run: str
    iteration: int
    ranks: int
    listed: int | None
    since_ns: int
    cut_off: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """The home as it was found.

    Attributes:
        iterations: by run and number.
        fault: why nothing can be known; empty where something can.
    """

    iterations: tuple[Iteration, ...] = ()
    running: tuple[Running, ...] = ()
    fault: str = ""


@dataclass(slots=True)
class HomeWatch:
    """Looks at a home.

    Attributes:
        reads: files read since the beginning, for whoever counts.
    """

    home: Path
    reads: int = 0
    _kept: dict[tuple[str, Partition], tuple[tuple[int, int], Any]] = field(default_factory=dict)

    def look(self) -> Facts:
        """What is there now."""
        try:
            return self._look()
        except (TracevizError, OSError) as error:
            return Facts(fault=str(error))

    def findings(self, run: str, iteration: int) -> list[Row]:
        """The findings of an iteration and its notes, the gravest first; none where there is no such table yet."""
        rows = self._rows("findings", Partition(run, iteration), _FINDING)
        if isinstance(rows, str):
            return [{"severity": "", "rule": "findings", "class": "", "gain_ns": None, "statement": rows}]
        return [row for row in rows if row["severity"] != Severity.NOT_LOOKED_AT]

    def _look(self) -> Facts:
        lake = Lake(self.home)
        measured = set(lake.partitions("iterations"))
        known = {Partition(one.run, one.iteration) for one in lake.partitions("topology")} | measured
        nights = set(lake.partitions("nights"))
        running = self._running(lake)
        now = {(each.run, each.iteration) for each in running if not each.cut_off}
        found = []
        for _, group in groupby(sorted(known, key=lambda one: one.sort_key), key=lambda one: one.run):
            before: Row | None = None
            for place in group:
                one = self._iteration(place, place in measured, place in nights)
                if one.fault == _NOT_MEASURED and (place.run, place.iteration) in now:
                    one = replace(one, fault="being analysed")
                found.append(replace(one, change_share=_change(before, one.row)))
                before = one.row
        return Facts(tuple(found), running)

    def _iteration(self, place: Partition, measured: bool, judged: bool) -> Iteration:
        rows = self._rows("iterations", place, _MEASURES) if measured else []
        nights = self._rows("nights", place, _VERDICT) if judged else []
        night = nights[0] if nights and not isinstance(nights, str) else None
        if isinstance(rows, str):
            return Iteration(place.run, place.iteration, None, night, fault=rows)
        if not rows:
            return Iteration(place.run, place.iteration, None, night, fault=_NOT_MEASURED)
        try:
            stale = Lake(self.home).has_stale_measures(place.run, place.iteration)
        except TracevizError as error:
            return Iteration(place.run, place.iteration, None, night, fault=str(error))
        return Iteration(place.run, place.iteration, {**rows[0], "stale": stale}, night)

    def _running(self, lake: Lake) -> tuple[Running, ...]:
        found = []
        for one in analyses(self.home):
            run, iteration = parse_iteration_key(one.key)
            try:
                inputs = registered_if_any(self.home, one.key)
            except (TracevizError, OSError):
                inputs = None
            # Of a rank, table overlap is written last.
            there = {part.rank for part in lake.partitions("overlap", run, iteration)}
            listed = None if inputs is None else {entry.rank for entry in inputs.ranks}
            count = len(there if listed is None else there & listed)
            found.append(
                Running(run, iteration, count, None if listed is None else len(listed), one.since_ns, one.cut_off)
            )
        return tuple(sorted(found, key=lambda each: (each.cut_off, each.run, each.iteration)))

    def _rows(self, table: str, place: Partition, columns: tuple[str, ...]) -> list[Row] | str:
        """The rows of a partition, read again only when its file changed; why not, where it cannot be read."""
        lake = Lake(self.home)
        try:
            state = lake.path(table, run=place.run, iteration=place.iteration).stat()
            look = (state.st_mtime_ns, state.st_ino)
            kept = self._kept.get((table, place))
            if kept is not None and kept[0] == look:
                return kept[1]
            self.reads += 1
            rows = lake.table(table, place.run, place.iteration).arrow(columns).to_pylist()
        except FileNotFoundError:
            return []
        except BadInputError as error:
            # The file's path would fill the line.
            return f"{error.fault}; {error.remedy}"
        except (TracevizError, OSError) as error:
            return str(error)
        self._kept[table, place] = (look, rows)
        return rows


def _change(before: Row | None, now: Row | None) -> float | None:
    """How much longer the step is than the one before it, of the same ranks."""
    if before is None or now is None or before["covered_ranks"] != now["covered_ranks"]:
        return None
    if not before["step_ns"] or now["step_ns"] is None:
        return None
    return float(now["step_ns"] / before["step_ns"] - 1)
