"""Where the steps of the optimizer are among the events of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from traceviz_dag.analyze.memory.replay import Replay
from traceviz_dag.analyze.memory.roles import Role
from traceviz_dag.arrays import Int64
from traceviz_dag.read.memory.snapshot import UNKNOWN, Action

_OPTIMIZER = "Optimizer.step"
_PROFILER = "ProfilerStep#"
_PASSES = (Role.FORWARD, Role.BACKWARD, Role.RECOMPUTE)


class StepEvidence(StrEnum):
    """How the steps are known."""

    ANNOTATION = "annotation"
    FRAMES = "frames"
    NONE = "none"


@dataclass(frozen=True)
class Steps:
    """The optimizer's steps.

    Attributes:
        first, last: events: each step's first, and its last; ``UNKNOWN`` for a first before the recording.
        evidence: annotations of the recording, or call stacks of the optimizer.
    """

    first: Int64
    last: Int64
    evidence: StepEvidence

    def __len__(self) -> int:
        return len(self.last)

    @property
    def boundaries(self) -> Int64:
        """The event after which each training step has ended."""
        return self.last


def optimizer_steps(replay: Replay, roles: list[Role]) -> Steps:
    """Find the optimizer's steps: by annotations, else by call stacks of the optimizer between those of passes."""
    named = [(first, last) for name, _, _, first, last in annotated_steps(replay) if _OPTIMIZER in name]
    # The recording may name steps of which the ring has no event any more.
    spans = sorted((first, last) for first, last in named if last >= max(first, 0))
    if spans:
        return _steps(spans, StepEvidence.ANNOTATION)
    spans = _by_frames(replay, roles)
    return _steps(spans, StepEvidence.FRAMES if spans else StepEvidence.NONE)


def step_names(replay: Replay) -> list[tuple[str, int, int]]:
    """Profiler steps that the recording names: (name, its first event, its last event)."""
    found = [
        (name, first, last)
        for name, start, _, first, last in annotated_steps(replay)
        if name.startswith(_PROFILER) and start is not None
    ]
    return sorted(found, key=lambda step: step[1])


def annotated_steps(replay: Replay) -> list[tuple[str, int | None, int, int, int]]:
    """Steps of the optimizer and the profiler that the recording names: (name, start in microseconds of the epoch, end,
    its first event, its last event); a start is None before the recording, and the first event then ``UNKNOWN``. None
    where events have no times."""
    if (replay.time_us <= 0).any():
        return []
    return [
        (
            one.name,
            one.start_us,
            one.end_us,
            UNKNOWN if one.start_us is None else replay.events_until(one.start_us - 1) + 1,
            replay.events_until(one.end_us),
        )
        for one in replay.snapshot.annotations
        if (_OPTIMIZER in one.name or one.name.startswith(_PROFILER))
        and one.end_us is not None
        and one.device in (replay.device, UNKNOWN)
    ]


def _steps(spans: list[tuple[int, int]], evidence: StepEvidence) -> Steps:
    firsts, lasts = np.array([first for first, _ in spans], np.int64), np.array([last for _, last in spans], np.int64)
    return Steps(firsts, lasts, evidence)


def _by_frames(replay: Replay, roles: list[Role]) -> list[tuple[int, int]]:
    """Runs of the optimizer's events with no event of a forward or backward pass in between."""
    of_passes = {place for place, role in enumerate(roles) if role in _PASSES}
    of_optimizer = {place for place, role in enumerate(roles) if role == Role.OPTIMIZER}
    spans: list[list[int]] = []
    interrupted = True
    stacks = np.where(replay.action == Action.ALLOC, replay.stack, UNKNOWN).tolist()
    for place, stack in enumerate(stacks):
        if stack in of_optimizer:
            if interrupted:
                spans.append([place, place])
            spans[-1][1] = place
            interrupted = False
        elif stack in of_passes:
            interrupted = True
    return [(first, last) for first, last in spans]
