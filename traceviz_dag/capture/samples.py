"""What some ranks of a job will answer, and which ranks to record for a question.

A question about a group of ranks is answered where a whole group records, for that group: who was last may else be
nobody that was seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from traceviz_dag.analyze.wording import counted
from traceviz_dag.capture.configuration import Job, ProfilingConfig
from traceviz_dag.capture.explain import Prospect
from traceviz_dag.classify.topology.rank_grids import compute_grids
from traceviz_dag.errors import UsageError
from traceviz_dag.vocabulary import CaptureQuestion

_SEVERAL = 3
"""Ranks with equal work from which the slow one of them is known."""


_WAITS = {
    CaptureQuestion.TENSOR_WAITS: "tp",
    CaptureQuestion.CONTEXT_WAITS: "cp",
    CaptureQuestion.DATA_WAITS: "dp_cp",
    CaptureQuestion.EXPERT_WAITS: "ep",
}
"""Question → groups whose members wait for one another."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Ranks to record for a question.

    Attributes:
        choice: value of ``profile_ranks``: a word, or the ranks.
        name: what they are.
        ranks: they, ascending.
        bytes_raw: JSON of all of them and all iterations; 0 with nsys, whose size is not known.
        prospect: what they answer of the question.
    """

    choice: str | tuple[int, ...]
    name: str
    ranks: tuple[int, ...]
    bytes_raw: int
    prospect: Prospect


def prospects(job: Job, ranks: Collection[int]) -> Mapping[CaptureQuestion, Prospect]:
    """What the traces of some ranks answer; questions that a job does not have are left out."""
    grids, chosen = compute_grids(job.sizes()), frozenset(ranks)
    every = len(chosen) == job.world_size

    def whole(name: str) -> tuple[int, int, int]:
        """Groups of which all members record, of which several do, and all."""
        groups = [frozenset(group) for group in grids.groups[name] if len(group) > 1]
        shared = sum(len(group & chosen) > 1 for group in groups)
        return sum(group <= chosen for group in groups), shared, len(groups)

    found = {
        CaptureQuestion.OVERLAP: Prospect(
            "How much communication is hidden?", "yes", f"of {counted(len(chosen), 'rank', 'ranks')}"
        )
    }
    if job.pp > 1:
        complete, _, pipelines = whole("pp")
        found[CaptureQuestion.BUBBLES] = Prospect(
            "Which stage is slow, and what are the bubbles?",
            "yes" if complete else "no",
            f"{complete} of {pipelines} pipelines record whole",
        )
    peers = Counter(grids.coordinates[rank].pp for rank in chosen)
    least, most = min(peers.values()), max(peers.values())
    bare = f"; none of {counted(job.pp - len(peers), 'stage', 'stages')}" if len(peers) < job.pp else ""
    found[CaptureQuestion.STRAGGLERS] = Prospect(
        "Which rank computes slowly?",
        "yes" if least >= _SEVERAL and not bare else "in part" if most > 1 else "no",
        f"{counted(least, 'rank', 'ranks')} of a stage record{'s' * (least == 1)}{bare}; {_SEVERAL} or more show which "
        "of them is slow",
    )
    for question, name in _WAITS.items():
        complete, shared, groups = whole(name)
        if groups:
            more = f", of {shared - complete} more some members" if shared > complete else ""
            found[question] = Prospect(
                f"Who is late in {question.value.upper()} communication?",
                "yes" if complete else "in part" if shared else "no",
                f"{complete} of {groups} {question.value.upper()} groups record whole{more}",
            )
    saved = "What would a fix save?"
    if every:
        found[CaptureQuestion.SAVINGS] = Prospect(saved, "yes", "all ranks record")
    elif any(chosen >= set(replica) for replica in grids.replicas.closure):
        found[CaptureQuestion.SAVINGS] = Prospect(
            saved, "in part", "of a rank alone: what other replicas would change is not seen"
        )
    else:
        found[CaptureQuestion.SAVINGS] = Prospect(saved, "no", "no replica records whole")
    return found


def proposals(config: ProfilingConfig, question: CaptureQuestion) -> list[Proposal]:
    """Choices of ranks that answer a question, those that answer it best first, then the fewest ranks.

    Raises:
        UsageError: the job has no such question.
    """
    job, grids = config.job, compute_grids(config.job.sizes())
    lane = tuple(sorted(rank for rank, place in grids.coordinates.items() if place.tp == 0))
    first = next(group for group in grids.groups["dp_cp"] if 0 in group)
    choices: dict[str | tuple[int, ...], str] = {
        "stage": "one pipeline",
        tuple(range(min(job.node_size, job.world_size))): "the first node",
        "replica": "one complete model",
        first: "one DP group of the first stage",
        lane: "the first rank of each TP group",
        "all": "all ranks",
    }
    answers = ("yes", "in part", "no")
    found = []
    for choice, name in choices.items():
        chosen = config.model_copy(update={"profile_ranks": choice})
        ranks = chosen.ranks()
        prospect = prospects(job, ranks).get(question)
        if prospect is None:
            raise UsageError(f"a job of this layout has no {question.value} communication to ask about")
        size = chosen.estimate().bytes_raw if config.use_pytorch_profiler else 0
        found.append(Proposal(choice, name, ranks, size, prospect))
    return sorted(found, key=lambda one: (answers.index(one.prospect.answer), len(one.ranks)))
