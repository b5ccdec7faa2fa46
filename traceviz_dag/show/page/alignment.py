"""How the clocks of several ranks are laid on one axis, and the sentence with which a figure says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from traceviz_dag.analyze.clocks.clock_summary import residual_range
from traceviz_dag.analyze.clocks.clocks import SolvedClocks, solved_clocks
from traceviz_dag.show.page.facts import ranks_named
from traceviz_dag.show.source import TableSource
from traceviz_dag.tables.rows import RankClockRow, columns_of, rows_of
from traceviz_dag.vocabulary import TimeAlignment

Spans = Mapping[int, tuple[int, int]]
"""Rank → start of its first and end of its last kernel, ns on its own clock."""

_NO_SPANS: Spans = MappingProxyType({})


SENTENCE = {
    TimeAlignment.GLOBAL: "clocks as recorded, one zero for all ranks: shifts between ranks may be clock offsets",
    TimeAlignment.INDIVIDUAL: "each rank from its own first kernel: shifts between ranks are not shown",
    TimeAlignment.SOLVED: "clocks solved from matched communications",
}
"""What a figure says of its clocks."""

AXIS = {
    TimeAlignment.GLOBAL: "time since the first kernel of all ranks",
    TimeAlignment.INDIVIDUAL: "time since each rank's own first kernel",
    TimeAlignment.SOLVED: "time since the first kernel, on solved clocks",
}
"""The label of the time axis."""


_MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a figure.

    Attributes:
        alignment: how they are laid on the axis; ``global`` where solved ones were asked for and there are none.
        sentence: what the figure says of them, with how well they agree.
        warning: why they are not solved although that was asked for; empty otherwise.
        solved: the corrections, where they are used.
    """

    alignment: TimeAlignment
    sentence: str
    warning: str = ""
    solved: SolvedClocks | None = None

    @property
    def axis(self) -> str:
        """The label of the time axis."""
        return AXIS[self.alignment]


@dataclass(frozen=True, slots=True)
class Aligned:
    """Ranks on one axis.

    Attributes:
        zero_ns: rank → instant of its own clock that lies at 0.
        span_ns: length of the axis.
    """

    zero_ns: Mapping[int, int]
    span_ns: int


def read_clocks(source: TableSource, ranks: Iterable[int], alignment: TimeAlignment) -> Clocks:
    """The clocks of some ranks, solved if that is asked for and each of them has one that is comparable with the rest.

    Where one has not, all of them are left as recorded, with a warning: half a figure on another clock would mislead.
    """
    if alignment is not TimeAlignment.SOLVED:
        return Clocks(alignment, SENTENCE[alignment])
    table = source.table("rank_clocks", columns_of(RankClockRow))
    wanted = sorted(set(ranks))
    if not wanted:
        return Clocks(TimeAlignment.GLOBAL, SENTENCE[TimeAlignment.GLOBAL])
    known = {row["rank"]: row for row in rows_of(table, RankClockRow)}
    fault = _fault(wanted, known)
    if fault:
        warning = f"clocks are not solved ({fault}) and are as recorded"
        return Clocks(TimeAlignment.GLOBAL, SENTENCE[TimeAlignment.GLOBAL], warning)
    low = min(known[rank]["residual_p05_ns"] or 0 for rank in wanted)
    high = max(known[rank]["residual_p95_ns"] or 0 for rank in wanted)
    agree = residual_range(low, high)
    return Clocks(alignment, f"{SENTENCE[alignment]}: ends agree within {agree}", solved=solved_clocks(table))


def align(spans: Spans, clocks: Clocks, further: Spans = _NO_SPANS) -> Aligned:
    """Lay ranks on one axis.

    Over the span of a figure a clock's drift is far below a dot, so each rank is moved as a whole, by what its clock is
    ahead at its first kernel.

    Args:
        further: spans of other ranks that the axis must hold, so that several figures have one axis.
    """
    everything = {**further, **spans}
    if clocks.alignment is TimeAlignment.INDIVIDUAL:
        lengths = [end - start for start, end in everything.values()]
        return Aligned({rank: start for rank, (start, _) in spans.items()}, max(lengths, default=1))
    ahead = {rank: _ahead(clocks.solved, rank, start) for rank, (start, _) in everything.items()}
    zero = min((start - ahead[rank] for rank, (start, _) in everything.items()), default=0)
    last = max((end - ahead[rank] for rank, (_, end) in everything.items()), default=1)
    return Aligned({rank: zero + ahead[rank] for rank in spans}, last - zero)


def _fault(ranks: list[int], known: Mapping[int, RankClockRow]) -> str:
    """Why these ranks have no common clock; empty where they have."""
    absent = [rank for rank in ranks if rank not in known]
    if absent:
        return f"no table rank_clocks has {ranks_named(absent)}"
    refused = [rank for rank in ranks if known[rank]["refusal"] is not None]
    if refused:
        reasons: dict[str, list[int]] = {}
        for rank in refused:
            reasons.setdefault(str(known[rank]["refusal"]), []).append(rank)
        told = [f"{ranks_named(found)}: {reason}" for reason, found in list(reasons.items())[:_MOST_REASONS]]
        left = len(reasons) - len(told)
        return "; ".join([*told, f"{left} more reason{'s' if left > 1 else ''}"] if left else told)
    parts = {known[rank]["component"] for rank in ranks}
    return f"nothing connects {len(parts)} groups of these ranks" if len(parts) > 1 else ""


def _ahead(solved: SolvedClocks | None, rank: int, instant: int) -> int:
    if solved is None:
        return 0
    return instant - int(solved.align(np.array([rank]), np.array([instant]))[0])
