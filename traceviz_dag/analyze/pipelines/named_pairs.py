"""Periods of pairs that a user names: by annotations or NVTX ranges, by time stamps, or out of the table ``periods``.

Ranges of two ranks need no common clock: the k-th range of one belongs to the k-th of the other. Of one rank, a range
of the second stage belongs to the unit in which it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.intervals import measure_within, union
from traceviz_dag.analyze.matching.communications import labels, optional_integers
from traceviz_dag.analyze.pipelines.periods import (
    DIMENSION,
    FEWEST_UNITS,
    NAMED,
    STAGES,
    Measures,
    Rows,
    period_rows,
    refused,
    scored_rows,
    too_few,
)
from traceviz_dag.arrays import Int64
from traceviz_dag.read.events import USER_ANNOTATION, TraceEvents
from traceviz_dag.read.pairs_file import NamedPair, StageSelector, Stamp
from traceviz_dag.tables import PERIODS

RANGES = pa.schema([("rank", pa.int64()), ("name", pa.string()), ("start_ns", pa.int64()), ("end_ns", pa.int64())])
"""Named ranges of any source: profiler annotations, NVTX ranges."""


def annotation_ranges(events: TraceEvents, rank: int) -> pa.Table:
    """The user annotations of one trace as ``RANGES``."""
    host = events.host
    chosen = np.flatnonzero(host.category == USER_ANNOTATION)
    names = [events.strings[code] for code in host.name[chosen].tolist()]
    starts = host.start_ns[chosen]
    columns = [np.full(len(chosen), rank), names, starts, starts + host.duration_ns[chosen]]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, RANGES, strict=True)], schema=RANGES
    )


def named_range_periods(pair: NamedPair, ranges: pa.Table) -> pa.Table:
    """The periods of a pair that is named by ranges.

    Args:
        pair: with two selectors and no time stamps.
        ranges: of all ranks, as ``RANGES``.

    Returns:
        Rows of ``periods``; one with the reason where there are too few units.
    """
    assert pair.stage0 is not None and pair.stage1 is not None
    first, second = _selected(ranges, pair.stage0), _selected(ranges, pair.stage1)
    for chosen, selector in ((first, pair.stage0), (second, pair.stage1)):
        if not chosen.num_rows:
            return _refused(pair, f"no range is called {selector.pattern!r}{_on(selector)}")
        if len(pc.unique(chosen["rank"])) > 1:
            return _refused(pair, f"ranges called {selector.pattern!r} are on several ranks: name one")
    rank, rank1 = (chosen["rank"][0].as_py() for chosen in (first, second))
    start0, end0 = _sorted_ranges(first)
    start1, end1 = _sorted_ranges(second)
    unit = np.arange(len(start0) - 1)
    following = start0[1:]
    stage0 = measure_within(union(start0, end0), start0[:-1], following)
    if rank == rank1:
        stage1 = _durations_by_unit(start1, end1, start0)[: len(unit)]
    else:
        count = min(len(unit), len(start1))
        unit, following, stage0 = unit[:count], following[:count], stage0[:count]
        stage1 = (end1 - start1)[:count]
    return _rows(pair, rank, rank1, unit, start0[: len(unit)], following - start0[: len(unit)], stage0, stage1)


def stamped_periods(pair: NamedPair, first: Sequence[Stamp], second: Sequence[Stamp]) -> pa.Table:
    """The periods of a pair that is named by a user's own time stamps, unit by unit of these.

    Args:
        first, second: the stamps of both stages.
    """
    ranks = [{stamp.rank for stamp in stamps} for stamps in (first, second)]
    for selector, of_stage in zip((pair.stage0, pair.stage1), ranks, strict=True):
        if not of_stage:
            return _refused(pair, f"no line has the stamps of stage {selector.pattern if selector else '?'}")
        if len(of_stage) > 1:
            return _refused(
                pair, f"stamps of stage {selector.pattern if selector else '?'} are on several ranks: name one"
            )
    of_first, of_second = ({stamp.unit: stamp for stamp in stamps} for stamps in (first, second))
    units = [unit for unit in sorted(of_first) if unit + 1 in of_first and unit in of_second]

    def column(values: list[int]) -> Int64:
        return np.array(values, dtype=np.int64)

    start = column([of_first[unit].start_ns for unit in units])
    return _rows(
        pair,
        ranks[0].pop(),
        ranks[1].pop(),
        column(units),
        start,
        column([of_first[unit + 1].start_ns for unit in units]) - start,
        column([of_first[unit].end_ns - of_first[unit].start_ns for unit in units]),
        column([of_second[unit].end_ns - of_second[unit].start_ns for unit in units]),
    )


def named_table_periods(pair: NamedPair, periods: pa.Table) -> pa.Table:
    """The rows of the table ``periods`` that a pair of stages or a dimension names, under its name.

    The units there are steady already, so ``warmup`` takes nothing off.
    """
    if pair.stages is not None:
        rows = periods.filter(pc.and_(pc.equal(periods["kind"], STAGES), pc.equal(periods["stage"], pair.stages[0])))
        what = f"stages {pair.stages[0]} and {pair.stages[1]}"
    else:
        chosen = pc.and_(pc.equal(periods["kind"], DIMENSION), pc.equal(periods["dimension"], pair.dimension))
        rows = periods.filter(chosen)
        what = f"computation and {pair.dimension} communication"
    if not rows.num_rows:
        return _refused(pair, f"the iteration has no pair of {what}")
    rows = rows.select(PERIODS.schema.names)
    columns: dict[str, object] = {name: rows[name] for name in rows.column_names}
    columns |= {"pair": [pair.name] * rows.num_rows, "kind": [NAMED] * rows.num_rows}
    return PERIODS.from_columns(columns)


def _rows(
    pair: NamedPair, rank: int, rank1: int, unit: Int64, start: Int64, period: Int64, stage0: Int64, stage1: Int64
) -> pa.Table:
    kept = slice(pair.warmup, None)
    constant: Rows = {"pair": pair.name, "kind": NAMED, "rank": rank, "rank1": rank1}
    if len(unit[kept]) < FEWEST_UNITS:
        return period_rows([refused(constant, f"{too_few(len(unit[kept]))} after {pair.warmup} of warm-up")])
    columns: Measures = {"unit": unit[kept], "start_ns": start[kept]}
    columns |= scored_rows(period[kept], stage0[kept], stage1[kept])
    return period_rows([(constant, len(unit[kept]), columns)])


def _refused(pair: NamedPair, reason: str) -> pa.Table:
    return period_rows([refused({"pair": pair.name, "kind": NAMED}, reason)])


def _selected(ranges: pa.Table, selector: StageSelector) -> pa.Table:
    code, names = labels(ranges, "name")
    fits = np.array([name is not None and fnmatchcase(name, selector.pattern) for name in names])[code]
    if selector.rank is not None:
        fits &= optional_integers(ranges, "rank") == selector.rank
    return ranges.filter(pa.array(fits))


def _sorted_ranges(ranges: pa.Table) -> tuple[Int64, Int64]:
    start, end = optional_integers(ranges, "start_ns"), optional_integers(ranges, "end_ns")
    order = np.lexsort((end, start))
    return start[order], end[order]


def _durations_by_unit(starts: Int64, ends: Int64, unit_starts: Int64) -> Int64:
    """Busy time of the ranges that start in each unit."""
    covered = union(starts, ends)
    unit = np.searchsorted(unit_starts, covered.starts, side="right") - 1
    total = np.zeros(len(unit_starts), dtype=np.int64)
    inside = unit >= 0
    np.add.at(total, unit[inside], (covered.ends - covered.starts)[inside])
    return total


def _on(selector: StageSelector) -> str:
    return "" if selector.rank is None else f" on rank {selector.rank}"
