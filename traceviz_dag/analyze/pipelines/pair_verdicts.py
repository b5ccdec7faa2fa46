"""Whether a pair of stages overlaps, from its periods over a steady window of iterations: what one may claim.

With stage0 and stage1 the medians of the two busy times of a unit, the median period is near their longer one where
they overlap, and near their sum where they take turns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.arrays import Float64
from traceviz_dag.tables import PERIODS

ALIKE = 0.1
"""A period is near a time where it differs from it by no more than this share."""

FEWEST_STEADY = 4
"""Iterations from which the first and the last are left out: the profiler starts in the one and ends in the other."""


@dataclass(frozen=True, slots=True)
class OverlapVerdict:
    """What the periods of a pair come to.

    Attributes:
        kind: stages, dimension or named. units: how many; iterations: of these iterations. ranks: of so many ranks.
        period_ns: p50, p90 and p99. stage0_ns, stage1_ns, overlap_score: p50 of the units'; the score may be None.
        verdict: overlapped, serialized, not distinguished, between, beyond the sum, or below the longer stage.
    """

    kind: str
    pair: str
    stage: int | None
    units: int
    ranks: int
    iterations: tuple[int, ...]
    period_ns: tuple[int, int, int]
    stage0_ns: int
    stage1_ns: int
    overlap_score: float | None
    verdict: str


def steady_window(iterations: Sequence[int]) -> tuple[int, ...]:
    """The iterations that statistics are made of."""
    ordered = tuple(sorted(iterations))
    return ordered[1:-1] if len(ordered) >= FEWEST_STEADY else ordered


def verdict(period_ns: float, stage0_ns: float, stage1_ns: float) -> str:
    """What a period says of its two stages."""
    longer, both = max(stage0_ns, stage1_ns), stage0_ns + stage1_ns
    as_max, as_sum = abs(period_ns - longer) <= ALIKE * longer, abs(period_ns - both) <= ALIKE * both
    if as_max and as_sum:
        # One stage is so short beside the other that the period does not show.
        return "not distinguished"
    if as_max or as_sum:
        return "overlapped" if as_max else "serialized"
    if period_ns < longer:
        return "below the longer stage"
    return "between" if period_ns < both else "beyond the sum"


def pair_verdicts(periods: Mapping[int, pa.Table]) -> list[OverlapVerdict]:
    """Judge every pair with measures, over all given iterations together.

    Args:
        periods: iteration → its table ``periods``.
    """
    chosen = steady_window(list(periods))
    # Those of a home have its run and iteration, those that were computed now have not.
    rows = ((number, periods[number].select(PERIODS.schema.names)) for number in chosen)
    tables = [table.append_column("of", pa.array(np.full(table.num_rows, number))) for number, table in rows]
    if not tables:
        return []
    table = pa.concat_tables(tables)
    table = table.filter(pc.and_(pc.is_valid(table["period_ns"]), pc.is_valid(table["stage0_ns"])))
    keys = list(zip(table["kind"].to_pylist(), table["pair"].to_pylist(), table["stage"].to_pylist(), strict=True))
    found = []
    for key in dict.fromkeys(keys):
        mine = table.take([place for place, each in enumerate(keys) if each == key])
        period, stage0, stage1 = (_floats(mine, name) for name in ("period_ns", "stage0_ns", "stage1_ns"))
        scores = _floats(mine, "overlap_score")
        scores = scores[~np.isnan(scores)]
        middle, p90, p99 = (round(float(np.percentile(period, share))) for share in (50, 90, 99))
        busy0, busy1 = (round(float(np.percentile(values, 50))) for values in (stage0, stage1))
        found.append(
            OverlapVerdict(
                kind=key[0],
                pair=key[1],
                stage=key[2],
                units=mine.num_rows,
                ranks=len(pc.unique(mine["rank"])),
                iterations=tuple(sorted(set(mine["of"].to_pylist()))),
                period_ns=(middle, p90, p99),
                stage0_ns=busy0,
                stage1_ns=busy1,
                overlap_score=float(np.percentile(scores, 50)) if len(scores) else None,
                verdict=verdict(middle, busy0, busy1),
            )
        )
    return found


def two_sides(kind: str, pair: str) -> Sequence[str]:
    """What the two sides of a pair are called: stages by number, computation and a dimension, or first and second."""
    if kind == "dimension":
        return pair.split(" + ")
    stages = re.fullmatch(r"stages (\d+) and (\d+)", pair)
    return [f"stage {number}" for number in stages.groups()] if stages else ("first", "second")


def in_words(one: OverlapVerdict) -> str:
    """The verdict as a clause with its numbers, ms."""
    both = one.stage0_ns + one.stage1_ns
    period = f"{one.period_ns[0] / 1e6:,.3f}"
    names = two_sides(one.kind, one.pair)
    first, second = (f"{name} {ns / 1e6:,.3f}" for name, ns in zip(names, (one.stage0_ns, one.stage1_ns), strict=True))
    against = {
        "overlapped": f"≈ max({first}, {second})",
        "serialized": f"≈ {first} + {second}",
        "not distinguished": f"≈ max and ≈ sum of {first} and {second}, too close to distinguish",
        "between": f"between max and sum ({both / 1e6:,.3f}) of {first} and {second}",
        "beyond the sum": f"beyond {first} + {second} = {both / 1e6:,.3f}",
        "below the longer stage": f"below max({first}, {second})",
    }[one.verdict]
    score = "no OverlapScore" if one.overlap_score is None else f"OverlapScore {round(one.overlap_score, 2) + 0.0:.2f}"
    where = "" if one.stage is None else f", stage {one.stage}"
    tails = " and ".join(f"{value / 1e6:,.3f}" for value in one.period_ns[1:])
    return f"{one.pair}{where}: period {period} {against}, {score} (p50; period p90 and p99 {tails}; N={one.units})"


def _floats(table: pa.Table, name: str) -> Float64:
    return np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64)
