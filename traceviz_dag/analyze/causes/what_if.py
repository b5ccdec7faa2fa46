"""What single edits of a step would gain: the replay's prediction with its error bar.

T' = T + replay(edit) - replay(no edit). With the measured lags the replay without an edit is T itself. The other end of
the error bar is the same without launches and lags, as if the host were free, with what the edit saves by changing the
host itself; both are widened by the share of the step that the replay without lags does not explain. Gains are
ceilings, and those of several edits do not add up.

A communication that is not matched with all its members hides who waited for whom. The bar then also holds what the
edits gain if such communications end as soon as their rank comes, as far as the edits save so much time at all; and
what they gain if these end when they did, because they waited for others. Where communication on streams of its own has
no launch on record, starts show what waited for it as far as that is seen; then the bar also holds what the edits gain
with all waits that may be, and all that they save. What a finding is may not depend on that: see ``undecided``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from traceviz_dag.analyze.causes.edits import AllTimes, StepEdits, untied_words
from traceviz_dag.analyze.causes.gains import LEAST_GAIN, MOST_RANKS, error_bar, gain_row
from traceviz_dag.analyze.causes.layers import Layers
from traceviz_dag.analyze.causes.reordered import Change, Items, Reordered, items_of
from traceviz_dag.analyze.causes.step_work import StepWork, Times, without_lags
from traceviz_dag.analyze.causes.usual_times import Usual
from traceviz_dag.analyze.wording import counted
from traceviz_dag.arrays import Int64
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.events import MISSING
from traceviz_dag.spans import spanned, unspanned
from traceviz_dag.vocabulary import ALL_DIMENSIONS

EditName = tuple[str, int | None, str | None, str | None]
"""What ``WhatIf.named`` takes of an edit without a factor."""

WORTH = 0.002
"""A rank is fixed on its own account where its excess over its peers is at least this share of the step."""

FASTER = 2.0
"""How many times faster communication is made without being asked for."""


WIDEST, WIDEST_SHARE = 0.05, 0.5
"""Where what is open lets edits gain more by over these shares of the step and of the gain, no number is said."""

_PARTS = ("duration_ns", "lag_ns", "section_ns", "section_lag_ns")
"""Of ``Times``: what passes in a step."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit: a name, what it is applied to, and what it does to the times.

    Attributes:
        most: what it does at most, where the traces leave that open.
        ranks: those that it fixes together, as ``wording.spanned`` writes them.
        untouched: of links, see ``StepEdits.untouched_by_links``.
    """

    name: str
    apply: Callable[[AllTimes], AllTimes] = lambda times: times
    most: Callable[[AllTimes], AllTimes] | None = None
    rank: int | None = None
    ranks: str | None = None
    dimension: str | None = None
    factor: float | None = None
    change: Change | None = None
    untouched: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What edits, applied one after the other, would gain.

    Attributes:
        step_ns: the step as it was. gain_ns: what the replay with lags saves; low and high: the error bar.
        replay_error: the step replayed without lags over ``step_ns``, less 1; of edits of the order, the step replayed
            with mean items where that is further off.
        microbatches: of the step as it was and with the edits, where these change the order; None elsewhere.
        undecided: why it is not known whether they gain enough for a finding; None where it is.
    """

    edits: tuple[Edit, ...]
    step_ns: int
    gain_ns: int
    gain_low_ns: int
    gain_high_ns: int
    replay_error: float
    microbatches: tuple[int, int] | None = None
    undecided: str | None = None

    def as_row(self) -> dict[str, Any]:
        """See ``gain_row``."""
        bar = self.gain_low_ns, self.gain_high_ns
        return gain_row(self.edits, self.step_ns, self.gain_ns, bar, self.microbatches)


@dataclass(frozen=True, slots=True)
class Suspects:
    """What other tables say is slow, or may be, so that the usual edits fix it.

    Attributes:
        ranks: those that are slow, come late or whose host pauses, the worst first; ``MOST_RANKS`` of them count.
        links: ranks. hosts: ranks whose hosts launch too slowly.
        together: ranks that are slow together, with the name of their edit: fix_ranks, fix_group or fix_node.
        groups_of_links: ranks of groups whose transfers are slow, of which nothing shows whose link it is.
    """

    ranks: Sequence[int] = ()
    links: Sequence[int] = ()
    hosts: Sequence[int] = ()
    together: Sequence[tuple[str, tuple[int, ...]]] = ()
    groups_of_links: Sequence[tuple[int, ...]] = ()


