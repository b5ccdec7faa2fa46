"""A change in words: its verdict, and the names of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from traceviz_dag.analyze.diff.changes import Change
from traceviz_dag.analyze.diff.replayed import AMOUNT, HOSTS, MEMORY, REMAINDER, UNMATCHED, ReplayRow, WorkClass
from traceviz_dag.analyze.wording import ABSENT, activity, capitals, counted, duration, signed, signed_percent
from traceviz_dag.vocabulary import PathCause

LEAST_CHANGE = 0.01
"""A change of less than this share of A's step is none."""

_WORDS = {
    AMOUNT: "amount of work: numbers of calls",
    HOSTS: "hosts and lags",
    MEMORY: "memory operations",
    REMAINDER: "remainder: order of the work, and what A alone runs",
    UNMATCHED: "unmatched communication, waits included",
}


class Outcome(StrEnum):
    """What became of the step."""

    LONGER = "longer"
    SHORTER = "shorter"
    NO_CHANGE = "no change"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the step.

    Attributes:
        headline: the same in words, with figures. bar: how sure that is, in words.
    """

    outcome: Outcome
    headline: str
    bar: str

    @property
    def sentence(self) -> str:
        """Both."""
        return f"{self.headline}; {self.bar}"


def verdict(step: Change, steps: tuple[int, int], least: float = LEAST_CHANGE) -> Verdict:
    """Judge the change of the mean step.

    Args:
        steps: of each side. least: share of A's step from which a change counts, where it is beyond its error bar.
    """
    if not step.is_change or abs(step.change_ns) < least * step.a_ns:
        outcome = Outcome.NO_CHANGE
    else:
        outcome = Outcome.LONGER if step.change_ns > 0 else Outcome.SHORTER
    by = f"{signed(step.change_ns)} ({change_share(step)}), from {duration(step.a_ns)} to {duration(step.b_ns)}"
    bar = "one step alone of a side, so no error bar"
    if step.bar is not None:
        bar = (
            f"error bar {signed(step.bar.low_ns)} to {signed(step.bar.high_ns)}, means of {steps[0]:,} and "
            f"{counted(steps[1], 'step', 'steps')}"
        )
    if outcome is not Outcome.NO_CHANGE:
        return Verdict(outcome, f"B's step is {outcome}: {by}", bar)
    if not step.change_ns:
        return Verdict(outcome, f"No change: both steps take {duration(step.a_ns)}, to the nanosecond", bar)
    why = f"less than {100 * least:g} % of A's step" if step.is_change else "within what the steps differ anyway"
    return Verdict(outcome, f"No change: {by}, {why}", bar)


def change_share(step: Change) -> str:
    """The change over A's step, with its sign."""
    return signed_percent(step.change_ns / step.a_ns) if step.a_ns else ABSENT


def named_class(work: WorkClass) -> str:
    """A class of work, as sentences write it."""
    if work.is_transfer:
        return f"{capitals(work.what)} transfers"
    named = _WORDS.get(work.what) or activity(work.what)
    return named if work.stage is None else f"{named} of stage {work.stage}"


def named_part(category: str | None, cause: str) -> str:
    """What of the path a row is: a category of kernels that run, else the host or a lag."""
    return f"{activity(category or cause)}{', waits included' if cause == PathCause.UNMATCHED else ''}"


def main_cause(replay: Sequence[ReplayRow], step: Change) -> str | None:
    """What makes most of a change in its own direction, by replay; None where nothing surely does."""
    sign = 1 if step.change_ns > 0 else -1
    sure = [row for row in replay if row.is_change and sign * row.change_ns > 0]
    if not sure:
        return None
    first = max(sure, key=lambda row: (sign * row.change_ns, -row.order))
    return f"By replay the largest part is {named_class(first.work)}: {signed(first.change_ns)}"


def state_of(row: Change) -> str:
    """Whether a row is no change, or of one side alone; empty for others."""
    if row.change_ns and not row.is_change:
        return "no change"
    if not row.a_calls and not row.a_ns:
        return "only B"
    return "only A" if not row.b_calls and not row.b_ns else ""
