"""On which clock the ranks of an exported trace are, and the sentence with which the trace says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.clocks.clocks import SolvedClocks, solved_clocks
from traceviz_dag.analyze.wording import signed
from traceviz_dag.arrays import Int64
from traceviz_dag.show.page.facts import ranks_named
from traceviz_dag.show.source import TableSource
from traceviz_dag.tables.rows import RankClockRow, of_ranks, rows_of

RECORDED = "clocks as recorded: shifts between ranks may be clock offsets"


@dataclass(frozen=True, slots=True)
class TraceClocks:
    """The clock of every rank of a trace.

    Attributes:
        solved: the corrections; None where all ranks are on their clocks as recorded.
        statement: what is known of them, in a sentence.
        shift_ns: what is added to all times, because Perfetto drops what lies before 0.
    """

    solved: SolvedClocks | None
    statement: str
    shift_ns: int = 0

    def of_trace(self, rank: int, instants: Int64) -> Int64:
        """Instants of a rank's own clock on the clock of the trace, ns."""
        if self.solved is None or rank not in self.solved.ranks:
            return instants + self.shift_ns
        return self.solved.align(np.full(len(instants), rank), instants) + self.shift_ns


_BEGINS = (
    *(("kernels", "start_ns"), ("kernels", "launch_start_ns"), ("microbatches", "span_start_ns")),
    ("nvtx_ranges", "start_ns"),
)
"""Tables and columns of what is shown of a rank."""


def shifted_past_zero(clocks: TraceClocks, source: TableSource, ranks: Sequence[int], first_ns: int = 0) -> TraceClocks:
    """The clocks with a shift where something would lie before 0, as on clocks that begin there.

    Args:
        first_ns: begin on these clocks of what is shown beside what ranks did.
    """
    first = min(0, first_ns)
    for rank in ranks:
        for table, column in _BEGINS:
            start = pc.min(source.table(table, (column,), rank)[column]).as_py()
            if start is not None:
                first = min(first, int(clocks.of_trace(rank, np.array([start]))[0]))
    if first == 0:
        return clocks
    return replace(clocks, statement=f"{clocks.statement}; all times are shifted by {-first} ns", shift_ns=-first)


def trace_clocks(rank_clocks: pa.Table | None, ranks: Sequence[int]) -> TraceClocks:
    """The clocks of some ranks of an iteration: solved where every one of them is and one component holds them all.

    A mixture of solved and recorded clocks, or of components, would put slices side by side that have nothing in
    common, so it is not made.

    Args:
        rank_clocks: the table of that name; None leaves the clocks as recorded.
    """
    if len(ranks) < 2 or rank_clocks is None:
        return TraceClocks(None, RECORDED if len(ranks) > 1 else "the rank's own clock, as recorded")
    table = of_ranks(rank_clocks, ranks)
    solved = solved_clocks(table)
    refused = sorted(set(ranks) - set(solved.ranks.tolist()))
    if refused:
        reasons = {row["rank"]: row["refusal"] for row in rows_of(table, RankClockRow) if row["rank"] in refused}
        # One reason says enough; where others have another, it is said whose it is.
        first = next((rank for rank in refused if reasons.get(rank)), None)
        whose = "" if len({reasons.get(rank) for rank in refused}) == 1 else f" rank {first},"
        because = "" if first is None else f":{whose} {reasons[first]}"
        return TraceClocks(None, f"{RECORDED}; not solved for {ranks_named(refused)}{because}")
    if len(np.unique(solved.component)) > 1:
        return TraceClocks(None, f"{RECORDED}; no communication ties all of these ranks together")
    low, high = pc.min(table["residual_p05_ns"]).as_py() or 0, pc.max(table["residual_p95_ns"]).as_py() or 0
    text = f"clocks solved: ends of communications agree within {_signed(low)} to {_signed(high)} (p05 to p95)"
    early = pc.sum(table["early_receives"]).as_py()
    return TraceClocks(solved, f"{text}; {early} receives end before their send" if early else text)


def _signed(nanoseconds: int) -> str:
    return signed(nanoseconds).replace("-", "−")
