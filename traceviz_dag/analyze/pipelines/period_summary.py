"""What the periods of each pair come to: percentiles over its steady window, two modes if there are, and the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.pipelines.pair_verdicts import two_sides
from traceviz_dag.analyze.pipelines.periods import has_nothing_to_overlap
from traceviz_dag.analyze.wording import numbered
from traceviz_dag.arrays import Float64
from traceviz_dag.read.pairs_file import NamedPair
from traceviz_dag.tables import PERIOD_PERCENTILES

PERCENTILES = (50, 90, 99)
_ALIKE = 0.1
"""A period is said to be that of the longer stage where it differs by no more than this share."""

_OF_REFUSALS = ["refusal", "step", "pipeline", "rank", "rank1"]

_FEWEST_FOR_MODES = 8
_LEAST_SHARE, _LEAST_RATIO, _LEAST_SCORES_APART, _LEAST_EXPLAINED = 0.1, 1.3, 0.2, 0.8


class PairVerdict(NamedTuple):
    """What the gate says of one named pair.

    Attributes:
        passed: None where there is nothing to judge by.
        score: the percentile of the scores that was held against the threshold.
        ranks: ranks with scores; ranks_without: those of the pair that have no measures.
        over_fewer_ranks: what these would add is not known, so the score is that of fewer than all.
        refusal: why nothing can be judged by, or each reason of the ranks without figures, with these ranks.
    """

    pair: str
    passed: bool | None
    score: float | None
    threshold: float
    percentile: float
    units: int
    ranks: int
    ranks_without: int
    over_fewer_ranks: bool
    refusal: str | None


@dataclass(frozen=True, slots=True)
class _Refusals:
    """Which ranks of a pair have no measures, and why.

    Attributes:
        ranks: how many; words: each reason with those whose it is, None where there is none.
        certain: all reasons say that there is nothing to overlap.
    """

    ranks: int
    words: str | None
    certain: bool


def period_summary(periods: pa.Table) -> pa.Table:
    """Summarise the table ``periods`` by pair and stage.

    Returns:
        Rows of the table ``period_percentiles``, in the order in which the pairs come.
    """
    rows: dict[tuple[object, ...], list[int]] = {}
    keys = zip(*(periods[name].to_pylist() for name in ("kind", "pair", "step", "stage")), strict=True)
    for place, key in enumerate(keys):
        rows.setdefault(key, []).append(place)
    columns = {name: periods[name].to_numpy(zero_copy_only=False) for name in ("rank", *_MEASURES)}
    # Taking rows out of as many pieces as ranks takes a hundred times as long as out of one.
    refusals = periods.select(_OF_REFUSALS).combine_chunks()
    return pa.Table.from_pylist(
        [_summary(key, np.array(places), columns, _refusals(refusals.take(places))) for key, places in rows.items()],
        schema=PERIOD_PERCENTILES.schema,
    )


def judge_pairs(pairs: Sequence[NamedPair], periods: pa.Table) -> list[PairVerdict]:
    """Hold each named pair's scores against its threshold: the gate, on named pairs only.

    Args:
        periods: rows under the pairs' names (``named_pairs``).
    """
    names = np.array(periods["pair"].to_pylist(), dtype=object)
    score = periods["overlap_score"].to_numpy(zero_copy_only=False).astype(np.float64)
    ranks = optional_integers(periods, "rank")
    verdicts = []
    for pair in pairs:
        mine = names == pair.name
        scored = mine & ~np.isnan(score)
        known = score[scored]
        reached = float(np.percentile(known, pair.percentile)) if len(known) else None
        refusals = _refusals(periods.filter(pa.array(mine)))
        words = refusals.words
        verdicts.append(
            PairVerdict(
                pair=pair.name,
                passed=None if reached is None else reached >= pair.threshold,
                score=reached,
                threshold=pair.threshold,
                percentile=pair.percentile,
                units=len(known),
                ranks=len(np.unique(ranks[scored])),
                ranks_without=refusals.ranks,
                over_fewer_ranks=reached is not None and words is not None and not refusals.certain,
                refusal="no unit has a score" if reached is None and words is None else words,
            )
        )
    return verdicts


def two_modes(values: Float64) -> str | None:
    """A note where periods fall into two groups whose means differ by 30 %; None where they do not."""
    modes = _split_in_two(values)
    if modes is None or modes.high < _LEAST_RATIO * modes.low:
        return None
    return (
        f"two modes: {wording.share(modes.share)} of the units near {modes.low / 1e6:.3f} ms, "
        f"{wording.share(1 - modes.share)} near {modes.high / 1e6:.3f} ms"
    )


def two_modes_of_scores(values: Float64) -> str | None:
    """The same of OverlapScores, whose means differ by 0.2."""
    modes = _split_in_two(values)
    if modes is None or modes.high - modes.low < _LEAST_SCORES_APART:
        return None
    low, high = wording.share(modes.share), wording.share(1 - modes.share)
    return f"two modes: {low} of the units near {modes.low:.2f}, {high} near {modes.high:.2f}"


class _Modes(NamedTuple):
    """Two groups: the share of the values in the lower one, and the mean of each."""

    share: float
    low: float
    high: float


def _split_in_two(values: Float64) -> _Modes | None:
    """The two groups that values fall into; None where they do not, or are too few to tell.

    The best split in two is taken (least variance within); it counts where it explains 80 % of the variance, and the
    smaller group has a tenth of the values.
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
    if not clear or min(share, 1 - share) < _LEAST_SHARE:
        return None
    return _Modes(share, float(low_mean[at]), float(high_mean[at]))


