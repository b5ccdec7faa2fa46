"""Micro-batches of a size between those of two captured steps, which differ in that alone.

An item of another size takes what lies on the line between what it takes at both. That it does is not measured. What
bounds it: no item gets shorter as its micro-batch grows, and none takes longer for each token. So of sizes s1 < s < s2

    max(t1, t2 s / s2) <= t(s) <= min(t2, t1 s / s1)

which leaves nothing open of what is in proportion to the size, nor of what does not depend on it, and includes a host
that is the slower one at the small size alone. The step is predicted from either side's own, and weighted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any

from traceviz_dag.analyze.causes.gains import error_bar, gain_row
from traceviz_dag.analyze.causes.measured_items import Item, MeasuredRank
from traceviz_dag.analyze.causes.reordered import SHARES, Change, Items, kind_of
from traceviz_dag.analyze.causes.what_if import Edit, WhatIf
from traceviz_dag.errors import NoEvidenceError

_FEWEST = 3
"""Micro-batches that a step needs, so that one is neither the first nor the last."""

_ENDS = (0, -1, 1)


@dataclass(frozen=True, slots=True)
class Between:
    """A size between two.

    Attributes:
        times: it, over that of the one; ratio: that of the other, over the one's.
        end: 0 for the line, -1 for the least and 1 for the most that an item may take.
    """

    times: Fraction
    ratio: Fraction
    end: int = 0

    @property
    def share(self) -> float:
        """How far it is on the way from the one to the other."""
        return float((self.times - 1) / (self.ratio - 1))

    def line(self, one: float, other: float) -> float:
        """What lies on the line between both."""
        return one + (other - one) * self.share

    def taken(self, one: int, other: int) -> float:
        """What an item takes; see the module."""
        (small, less), (large, more) = sorted([(Fraction(1), one), (self.ratio, other)])
        line = self.line(one, other)
        least, most = max(less, float(more * self.times / large)), min(more, float(less * self.times / small))
        return (line, max(line, most), min(line, least))[self.end]


@dataclass(frozen=True)
class TwoSizes:
    """Predictions from two captured steps of one job.

    Attributes:
        here: the step that is asked about. there: the same with micro-batches ``ratio`` times as large.

    Raises:
        NoEvidenceError: they differ in more than that, or one has too few micro-batches or leaves open who waits for
            whom.
    """

    here: WhatIf
    there: WhatIf
    ratio: Fraction

    def __post_init__(self) -> None:
        if (why := self.here.why_open or self.there.why_open) is not None:
            raise NoEvidenceError(why)
        now, other = self.here.items.now, self.there.items.now
        if replace(other, microbatches=now.microbatches) != now:
            raise NoEvidenceError("the two captures run their micro-batches in other orders")
        if self.here.items.layers != self.there.items.layers or self.here.step.ranks != self.there.step.ranks:
            raise NoEvidenceError("the two captures are of other layers or ranks")
        if (fewest := min(now.microbatches, other.microbatches)) < _FEWEST:
            raise NoEvidenceError(
                f"a step of {fewest} micro-batches shows none that neither gathers parameters nor reduces gradients"
            )

    def as_row(self, change: Change, times: Fraction) -> dict[str, Any]:
        """What micro-batches of another size gain, as ``gains.gain_row``.

        Args:
            change: with the number of micro-batches. times: the size, over that of ``here``.

        Raises:
            NoEvidenceError: as ``Items.changed``.
        """
        sides = (
            (self.here, self.there, Between(times, self.ratio)),
            (self.there, self.here, Between(times / self.ratio, 1 / self.ratio)),
        )
        found = {
            (side, free, end): _step_ns(one, other, replace(between, end=end), change, free)
            for (side, (one, other, between)), free, end in product(enumerate(sides), (False, True), _ENDS)
        }
        before = {free: _items(self.here, free).step_ns for free in (False, True)}
        gains = {key: before[key[1]] - step for key, step in found.items()}
        share = sides[0][2].share
        gain = round((1 - share) * gains[0, False, 0] + share * gains[1, False, 0])
        error = max((items.before_ns / items.step_ns - 1 for items in (self.here.items, self.there.items)), key=abs)
        step_ns = self.here.step_ns
        bar = error_bar(min(gains.values()), max(gains.values()), error, step_ns)
        counts = self.here.items.now.microbatches, change.order(self.here.items.now).microbatches
        return gain_row([Edit(change.name, change=change)], step_ns, gain, bar, counts)


def _items(what_if: WhatIf, free: bool) -> Items:
    return what_if.free_items if free else what_if.items


def _step_ns(one: WhatIf, other: WhatIf, between: Between, change: Change, free: bool) -> int:
    """The step of the one with items of another size and order."""
    mine = _items(one, free)
    order = change.order(mine.now)
    mine.check(change, order)
    then = resized(mine, _items(other, free), between)
    # Where exchanges run beside computation the host launches ahead, as ``Items.changed`` has it.
    ahead = order.overlapped and not mine.now.overlapped
    own = resized(one.free_items, other.free_items, between) if ahead else then
    return mine.step_ns + then.replayed(order, mine.now, own, change) - mine.before_ns


def resized(items: Items, other: Items, between: Between) -> Items:
    """Items of a size between, in the place of these."""
    ranks = (
        _resized(mine, its, kinds, between)
        for mine, its, *kinds in zip(items.ranks, other.ranks, items.taken, other.taken, strict=True)
    )
    return replace(items, ranks=tuple(ranks))


def _resized(mine: MeasuredRank, its: MeasuredRank, kinds: list[Any], between: Between) -> MeasuredRank:
    one, other = kinds
    counts, places = Counter(kind_of(item.parts) for item in mine.items), defaultdict[Any, int](int)
    result: list[Item] = []
    for item in mine.items:
        kind = kind_of(item.parts)
        was, is_ = one[kind], other[kind]
        place, places[kind] = places[kind], places[kind] + 1
        usual = between.taken(was.usual, is_.usual)
        extra = item.own_ns - was.usual
        if place in (0, counts[kind] - 1):
            end = "first" if place == 0 else "last"
            extra += round(between.line(0, getattr(is_, end) - getattr(was, end)))
        shares: dict[str, Any] = {name: between.line(getattr(was, name), getattr(is_, name)) / usual for name in SHARES}
        lead = round(between.line(was.lead, is_.lead))
        result.append(replace(item, own_ns=round(usual) + extra, **shares, lead_ns=lead))
    lag, transfer = (
        round(between.line(getattr(mine, name), getattr(its, name))) for name in ("exchange_lag_ns", "transfer_ns")
    )
    return replace(mine, items=tuple(result), exchange_lag_ns=lag, transfer_ns=transfer)
