"""Which exports of one folder belong to one job, by evidence: names that count nodes, communicators, time.

Exports that nothing ties together are runs of their own: taken for nodes of one job, the profiles of two trainings
would become one that never ran.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

CLOCK_TOLERANCE_NS = 5_000_000_000
"""Clocks of the nodes of a job differ by less; no job starts so soon after another."""

_COUNTED = re.compile(r"(?<![A-Za-z])(node|rank)[_-]?\d+(?!\d)", re.IGNORECASE)
_ITERATION = re.compile(r"(?<![A-Za-z])iter(?:ation)?[_-]?\d+(?!\d)", re.IGNORECASE)
_SEPARATORS = re.compile(r"[\s._-]+")


@dataclass(frozen=True, slots=True)
class CaptureEvidence:
    """What an export shows of its job.

    Attributes:
        name: of the file.
        first_ns, last_ns: UTC at which its GPUs began and ended; None where the capture does not state its start.
        communicators: NCCL's ids of those that it used; empty where the export does not hold them.
        recording: digest of when its operations ran; equal in copies of one export alone. Empty where not asked for.
    """

    name: str
    first_ns: int | None = None
    last_ns: int | None = None
    communicators: frozenset[str] = frozenset()
    recording: str = ""


class Tie(StrEnum):
    """What speaks for or against two exports being of one job, the strongest first."""

    NAMES = "their names count nodes or ranks of one job"
    SAME_RECORDING = "it holds the same recording as another export"
    OTHER_TIME = "its GPUs ran at another time (UTC) than those of the other exports"
    COMMUNICATORS = "they share communicators"
    OTHER_COMMUNICATORS = "it shares no communicator with the other exports"
    SAME_TIME = "their GPUs ran at the same time"
    NOTHING = "neither a time in UTC nor a communicator ties it to the other exports"

    @property
    def binds(self) -> bool:
        """Whether the two are of one job."""
        return self in (Tie.NAMES, Tie.COMMUNICATORS, Tie.SAME_TIME)


def job_name(name: str) -> str | None:
    """What the names of all nodes and ranks of a job have in common; None where a name counts neither."""
    stem = PurePath(name).stem
    if _COUNTED.search(stem) is None:
        return None
    return _SEPARATORS.sub("_", _ITERATION.sub("", _COUNTED.sub("", stem))).strip("_")


def tie(one: CaptureEvidence, other: CaptureEvidence) -> Tie:
    """The strongest evidence on whether two exports are of one job.

    Communicators bear random 64-bit numbers, so one in common is no coincidence; nodes of a job have some in common.
    """
    if (name := job_name(one.name)) is not None and name == job_name(other.name):
        return Tie.NAMES
    if one.recording and one.recording == other.recording:
        return Tie.SAME_RECORDING
    together = ran_together(one, other)
    if together is False:
        return Tie.OTHER_TIME
    if one.communicators and other.communicators:
        shared = one.communicators & other.communicators
        return Tie.COMMUNICATORS if shared else Tie.OTHER_COMMUNICATORS
    return Tie.SAME_TIME if together else Tie.NOTHING


def ran_together(one: CaptureEvidence, other: CaptureEvidence) -> bool | None:
    """Whether the GPUs of both ran at the same time, but for what clocks may differ; None where a start is unknown."""
    if one.first_ns is None or one.last_ns is None or other.first_ns is None or other.last_ns is None:
        return None
    return max(one.first_ns, other.first_ns) <= min(one.last_ns, other.last_ns) + CLOCK_TOLERANCE_NS


def jobs(captures: Sequence[CaptureEvidence]) -> list[list[int]]:
    """Positions of the captures of each job, by name; what a chain of ties binds is one job, without copies."""
    left = sorted(range(len(captures)), key=lambda place: captures[place].name)
    found = []
    while left:
        job, reached = [left.pop(0)], 0
        while reached < len(job):
            for place in list(left):
                ties = {tie(captures[member], captures[place]) for member in job}
                if Tie.SAME_RECORDING not in ties and tie(captures[job[reached]], captures[place]).binds:
                    job.append(place)
                    left.remove(place)
            reached += 1
        found.append(sorted(job, key=lambda place: captures[place].name))
    return found


def why_apart(job: Sequence[CaptureEvidence], others: Sequence[CaptureEvidence]) -> str:
    """Why a job is none with the others: that it is a copy, else the weakest of the reasons, since all must hold."""
    reasons = {tie(one, other) for one in job for other in others}
    order = (Tie.SAME_RECORDING, Tie.NOTHING, Tie.OTHER_COMMUNICATORS, Tie.OTHER_TIME)
    return next(reason for reason in order if reason in reasons).value
