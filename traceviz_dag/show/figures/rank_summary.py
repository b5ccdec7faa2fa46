"""A rank in few numbers, and what can be said of several: idle shares, who computes longer, recompute, for titles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from traceviz_dag.analyze.intervals import clip, measure, subtract
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.show.page.activity import Activity, is_partial
from traceviz_dag.show.page.facts import ranks_named
from traceviz_dag.show.page.members import Member

NOTABLE = 0.05
"""A rank is said to compute longer than its stage's median from this share on."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank's iteration in ns; all are lengths of unions.

    Attributes:
        usable: whether the rank has kernels; without, all else is 0.
        partial: whether a part of its trace could not be read.
        computation_ns, exposed_ns: as in the table ``overlap``, inside the training step where there is one.
        pipeline_ns: first start to last end of its micro-batches; 0 without any.
        steps_ns: time in which a micro-batch runs.
        notes: which training step all of it is of, where the trace has several.
    """

    member: Member
    usable: bool = False
    partial: bool = False
    computation_ns: int = 0
    exposed_ns: int = 0
    recompute_ns: int = 0
    pipeline_ns: int = 0
    steps_ns: int = 0
    microbatches: int = 0
    chunks: int = 0
    notes: Sequence[str] = ()

    @property
    def idle_share(self) -> float:
        """Share of the time from the first to the last micro-batch in which none runs, as in the table pipelines."""
        return 1 - self.steps_ns / self.pipeline_ns if self.pipeline_ns else 0.0


def summarise(member: Member, activity: Activity | None) -> RankSummary:
    """Summarise one rank; a rank without usable trace is not usable."""
    if activity is None:
        return RankSummary(member)
    computation = activity.all_computation()
    steps, again = activity.measured_steps, activity.recompute()
    span = (int(steps.time.starts.min()), int(steps.time.ends.max())) if len(steps) else (0, 0)
    return RankSummary(
        member=member,
        usable=True,
        partial=is_partial(activity.status),
        computation_ns=activity.time_of(computation),
        exposed_ns=activity.time_of(subtract(activity.all_communication(), computation)),
        recompute_ns=measure(clip(again, *span)),
        pipeline_ns=span[1] - span[0],
        steps_ns=measure(steps.time),
        microbatches=int(steps.microbatch.max()) + 1 if len(steps) else 0,
        chunks=len(np.unique(steps.chunk)),
        notes=activity.measures.notes if activity.measures is not None else (),
    )


def idle_finding(ranks: Sequence[RankSummary]) -> str:
    """How much of the time from first to last micro-batch none runs, and on which rank or stage least and most."""
    known = [rank for rank in ranks if rank.pipeline_ns]
    if not known:
        return "no micro-batch is known in these traces"
    mean = sum(rank.idle_share for rank in known) / len(known)
    # Where no rank is in a pipeline, the gaps between its steps are gaps, and nothing more.
    piped = any(rank.member.stage is not None for rank in known)
    text = f"stages idle {_percent(mean)} of the time" if piped else f"{_percent(mean)} lies between the micro-batches"
    least, most = (pick(known, key=lambda rank: rank.idle_share) for pick in (min, max))
    if most.idle_share - least.idle_share < 0.01:
        return text
    ends = [f"{_percent(rank.idle_share)} on {_where(rank.member, known)}" for rank in (least, most)]
    return f"{text}, from {ends[0]} to {ends[1]}"


def computing_longer(ranks: Sequence[RankSummary]) -> dict[int, float]:
    """Rank → how much longer it computes than the median of the others of its stage, where that is notable."""
    by_stage: dict[int | None, list[RankSummary]] = {}
    for rank in ranks:
        # A rank of which a part is missing computes less than it did.
        if rank.usable and not rank.partial:
            by_stage.setdefault(rank.member.stage, []).append(rank)
    found = {}
    for peers in by_stage.values():
        for rank in peers:
            others = [other.computation_ns for other in peers if other is not rank]
            usual = median(others) if others else 0
            if usual and rank.computation_ns >= (1 + NOTABLE) * usual:
                found[rank.member.rank] = rank.computation_ns / usual - 1
    return found


def longer_finding(ranks: Sequence[RankSummary]) -> str | None:
    """Which rank computes longest beside the median of the others of its stage; None where that is not notable."""
    ahead = computing_longer(ranks)
    if not ahead:
        return None
    worst = max(ahead, key=lambda rank: (ahead[rank], -rank))
    rank = next(each for each in ranks if each.member.rank == worst)
    stage = rank.member.stage
    others = sum(each.usable and not each.partial and each.member.stage == stage for each in ranks) - 1
    beside = "the other rank" if others == 1 else "the median of the others"
    of_stage = "" if stage is None else f" of stage {stage}"
    longer = f"{_percent(ahead[worst])} longer than {beside}{of_stage}"
    return f"rank {worst} computes for {duration(rank.computation_ns)}, {longer}"


def waiting_finding(ranks: Sequence[RankSummary]) -> str:
    """Which rank has the most exposed communication; for ranks whose micro-batches are unknown."""
    usable = [rank for rank in ranks if rank.usable]
    if not usable:
        return "no usable trace"
    most = max(usable, key=lambda rank: rank.exposed_ns)
    return f"rank {most.member.rank} has the most exposed communication, {duration(most.exposed_ns)}"


def step_facts(ranks: Sequence[RankSummary]) -> list[str]:
    """Of which step, micro-batches and chunks, the longest time of all, and how much is computed again."""
    notes = list(dict.fromkeys(note for rank in ranks for note in rank.notes))
    known = [rank for rank in ranks if rank.pipeline_ns]
    if not known:
        return notes
    chunks = max(rank.chunks for rank in known)
    count = max(rank.microbatches for rank in known)
    facts = [f"{count} micro-batch{'es' if count > 1 else ''}" + (f", {chunks} chunks" if chunks > 1 else "")]
    facts.append(f"first to last micro-batch {duration(max(rank.pipeline_ns for rank in known))}")
    again = sum(rank.recompute_ns for rank in known)
    if again:
        facts.append(f"recompute takes {share(again, sum(rank.steps_ns for rank in known))} of the micro-batches")
    return notes + facts


def warnings(ranks: Sequence[RankSummary]) -> list[str]:
    """Sentences on ranks without a trace, or with a part of one."""
    sentences = []
    missing = [rank.member.rank for rank in ranks if not rank.usable]
    if missing:
        verbs = "has no usable trace and is left out" if len(missing) == 1 else "have no usable trace and are left out"
        sentences.append(f"{ranks_named(missing)} {verbs}")
    broken = [rank.member.rank for rank in ranks if rank.partial]
    if broken:
        sentences.append(f"a part of the trace of {ranks_named(broken)} could not be read")
    unknown = [rank.member.rank for rank in ranks if rank.usable and not rank.pipeline_ns]
    if unknown and len(unknown) < sum(rank.usable for rank in ranks):
        sentences.append(f"the micro-batches of {ranks_named(unknown)} are unknown: kernels are shown, no idle share")
    return sentences


def partial_mark(ranks: Sequence[RankSummary]) -> str:
    """What a title says where ranks are missing."""
    usable = sum(rank.usable for rank in ranks)
    return f" (PARTIAL: {usable} of {len(ranks)} ranks)" if usable < len(ranks) else ""


def _where(member: Member, ranks: Sequence[RankSummary]) -> str:
    """The stage where it names one rank among these, else the rank."""
    alone = sum(rank.member.stage == member.stage for rank in ranks) == 1
    return f"stage {member.stage}" if alone and member.stage is not None else f"rank {member.rank}"


def _percent(part: float) -> str:
    return share(round(part * 1_000_000), 1_000_000)
