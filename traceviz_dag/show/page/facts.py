"""Measures that titles state, taken from the tables overlap, runs and traces, and how they are written for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow.compute as pc

from traceviz_dag.analyze.findings.verdict import LEAD_COLUMNS, Lead, lead_of
from traceviz_dag.analyze.waits.blamed import LateRank
from traceviz_dag.analyze.wording import duration, own_delay
from traceviz_dag.show.source import TableSource, rows
from traceviz_dag.tables.rows import LostRanksRow, OverlapRow, columns_of
from traceviz_dag.vocabulary import ALL_DIMENSIONS

_Duration = Literal["compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "memory_ns", "busy_ns", "idle_ns"]
_DURATIONS: tuple[_Duration, ...] = get_args(_Duration)
_MOST_RANKS_NAMED = 8


@dataclass(frozen=True, slots=True)
class RankMeasures:
    """One rank's row of the table ``overlap``: the training step where the trace has one, else all its kernels.

    Attributes:
        window_name: step or kernels.
        step: number of the training step; None where the window is the iteration.
        steps: training steps that the trace was measured in; the measures are of the first.
        devices: how many devices the measures are sums over.
    """

    window_name: str
    window_start_ns: int
    window_end_ns: int
    compute_ns: int
    communication_ns: int
    hidden_ns: int
    exposed_ns: int
    memory_ns: int
    busy_ns: int
    idle_ns: int
    step: int | None
    steps: int
    devices: int

    @property
    def window_ns(self) -> int:
        """Length of the window over all devices, ns."""
        return (self.window_end_ns - self.window_start_ns) * self.devices

    @property
    def window_label(self) -> str:
        """How labels call the window."""
        if self.window_name != "step":
            return "iteration"
        return f"step {self.step}" if self.steps > 1 else "step"

    @property
    def the_window(self) -> str:
        """How sentences call the window."""
        return self.window_label if self.steps > 1 else f"the {self.window_label}"

    @property
    def notes(self) -> list[str]:
        """What must be said where the trace holds more than the window."""
        return [f"measures of step {self.step}, the first of {self.steps}"] if self.steps > 1 else []


def rank_measures(source: TableSource, rank: int) -> RankMeasures | None:
    """The rank's measures over all dimensions; None without a row."""
    found = [row for row in rows(source, "overlap", OverlapRow, rank) if row["dimension"] == ALL_DIMENSIONS]
    return _measured(found) if found else None


def measures_of_ranks(source: TableSource) -> dict[int, RankMeasures]:
    """Rank → what :func:`rank_measures` gives; of thousands of ranks the table is read at once."""
    table = source.table("overlap", ("rank", *columns_of(OverlapRow)))
    of_rank: dict[int, list[OverlapRow]] = {}
    for row in table.filter(pc.equal(table["dimension"], ALL_DIMENSIONS)).to_pylist():
        of_rank.setdefault(row["rank"], []).append(row)
    return {rank: _measured(found) for rank, found in of_rank.items()}


def _measured(found: Sequence[OverlapRow]) -> RankMeasures:
    chosen = [row for row in found if row["window_name"] == "step"] or found
    first = min(chosen, key=lambda row: (row["step"] or 0, row["window_start_ns"]))
    steps = len({row["step"] for row in chosen})
    chosen = [row for row in chosen if row["step"] == first["step"]]
    sums: dict[str, int] = {name: sum(row[name] for row in chosen) for name in _DURATIONS}
    sums["window_start_ns"] = min(row["window_start_ns"] for row in chosen)
    sums["window_end_ns"] = max(row["window_end_ns"] for row in chosen)
    return RankMeasures(
        window_name=first["window_name"],
        step=first["step"],
        steps=steps,
        devices=len({row["device"] for row in chosen}),
        **sums,
    )


def ranks_named(ranks: Iterable[int]) -> str:
    """Ranks as people write them: ``rank 3``, ``ranks 3, 5, 7``, ``ranks 0, 1, 2 … (64)``."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) <= _MOST_RANKS_NAMED:
        return "ranks " + ", ".join(map(str, ordered))
    return f"ranks {', '.join(map(str, ordered[:3]))} … {ordered[-1]} ({len(ordered)})"


def delay_finding(row: LateRank) -> str:
    """How a rank that is to blame made others wait, from its row of the table ``late_ranks``, as titles say it."""
    return (
        f"Rank {row['rank']} delayed its peers by {own_delay(duration(row['own_ns']), row['late_category'])}, "
        f"last in {row['last']} of {row['communications']} communications"
    )


def lead_in(source: TableSource) -> Lead:
    """What is said first of the iteration, and whom views show first; from the table ``findings``."""
    return lead_of(source.table("findings", LEAD_COLUMNS).to_pylist())


def place(source: TableSource) -> str:
    """Run and iteration, as every figure states them."""
    return f"{source.run}, iteration {source.iteration}"


def step_name(step: int | None) -> str:
    """A training step, as sentences call it; files without a ProfilerStep have one without a number."""
    return "the step" if step is None else f"step {step}"


def steps_left_out(what_if: Iterable[Mapping[str, Any]]) -> list[str]:
    """A warning for each step of which nothing is known, with the reason, from rows of the table ``what_if``."""
    refused = [row for row in what_if if row["refusal"] is not None and row["edit"] is None]
    return [f"{step_name(row['step'])} is left out: {row['refusal']}" for row in refused]


def lost_ranks(source: TableSource) -> list[str]:
    """A warning for a figure across ranks that was not made of all of them, from the table ``runs``."""
    parts = [
        part
        for row in rows(source, "runs", LostRanksRow)
        for part in (
            (row["failed_ranks"], "unusable"),
            (row["partial_ranks"], "read in part"),
            (row["missing_ranks"], "without a trace"),
        )
    ]
    lost = [f"{ranks_named(ranks)} {word}" for ranks, word in parts if ranks]
    return [f"PARTIAL: {', '.join(lost)}"] if lost else []
