"""What the periods of each pair come to: percentiles over its steady window, two modes if there are, and the gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.read.pairs_file import NamedPair

Floats = npt.NDArray[np.float64]

PERCENTILES = (50, 90, 99)
SUMMARY = pa.schema(
    [
        *[("kind", pa.string()), ("pair", pa.string()), ("step", pa.int64()), ("stage", pa.int64())],
        *[("ranks", pa.int64()), ("units", pa.int64()), ("first_unit", pa.int64()), ("last_unit", pa.int64())],
        *[(f"period_p{share}_ns", pa.int64()) for share in PERCENTILES],
        *[(f"stage{number}_p50_ns", pa.int64()) for number in (0, 1)],
        *[(f"score_p{share}", pa.float64()) for share in (10, 50, 90)],
        *[("worst_rank", pa.int64()), ("modes", pa.string()), ("statement", pa.string()), ("refusal", pa.string())],
    ]
)
"""A row a pair and stage, over the ranks that have it. The steady window is first_unit to last_unit of each rank.
worst_rank: the one with the lowest median score. modes: a note where the periods have two. statement: in one sentence.
refusal: why no rank has measures."""

_ALIKE = 0.1
"""A period is said to be that of the longer stage where it differs by no more than this share."""

_FEWEST_FOR_MODES = 8
_LEAST_SHARE, _LEAST_RATIO, _LEAST_EXPLAINED = 0.1, 1.3, 0.8


class Verdict(NamedTuple):
    """What the gate says of one named pair.

    Attributes:
        passed: None where there is nothing to judge by.
        score: the percentile of the scores that was held against the threshold.
    """

    pair: str
    passed: bool | None
    score: float | None
    threshold: float
    percentile: float
    units: int
    refusal: str | None


def period_summary(periods: pa.Table) -> pa.Table:
    """Summarise the table ``periods`` by pair and stage.

    Returns:
        Rows of ``SUMMARY``, in the order in which the pairs come.
    """
    rows: dict[tuple[object, ...], list[int]] = {}
    keys = zip(*(periods[name].to_pylist() for name in ("kind", "pair", "step", "stage")), strict=True)
    for place, key in enumerate(keys):
        rows.setdefault(key, []).append(place)
    columns = {name: periods[name].to_numpy(zero_copy_only=False) for name in ("rank", *_MEASURES)}
    refusals = periods["refusal"].to_pylist()
    return pa.Table.from_pylist(
        [_summary(key, np.array(places), columns, refusals) for key, places in rows.items()], schema=SUMMARY
    )


def judge(pairs: Sequence[NamedPair], periods: pa.Table) -> list[Verdict]:
    """Hold each named pair's scores against its threshold: the gate, on named pairs only.

    Args:
        periods: rows under the pairs' names (``named_pairs``).
    """
    names = np.array(periods["pair"].to_pylist(), dtype=object)
    score = periods["overlap_score"].to_numpy(zero_copy_only=False).astype(np.float64)
    refusals = np.array(periods["refusal"].to_pylist(), dtype=object)
    verdicts = []
    for pair in pairs:
        mine = names == pair.name
        known = score[mine & ~np.isnan(score)]
        reached = float(np.percentile(known, pair.percentile)) if len(known) else None
        passed = None if reached is None else reached >= pair.threshold
        reasons = [reason for reason in refusals[mine] if reason]
        refusal = None if passed is not None else (reasons or ["no unit has a score"])[0]
        verdicts.append(Verdict(pair.name, passed, reached, pair.threshold, pair.percentile, len(known), refusal))
    return verdicts


def two_modes(values: Floats) -> str | None:
    """A note where values fall into two groups; None where they do not, or are too few to tell.

    The best split in two is taken (least variance within); it counts where it explains 80 % of the variance, the
    smaller group has a tenth of the values, and the means differ by 30 %.
    """
    count = len(values)
    if count < _FEWEST_FOR_MODES:
        return None
    ordered = np.sort(values)
    total = ordered.sum()
    below = np.arange(1, count)
    low = np.cumsum(ordered)[:-1]
    low_mean, high_mean = low / below, (total - low) / (count - below)
    between = below * (count - below) / count**2 * (high_mean - low_mean) ** 2
    at = int(np.argmax(between))
    share = (at + 1) / count
    variance = float(ordered.var())
    clear = variance > 0 and between[at] >= _LEAST_EXPLAINED * variance
    if not clear or min(share, 1 - share) < _LEAST_SHARE or high_mean[at] < _LEAST_RATIO * low_mean[at]:
        return None
    return (
        f"two modes: {share:.0%} of the units near {low_mean[at] / 1e6:.3f} ms, "
        f"{1 - share:.0%} near {high_mean[at] / 1e6:.3f} ms"
    )


_MEASURES = ("unit", "period_ns", "stage0_ns", "stage1_ns", "overlap_score")


def _summary(
    key: tuple[object, ...], places: npt.NDArray[np.intp], columns: dict[str, np.ndarray], refusals: list[str | None]
) -> dict[str, object]:
    known = places[~np.isnan(columns["period_ns"][places].astype(np.float64))]
    row: dict[str, object] = dict(zip(("kind", "pair", "step", "stage"), key, strict=True))
    if not len(known):
        reasons = {refusals[place] for place in places.tolist()}
        return row | {"ranks": 0, "units": 0, "refusal": "; ".join(sorted(filter(None, reasons)))}
    measures = {name: columns[name][known].astype(np.float64) for name in _MEASURES}
    ranks = columns["rank"][known].astype(np.int64)
    scores = measures["overlap_score"]
    row |= {
        "ranks": len(np.unique(ranks)),
        "units": len(known),
        "first_unit": int(measures["unit"].min()),
        "last_unit": int(measures["unit"].max()),
        "modes": two_modes(measures["period_ns"]),
    }
    for share in PERCENTILES:
        row[f"period_p{share}_ns"] = round(float(np.percentile(measures["period_ns"], share)))
    for number in (0, 1):
        row[f"stage{number}_p50_ns"] = round(float(np.median(measures[f"stage{number}_ns"])))
    scored = ~np.isnan(scores)
    if scored.any():
        for share in (10, 50, 90):
            row[f"score_p{share}"] = float(np.percentile(scores[scored], share))
        medians = {
            rank: float(np.median(scores[scored & (ranks == rank)])) for rank in np.unique(ranks[scored]).tolist()
        }
        row["worst_rank"] = min(medians, key=lambda rank: (medians[rank], rank))
    row["statement"] = _statement(row)
    return row


def _statement(row: dict[str, object]) -> str:
    score = row.get("score_p50")
    said = "no OverlapScore" if score is None else f"OverlapScore {score:.2f}"
    period, *stages = (int(row[name]) for name in ("period_p50_ns", "stage0_p50_ns", "stage1_p50_ns"))  # type: ignore[call-overload]
    longer = max(stages)
    sign = "≈" if abs(period - longer) <= _ALIKE * longer else ">" if period > longer else "<"
    first, second = (f"{stage / 1e6:.1f}" for stage in stages)
    return f"period {period / 1e6:.1f} ms {sign} max(stage0 {first}, stage1 {second}), {said}, N={row['units']}"
