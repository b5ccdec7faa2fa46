"""The verdict on an iteration: what limits its step, what fixing it would save, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from traceviz_dag.analyze.causes.gains import LEAST_GAIN, TOGETHER, named_edit
from traceviz_dag.analyze.findings.findings import WIDE, are_apart
from traceviz_dag.analyze.findings.losses import leading
from traceviz_dag.analyze.findings.rule import Row
from traceviz_dag.analyze.wording import capitalised, counted, duration, share
from traceviz_dag.spans import unspanned
from traceviz_dag.tables.findings import CULPRIT_COLUMNS
from traceviz_dag.vocabulary import FindingClass, Severity

MOST_FIXES = 3
"""Fixes that a verdict names."""

NOTABLE = 0.01
"""Share of kernel time without a category, of communication without a certain wait, or of a rank's kernels without a
launch, from which it is a doubt."""

LONGER = 1.1
"""An iteration differs whose step takes so many times as long."""


NOTHING_WRONG = "no fault found, and no fix is predicted to save 1 % of the step"

LEAD_COLUMNS = (
    *("finding", "rule", "class", "severity", *CULPRIT_COLUMNS, "measure", "value", "step_ns", "measured_ns"),
    *("edit", "gain_ns", "gain_high_ns", "gain_after_ns", "at_most_ns", "statement"),
)
"""Columns of table ``findings`` that ``lead_of`` reads."""


RELATIONS = {
    "overlap": "Exposed time is no saving.",
    "waits": "A delay below is no saving.",
    "critical path": "The path shows where time counts, not whose fault it is.",
    "efficiencies": "A loss below is no saving.",
}
"""View → how what it measures differs from what the verdict says, on the terminal and on the page."""

_Edit = TypeVar("_Edit", bound=Mapping[str, Any])


@dataclass(frozen=True, slots=True)
class Lead:
    """What every view of an iteration says first, and whom it shows first.

    Attributes:
        limit: what limits the step, in a sentence; empty where nothing was judged.
        faults: rank that leads the findings → what is found of it, in a sentence; in their order.
        noted: ranks that notes of faults name, whose saving is small or unknown: still where to look next.
        edits: edit, rank, ranks and dimension of each fix, in the order of the findings.
    """

    limit: str
    faults: Mapping[int, str]
    noted: tuple[int, ...]
    edits: tuple[tuple[object, ...], ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whom to show first: those at fault, then those noted."""
        return (*self.faults, *self.noted)

    def place(self, rank: int) -> int:
        """Where a rank comes among those to show first; after them where it is not one of them."""
        return self.ranks.index(rank) if rank in self.ranks else len(self.ranks)

    def fixes_first(self, rows: Sequence[_Edit]) -> list[_Edit]:
        """Rows of edits, those of the findings before all others: a fault is the reason for much that others gain.

        Another fix of a finding's rank is behind its own; what all of them gain together is last, as a sum is.
        """
        order = {edit: place for place, edit in enumerate(self.edits)}
        of_rank = {edit[1]: place for edit, place in reversed(order.items()) if edit[1] is not None}

        def place(row: _Edit) -> tuple[bool, int, bool]:
            key = (row["edit"], row["rank"], row["ranks"], row["dimension"])
            return row["edit"] == TOGETHER, order.get(key, of_rank.get(row["rank"], len(order))), key not in order

        return sorted(rows, key=place)


def lead_of(rows: Sequence[Row]) -> Lead:
    """The lead that rows of table ``findings`` give."""
    if not rows:
        return Lead("", {}, (), ())
    found, faults = leading(rows), dict[int, str]()
    for row in found:
        for rank in _ranks(row):
            faults.setdefault(rank, row["statement"])
    notes = [row for row in rows if row["class"] == FindingClass.FAULT and row["severity"] == Severity.NOTE]
    noted = dict.fromkeys(rank for row in notes for rank in _ranks(row) if rank not in faults)
    limit = capitalised(found[0]["statement"] if found else NOTHING_WRONG)
    return Lead(limit, faults, tuple(noted), tuple(map(_edit, found)))


def _ranks(row: Row) -> tuple[int, ...]:
    if row["group_ranks"] is not None:
        return unspanned(row["group_ranks"])
    return () if row["rank"] is None else (row["rank"],)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict rests on.

    Attributes:
        ranks: that were read. partial: what of the iteration was not read; empty where all was.
        clocks: ranks whose clocks are solved. unknown_waits: why no wait is certain; None where some are.
        uncertain: share of communication kernels without a certain wait. unclassified: share of kernel time without a
            category. open: notes that may be findings. launchless: ranks that lack the launches of ``NOTABLE`` of their
            kernels or more. contradicted: process groups that another source of the topology contradicts.
    """

    ranks: int
    partial: str
    clocks: int
    unknown_waits: str | None
    uncertain: float
    unclassified: float
    open: int
    launchless: int = 0
    contradicted: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reader should know first of an iteration.

    Attributes:
        limit: what limits the step, in a sentence.
        then: what the next fixes save, further faults and then the largest, each once those before it in the findings
            are made.
        culprit: rule and culprit of ``limit``, by which verdicts are compared; empty where nothing is wrong.
        doubts: why it is not surer; none: it rests on all ranks, solved clocks and classified kernels.
        to_last_kernel_ns: the step of which savings are, where its GPUs go on long after the hosts; else None.
    """

    limit: str
    then: tuple[str, ...]
    culprit: tuple[object, ...]
    doubts: tuple[str, ...]
    to_last_kernel_ns: int | None = None