def _changed(mine: Times, other: Times, names: Sequence[str]) -> Iterator[tuple[Int64, Int64]]:
    """What an edit has made anew of these parts, before and after it; most edits leave most as they were."""
    both = ((getattr(mine, name), getattr(other, name)) for name in names)
    return ((before, after) for before, after in both if after is not before)


class WhatIf:
    """Predictions for one step."""

    def __init__(
        self,
        step: StepWork,
        stages: Sequence[int],
        tight: StepWork | None = None,
        loose: StepWork | None = None,
        *,
        unread: int = 0,
    ) -> None:
        """Take a step.

        Args:
            stages: stage of each rank; ``MISSING`` where unknown.
            tight: the same with all waits that may be, where launches are not on record; None where they are.
            loose: the same without meetings of which several groups may be the members; None where there are none.
            unread: ranks of the job that were not read, where few were read, or no complete model: what changes all
                ranks is not predicted then.
        """
        self.step = step
        self.unread = unread
        self.tight = None if tight is None else WhatIf(tight, stages)
        self.loose = None if loose is None else WhatIf(loose, stages)
        self.edits = StepEdits(step, tuple(stages))
        self.times = step.times()

    def predict(self, *edits: Edit) -> Prediction:
        """The gain of some edits together.

        Raises:
            NoEvidenceError: they ask for an order of work that cannot be made, the step shows nothing of one, or it
                would change ranks that were not read.
        """
        for edit in edits:
            if (why := self.unseen(edit)) is not None:
                raise NoEvidenceError(why)
        found = self._predicted(edits, [edit.apply for edit in edits])
        known = found.gain_high_ns
        applied = [edit.most or edit.apply for edit in edits]
        if any(edit.most is not None for edit in edits):
            most = self._predicted(edits, applied)
            low, high = min(found.gain_low_ns, most.gain_low_ns), max(found.gain_high_ns, most.gain_high_ns)
            found = replace(found, gain_low_ns=low, gain_high_ns=high)
        if edits and self.edits.unmet[0].any():
            found = self._with_unmet(found, applied)
        if edits and self.loose is not None:
            found = self._with_fewer(found, applied, self.loose)
        if edits and self.edits.untied:
            found = self._with_untied(found, applied)
        # What a free host would gain is no open question.
        more = found.gain_high_ns - known
        if edits and self.why_open and more > max(WIDEST * self.step_ns, WIDEST_SHARE * found.gain_ns):
            found = replace(found, undecided=found.undecided or self.why_open)
        return found

    def unseen(self, edit: Edit) -> str | None:
        """Why an edit of all ranks cannot be predicted from those that were read; None where it can."""
        if not self.unread or edit.rank is not None or edit.ranks is not None:
            return None
        what, read = "it" if edit.change is None else "other settings", "was" if self.unread == 1 else "were"
        return f"{what} would also change {counted(self.unread, 'rank', 'ranks')} that {read} not read whole"

    def _with_fewer(
        self, found: Prediction, applied: Sequence[Callable[[AllTimes], AllTimes]], loose: WhatIf
    ) -> Prediction:
        """The same with what meetings leave open that may be those of several groups: each may end by itself."""
        saved = self._saved(applied) if found.microbatches is None else self.step_ns
        *first, last = applied
        most = loose._predicted(found.edits, [*first, lambda times: loose.edits.without_unmet(last(times))])
        high = max(found.gain_high_ns, min(most.gain_high_ns, max(saved, found.gain_ns)))
        undecided = found.undecided
        if not self._is_enough(found.gain_ns, found.gain_low_ns) and high >= LEAST_GAIN * self.step_ns:
            undecided = undecided or loose._unmet_words
        return replace(found, gain_high_ns=high, undecided=undecided)

    def _with_unmet(self, found: Prediction, applied: Sequence[Callable[[AllTimes], AllTimes]]) -> Prediction:
        """The same with what communications that are not matched with all their members leave open."""
        saved = self._saved(applied) if found.microbatches is None else self.step_ns
        *first, last = applied
        most = self._predicted(found.edits, [*first, lambda times: self.edits.without_unmet(last(times))])
        gain = max(found.gain_ns, min(most.gain_ns, saved))
        high = max(found.gain_high_ns, min(most.gain_high_ns, max(saved, gain)))
        least = self._predicted(found.edits, applied, hold=True)
        low = min(found.gain_low_ns, least.gain_low_ns)
        undecided = None
        sure = min(found.gain_ns, least.gain_ns) if low > 0 else 0
        if self._is_enough(found.gain_ns, found.gain_low_ns) != (sure >= LEAST_GAIN * self.step_ns) or (
            sure < LEAST_GAIN * self.step_ns <= gain
        ):
            undecided = self._unmet_words
        return replace(found, gain_low_ns=low, gain_high_ns=high, undecided=undecided)

    def _with_untied(self, found: Prediction, applied: Sequence[Callable[[AllTimes], AllTimes]]) -> Prediction:
        """The same with what ranks leave open of whose communication nothing shows what waited for it."""
        saved = self._saved(applied) if found.microbatches is None else self.step_ns
        least = found if self.tight is None else self.tight._predicted(found.edits, applied)
        low = min(found.gain_low_ns, least.gain_low_ns, *([0] if self.tight is None else []))
        high = max(found.gain_high_ns, least.gain_high_ns, saved)
        undecided = found.undecided
        sure = self._is_enough(min(found.gain_ns, least.gain_ns), low)
        if not sure and high >= LEAST_GAIN * self.step_ns:
            undecided = self._untied_words
        return replace(found, gain_low_ns=low, gain_high_ns=high, undecided=undecided)

    @property
    def why_open(self) -> str | None:
        """Why edits may gain more than is seen; None where nothing is open."""
        return self.open_question or (self._unmet_words if self.edits.unmet[0].any() else None)

    @property
    def open_question(self) -> str | None:
        """Why gains are ranges that only a replay with other waits shows; None where they are not."""
        if self.edits.untied:
            return self._untied_words
        return None if self.loose is None else self.loose._unmet_words

    @property
    def _unmet_words(self) -> str:
        unmet, every = self.edits.unmet
        return (
            f"{unmet.sum()} of {every.sum()} communication kernels are not matched with all their members, so "
            "who would wait less is not known"
        )

    @property
    def _untied_words(self) -> str:
        return untied_words(self.edits.untied)

    def _is_enough(self, gain: int, low: int) -> bool:
        return gain >= LEAST_GAIN * self.step_ns and low > 0

    def _saved(self, applied: Sequence[Callable[[AllTimes], AllTimes]]) -> int:
        """What edits take away from the work of all ranks together, of a meeting from one member; no step becomes
        shorter by more."""
        edited = self.times
        for apply in applied:
            edited = apply(edited)
        return self._taken(edited)

    def _taken(self, edited: AllTimes) -> int:
        """What edited times lack of those of all ranks together, each meeting counted once."""
        members, total = self.step.members, 0
        of_meeting = np.zeros(int(members.meeting.max(initial=-1)) + 1, np.int64)
        for place, (mine, other) in enumerate(zip(self.times, edited, strict=True)):
            if other is mine:
                continue
            if mine.waits is not other.waits:
                return self.step_ns
            for before, after in _changed(mine, other, ["launch_ns"]):
                if (after[before != MISSING] == MISSING).any():
                    return self.step_ns
                total += int(np.maximum(before - after, 0).max(initial=0)) * len(mine.section_ns)
            for before, after in _changed(mine, other, _PARTS[:1]):
                shorter = np.maximum(before - after, 0)
                total += int(shorter[~self.step.works[place].is_joined()].sum())
                own = members.of(place)
                np.maximum.at(of_meeting, members.meeting[own], shorter[members.kernel[own]])
            for before, after in _changed(mine, other, _PARTS[1:]):
                total += int(np.maximum(before - after, 0).sum())
            total += max(mine.host_end_ns - other.host_end_ns, 0)
        return min(total + int(of_meeting.sum()), self.step_ns)

    def _busiest(self, times: AllTimes) -> int:
        """How long the kernels of the fullest stream of any rank take, which run one after the other."""
        taken = (
            np.bincount(work.kernels.stream, weights=mine.duration_ns)
            for work, mine in zip(self.step.works, times, strict=True)
        )
        return max(round(float(each.max(initial=0.0))) for each in taken)

    def _adds(self, edited: AllTimes) -> bool:
        """Whether edited times may make a step longer: not where each is as long as it was, or shorter."""
        return any(
            mine.waits is not other.waits
            or mine.launch_ns is not other.launch_ns
            or other.host_end_ns > mine.host_end_ns
            or any((after > before).any() for before, after in _changed(mine, other, _PARTS))
            for mine, other in zip(self.times, edited, strict=True)
        )

    def _predicted(
        self, edits: tuple[Edit, ...], applied: Sequence[Callable[[AllTimes], AllTimes]], hold: bool = False
    ) -> Prediction:
        """See the module.

        Args:
            hold: let communications that are not matched with all their members end when they did.
        """
        times, change = self.times, Change()
        for edit, apply in zip(edits, applied, strict=True):
            times = apply(times)
            change = change.merged(edit.change or Change())
        gain = free = 0
        free_times = self._free_before[0]
        if times is not self.times:
            free_times = without_lags(times)
            gain = self.step_ns - self._length(times, self._before if hold else None)
            free = self._free_step_ns - self._length(free_times, self._free_before if hold else None)
            free += self._of_host(times, gain)
        error, order = self._free_step_ns / self.step_ns - 1 if self.step_ns else 0.0, None
        if change != Change():
            order = self._reordered(times, change)
            gain -= order.later_ns
            free -= self._reordered(free_times, change).later_ns
            error = max(error, order.error, key=abs)
        low, high = error_bar(gain, free, error, self.step_ns if change.remakes else 0)
        if order is not None:
            low, high = low - (order.most_ns - order.later_ns), high + order.later_ns - order.least_ns
        # No step becomes shorter than the work that is left on a stream, nor by more than edits take away, nor longer
        # where they add nothing.
        most = min(self._taken(times), self.step_ns - self._busiest(times)) if change == Change() else self.step_ns
        least = low if change != Change() or self._adds(times) else 0
        bar = min(gain, max(low, least)), max(gain, min(high, most))
        return Prediction(edits, self.step_ns, gain, *bar, error, order.microbatches if order else None)

    def _of_host(self, times: AllTimes, gain: int) -> int:
        """What of a gain is there because the host does something else: a free host would not show it."""
        same = all(
            mine.launch_ns is edited.launch_ns
            and mine.section_ns is edited.section_ns
            and mine.lag_ns is edited.lag_ns
            and mine.waits is edited.waits
            for mine, edited in zip(self.times, times, strict=True)
        )
        if same:
            return 0
        both = zip(self.times, times, strict=True)
        as_was = tuple(replace(mine, duration_ns=edited.duration_ns) for mine, edited in both)
        return gain - (self.step_ns - self._length(as_was))

    def reorder(self, change: Change) -> Edit:
        """Another order of work, other layers or less recomputation."""
        return Edit(change.name, change=change)

    def _reordered(self, times: AllTimes, change: Change) -> Reordered:
        """What another order does."""
        known = times is self.times or times is self._free_before[0]
        ahead = self._free_before[0] if known else without_lags(times)
        return self._items(times).changed(change, lambda: self._items(ahead))

    @cached_property
    def items(self) -> Items:
        """The items of the step, see ``items_of``."""
        return items_of(self.step, self.times, self.edits.stages, self._layers)

    @cached_property
    def free_items(self) -> Items:
        """The same of a host that takes no time."""
        return items_of(self.step, self._free_before[0], self.edits.stages, self._layers)

    def _items(self, times: AllTimes) -> Items:
        """The items of the step with some times; those that many changes ask for are measured once."""
        if times is self.times:
            return self.items
        if times is self._free_before[0]:
            return self.free_items
        return items_of(self.step, times, self.edits.stages, self._layers)

    def gains(self, change: Change) -> tuple[int, int, int, int]:
        """The step and what a change gains of it, at least and at most, ns.

        Raises:
            NoEvidenceError: as ``predict``.
        """
        found = self.predict(self.reorder(change))
        return found.step_ns, found.gain_ns, found.gain_low_ns, found.gain_high_ns

    @cached_property
    def _layers(self) -> Layers | str:
        """The step's layers, or why they are not known."""
        try:
            return self.edits.layers
        except NoEvidenceError as error:
            return str(error)

    def fix_rank(self, rank: int) -> Edit:
        """See ``StepEdits.fix_rank``."""
        return self._of_gpus("fix_rank", partial(self.edits.fix_rank, rank=rank), rank=rank)

    def fix_gpu(self, rank: int) -> Edit:
        """See ``StepEdits.fix_gpus``."""
        return self._of_gpus("fix_gpu", partial(self.edits.fix_gpus, ranks=[rank]), rank=rank)

    def no_pauses(self, rank: int) -> Edit:
        """See ``StepEdits.no_pauses``."""
        return Edit("no_pauses", lambda times: self.edits.no_pauses(times, rank), rank=rank)

    def fix_ranks(self, name: str, ranks: Sequence[int]) -> Edit:
        """See ``StepEdits.fix_gpus``; ``name`` says what they are: fix_ranks, fix_group or fix_node."""
        return self._of_gpus(name, partial(self.edits.fix_gpus, ranks=ranks), ranks=spanned(ranks))

    def _of_gpus(self, name: str, apply: Callable[[AllTimes], AllTimes], **whose: Any) -> Edit:
        """An edit after which others wait less, which may also slow less beside their waits."""
        contended = self.edits.without_waits is not None
        most = (lambda times: apply(self.edits.beside_no_waits(times))) if contended else None
        return Edit(name, apply, most, **whose)

    def fix_link(self, rank: int) -> Edit:
        """See ``StepEdits.fix_links``."""
        return replace(self.fix_links([rank]), name="fix_link", rank=rank, ranks=None)

    def fix_links(self, ranks: Sequence[int]) -> Edit:
        """See ``StepEdits.fix_links``, of ranks of which one has the slow link."""
        most = partial(self.edits.fix_links, ranks=ranks, most=True)
        apply, untouched = partial(self.edits.fix_links, ranks=ranks), self.edits.untouched_by_links(ranks)
        return Edit("fix_links", apply, most, ranks=spanned(ranks), untouched=untouched)

    def hide(self, dimension: str) -> Edit:
        """See ``StepEdits.hidden``."""
        most = partial(self.edits.hidden, dimension=dimension, unmatched=True)
        return Edit(
            "hide",
            lambda times: self.edits.hidden(times, dimension),
            most if self.edits.has_unmatched(dimension) else None,
            dimension=dimension,
        )

    def faster(self, dimension: str, factor: float) -> Edit:
        """See ``StepEdits.faster``."""
        most = partial(self.edits.faster, dimension=dimension, factor=factor, unmatched=True)
        return Edit(
            "faster",
            lambda times: self.edits.faster(times, dimension, factor),
            most if self.edits.has_unmatched(dimension) else None,
            dimension=dimension,
            factor=factor,
        )

    def named(
        self, name: str, rank: int | None, dimension: str | None, ranks: str | None, factor: float | None = None
    ) -> Edit:
        """The edit that a row of table ``what_if`` names."""
        if ranks is not None:
            members = unspanned(ranks)
            return self.fix_links(members) if name == "fix_links" else self.fix_ranks(name, members)
        if dimension is not None:
            return self.hide(dimension) if factor is None else self.faster(dimension, factor)
        if rank is not None:
            edits = {"fix_rank": self.fix_rank, "fix_gpu": self.fix_gpu, "fix_link": self.fix_link}
            return {**edits, "host_free": self.host_free, "no_pauses": self.no_pauses}[name](rank)
        return next(edit for edit in self.general() if edit.name == name)

    def saved_by(self, sets: Sequence[Sequence[EditName]]) -> list[int]:
        """What each of some sets of edits saves together, ns; those of which this step shows nothing save nothing."""
        saved, before, times = [], list[EditName](), self.times
        for edits in sets:
            # One that goes on where the set before it ended is edited from there.
            if before != list(edits[: len(before)]):
                before, times = [], self.times
            for edit in edits[len(before) :]:
                with suppress(NoEvidenceError):
                    times = self.named(*edit).apply(times)
            before = list(edits)
            saved.append(self.step_ns - self._length(times))
        return saved

    def general(self) -> Iterator[Edit]:
        """The edits that name neither a rank nor a dimension."""
        hosts = ("no_pauses", "no_hidden_waits", "host_free")
        for name in ("even_layers", "equal_stages", "equal_ranks", "no_jitter", *hosts, "balanced_experts"):
            yield Edit(name, getattr(self.edits, name))
        yield Edit("no_congestion", self.edits.no_congestion, partial(self.edits.no_congestion, unjudged=True))

    def host_free(self, rank: int) -> Edit:
        """See ``StepEdits.host_free``."""
        return Edit("host_free", lambda times: self.edits.host_free(times, rank), rank=rank)

    def standard(self, suspects: Suspects | None = None) -> list[Prediction]:
        """What the usual edits would gain, the largest gain first; without those that the step shows nothing of."""
        return self.standard_and_refused(suspects)[0]

    def standard_and_refused(self, suspects: Suspects | None = None) -> tuple[list[Prediction], list[tuple[Edit, str]]]:
        """What the usual edits would gain, the largest gain first; and those that cannot be predicted, with why."""
        known = suspects or Suspects()
        dimensions = self.dimensions()
        named = [rank for rank in known.ranks if rank in self.step.ranks][:MOST_RANKS]
        ranks = list(dict.fromkeys([*self._suspects(), *named]))
        edits = [*map(self.fix_rank, ranks), *self.general()]
        # What a slow GPU and a host that pauses cost is apart where a rank has both. A host is fixed alone also where
        # the GPU is not slow: the median of its peers has less jitter than any GPU, which is no cost of the host.
        lost = {rank: self._lost_ns(self.step.ranks.index(rank)) for rank in ranks}
        for rank, (by_gpu, by_host) in lost.items():
            if by_host >= WORTH * self.step_ns:
                edits += [*([self.fix_gpu(rank)] if by_gpu >= WORTH * self.step_ns else []), self.no_pauses(rank)]
        edits += [self.fix_link(rank) for rank in known.links if rank in self.step.ranks]
        edits += [self.host_free(rank) for rank in known.hosts if rank in self.step.ranks]
        there = set(self.step.ranks)
        edits += [self.fix_ranks(name, ranks) for name, ranks in known.together if there.issuperset(ranks)]
        edits += [self.fix_links(ranks) for ranks in known.groups_of_links if there.issuperset(ranks)]
        edits += [self.hide(dimension) for dimension in (*dimensions, *([ALL_DIMENSIONS] if dimensions else []))]
        edits += [self.faster(dimension, FASTER) for dimension in dimensions]
        found, refused = [], []
        for edit in edits:
            try:
                one = self.predict(edit)
            except NoEvidenceError as error:
                refused.append((edit, str(error)))
                continue
            if one.undecided is None:
                found.append(one)
            else:
                refused.append((edit, one.undecided))
        return sorted(found, key=lambda one: -one.gain_ns), refused

    def dimensions(self) -> list[str]:
        """Dimensions of the step's communication."""
        found = set()
        for work in self.step.works:
            used = np.unique(work.kernels.dimension[work.kernels.communicates])
            found |= {work.kernels.dimensions[code] for code in used.tolist() if code >= 0}
        return sorted(found)

    @cached_property
    def step_ns(self) -> int:
        """The step as it was."""
        return self._length(self.times)

    @cached_property
    def _free_step_ns(self) -> int:
        return self.step.step_ns(self._free_before[1])

    @cached_property
    def _before(self) -> tuple[AllTimes, Int64]:
        """The times as they are, and their replay."""
        return self.times, self.step.replay(self.times)

    @cached_property
    def _free_before(self) -> tuple[AllTimes, Int64]:
        """The same without lags."""
        free = without_lags(self.times)
        return free, self.step.replay(free)

    def _length(self, times: AllTimes, held: tuple[AllTimes, Int64] | None = None) -> int:
        """How long the step takes.

        Args:
            held: the times, and their replay, with which communications end that are not matched with all their
                members; None: ``times``.
        """
        earliest = None if held is None else self.step.unmet_ends(held[1], held[0], times)
        return self.step.edited_ns(self.step.replay(times, earliest))

    def _lost_ns(self, place: int) -> tuple[int, int]:
        """What a rank's work takes longer than that of its peers; how long its host pauses and begins late."""
        late = int(self.edits.late_begin[place]) + int(self.edits.pauses[place].sum())
        return self._usual.excess_ns[place], late

    @cached_property
    def _usual(self) -> Usual:
        return self.edits.usual(self.times)

    def _suspects(self) -> list[int]:
        """Ranks whose work takes longer than that of their peers, whose host pauses or that begin late; worst first."""
        excess = [sum(self._lost_ns(place)) for place in range(len(self.step.works))]
        order = sorted(range(len(excess)), key=lambda place: -excess[place])
        return [self.step.ranks[place] for place in order[:MOST_RANKS] if excess[place] >= WORTH * self.step_ns]