_MEASURES = ("unit", "period_ns", "stage0_ns", "stage1_ns", "overlap_score")


def _summary(
    key: tuple[object, ...], places: npt.NDArray[np.intp], columns: dict[str, np.ndarray], refusals: _Refusals
) -> dict[str, object]:
    known = places[~np.isnan(columns["period_ns"][places].astype(np.float64))]
    row: dict[str, object] = dict(zip(("kind", "pair", "step", "stage"), key, strict=True))
    row |= {"ranks_without": refusals.ranks, "over_fewer_ranks": False, "nothing_to_overlap": False}
    if not len(known):
        return row | {"ranks": 0, "units": 0, "refusal": refusals.words, "nothing_to_overlap": refusals.certain}
    row |= {"without": refusals.words, "over_fewer_ranks": refusals.words is not None and not refusals.certain}
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


def _refusals(rows: pa.Table) -> _Refusals:
    """The refusals among the rows of one pair, each reason with the pipelines or ranks whose it is."""
    refused = rows.filter(pc.is_valid(rows["refusal"])).select(_OF_REFUSALS)
    found = sorted(refused.to_pylist(), key=lambda row: (row["rank"] is not None, row["rank"], row["refusal"]))
    steps = pc.unique(rows["step"]).to_pylist()
    owners: dict[str, dict[int | None, dict[str, list[int]]]] = {}
    for row in found:
        whose = owners.setdefault(row["refusal"], {}).setdefault(row["step"], {})
        if row["pipeline"] is not None and row["rank"] != row["rank1"]:
            whose.setdefault("pipeline", []).append(row["pipeline"])
        elif row["rank"] is not None:
            whose.setdefault("rank", []).append(row["rank"])
    # A reason that all have in common needs no owner.
    alone = len(owners) == 1 and len(found) == rows.num_rows
    words = [reason if alone else f"{_owned(of_steps, steps)}{reason}" for reason, of_steps in owners.items()]
    return _Refusals(
        ranks=len({row["rank"] for row in found} - {None}),
        words="; ".join(words) or None,
        certain=bool(found) and all(has_nothing_to_overlap(reason) for reason in owners),
    )


def _owned(of_steps: Mapping[int | None, Mapping[str, Sequence[int]]], steps: Sequence[int | None]) -> str:
    """Whose a reason is, in words that come before it: in which steps, where these differ; nothing where unnamed."""
    named = {
        step: " and ".join(numbered(word, numbers) for word, numbers in whose.items())
        for step, whose in of_steps.items()
    }
    same = set(named) == set(steps) and len(set(named.values())) == 1
    words = [next(iter(named.values()))] if same else [f"{whose} in step {step}" for step, whose in named.items()]
    said = ", ".join(words)
    return f"{said}: " if said else ""


def _statement(row: dict[str, object]) -> str:
    score = row.get("score_p50")
    said = "no OverlapScore" if score is None else f"OverlapScore {score:.2f}"
    period, *stages = (int(row[name]) for name in ("period_p50_ns", "stage0_p50_ns", "stage1_p50_ns"))  # type: ignore[call-overload]
    longer = max(stages)
    sign = "≈" if abs(period - longer) <= _ALIKE * longer else ">" if period > longer else "<"
    first, second = (f"{stage / 1e6:.1f}" for stage in stages)
    names = two_sides(str(row["kind"]), str(row["pair"]))
    return f"period {period / 1e6:.1f} ms {sign} max({names[0]} {first}, {names[1]} {second}), {said}, N={row['units']}"