def verdict(rows: Sequence[Row], evidence: Evidence) -> Verdict:
    """The verdict that rows of table ``findings`` give."""
    doubts = _doubts(evidence)
    found = leading(rows)
    if not found:
        return Verdict(NOTHING_WRONG, (), (), doubts, _to_last_kernel_ns(rows))
    first = found[0]
    fixed, then = {_edit(first)}, list[tuple[bool, int, str]]()
    for row in found[1:]:
        saved, step_ns = row["gain_after_ns"], row["step_ns"]
        if saved is not None and saved >= LEAST_GAIN * step_ns and _edit(row) not in fixed:
            edit = named_edit({**row, "factor": None, "ranks": row["group_ranks"]})
            is_fault = row["class"] == FindingClass.FAULT
            then.append((is_fault, saved, f"{edit}: {duration(saved)} ({share(saved, step_ns)})"))
            fixed.add(_edit(row))
    low, high = first["gain_low_ns"], first["gain_high_ns"]
    if low is not None and high - low > WIDE * first["step_ns"]:
        doubts = (f"the first saving is between {duration(max(low, 0))} and {duration(high)}", *doubts)
    if first["gain_ns"] is None and first["class"] == FindingClass.FAULT:
        doubts = ("what fixing it saves is unknown", *doubts)
    named = (first["rule"], *(first[name] for name in CULPRIT_COLUMNS))
    # Faults first: what an opportunity saves is said of a job without them.
    chosen = sorted(then, reverse=True)[: MOST_FIXES - 1]
    fixes = tuple(one[-1] for one in then if one in chosen)
    return Verdict(first["statement"], fixes, named, doubts, _to_last_kernel_ns(rows))


def _to_last_kernel_ns(rows: Sequence[Row]) -> int | None:
    """Of one step; several have each their own."""
    row = rows[0] if rows else None
    if row is None or row["step_ns"] is None or row["steps"] > 1 or not are_apart(row["step_ns"], row["measured_ns"]):
        return None
    return int(row["step_ns"])


def in_sentences(found: Verdict) -> tuple[str, str, str]:
    """What limits the step, what the next fixes save (empty where none does), and how sure that is."""
    then = f"Then {', '.join(found.then)}." if found.then else ""
    doubts = f"Unsure: {'; '.join(found.doubts)}." if found.doubts else "Sure: all ranks read, clocks solved."
    return f"{capitalised(found.limit)}.", then, doubts


def _edit(row: Row) -> tuple[object, ...]:
    return (row["edit"], row["rank"], row["group_ranks"], row["dimension"])


def _doubts(evidence: Evidence) -> tuple[str, ...]:
    doubts = [evidence.partial] if evidence.partial else []
    if evidence.unknown_waits is not None:
        doubts.append(f"who is late is not known: {evidence.unknown_waits}")
    elif evidence.ranks > 1 and evidence.clocks < evidence.ranks:
        doubts.append(f"clocks are solved for {evidence.clocks} of {evidence.ranks} ranks")
    elif evidence.uncertain >= NOTABLE:
        doubts.append(f"{share(evidence.uncertain)} of communication kernels have no certain wait")
    if evidence.ranks == 1:
        doubts.append("one rank shows neither who is slow nor who is late")
    if evidence.launchless:
        doubts.append(f"launches of some kernels are not recorded on {evidence.launchless} of {evidence.ranks} ranks")
    if evidence.contradicted:
        groups = counted(evidence.contradicted, "process group is", "process groups are")
        doubts.append(f"{groups} contradicted by another source of the topology (traceviz topology)")
    if evidence.open:
        doubts.append(counted(evidence.open, "note may be a finding", "notes may be findings"))
    if evidence.unclassified >= NOTABLE:
        doubts.append(f"{share(evidence.unclassified)} of kernel time is unclassified")
    return tuple(doubts)


@dataclass(frozen=True, slots=True)
class JudgedIteration:
    """The verdict on one iteration of a run.

    Attributes:
        step_ns: how long its step takes.
    """

    iteration: int
    step_ns: int
    verdict: Verdict


def compared(judged: Sequence[JudgedIteration]) -> tuple[str, str]:
    """How the verdicts on a run's iterations agree with the last one.

    Returns:
        A few words for a title, and a sentence on the slowest iteration that differs; empty where there is nothing.
    """
    *before, last = judged
    differing = [
        one for one in before if one.verdict.culprit != last.verdict.culprit or one.step_ns > LONGER * last.step_ns
    ]
    if not before:
        return "", ""
    if not differing:
        return "the same in both" if len(judged) == 2 else f"the same in all {len(judged)}", ""
    worst = max(differing, key=lambda one: one.step_ns)
    what = f"step {duration(worst.step_ns)}. {capitalised(worst.verdict.limit)}"
    return (
        f"{len(differing)} of {len(judged)} differ{'s' if len(differing) == 1 else ''}",
        f"Iteration {worst.iteration}: {what}.",
    )
