"""What each block holds, with the observation that says so; without one it stays unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.memory.replay import Lifetimes, Replay
from traceviz_dag.analyze.memory.roles import Role
from traceviz_dag.analyze.memory.steps import Steps
from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.read.memory.snapshot import UNKNOWN
from traceviz_dag.vocabulary import MemoryCategory, MemoryEvidence

CATEGORIES = tuple(MemoryCategory)
EVIDENCES = tuple(MemoryEvidence)

LEAST_MATCHED = 8
"""Blocks that a match of sizes needs: few sizes are equal by chance."""

_SCALES = ((1, 1), (1, 2), (2, 1))
"""Bytes of a parameter to those of its gradient: same precision, or one of them in twice the precision."""

_PASS_OF = {
    **dict.fromkeys((Role.BACKWARD, Role.RECOMPUTE), Role.BACKWARD),
    **dict.fromkeys((Role.FORWARD, Role.INPUT), Role.FORWARD),
    Role.OPTIMIZER: Role.OPTIMIZER,
}


@dataclass(frozen=True)
class Categories:
    """A category and its evidence for each row of the lifetimes: places in ``CATEGORIES`` and ``EVIDENCES``."""

    category: Int64
    evidence: Int64

    def of(self, category: MemoryCategory) -> Bool:
        """Which rows are of a category."""
        return self.category == CATEGORIES.index(category)


def categorised(replay: Replay, roles: Sequence[Role], steps: Steps) -> Categories:
    """Find what each block holds.

    - *frames*: the stack that allocated it is of a gradient buffer, a communication, the input, a recomputation, or the
      construction of the model.
    - *life*: what the optimizer allocates and keeps is its state, else temporary; what the backward pass allocates and
      the optimizer finds is a gradient, else temporary; what the forward pass allocates and the backward pass frees is
      an activation, what it frees itself is temporary.
    - *free_frames*: allocated before the recording; the optimizer or the backward pass freed it.
    - *size_match*: allocated before the recording without frames, and live at the end; as many blocks of these sizes as
      there are gradients.
    """
    lives = replay.lifetimes
    rows = len(lives)
    role = _role_of(lives.stack, roles, Role.FRAMELESS)
    freed_by = _freed_in(replay, roles)
    before = lives.begin == UNKNOWN
    if not any(one != Role.FRAMELESS for one in roles):
        # Nothing has frames, so their want does not mark the thread of the backward pass.
        role = np.where(role == _place(Role.FRAMELESS), _place(Role.OTHER), role)
    else:
        # Without frames, but recorded beside others that have them: the thread of the backward pass has no Python.
        role = np.where((role == _place(Role.FRAMELESS)) & ~before, _place(Role.BACKWARD), role)
    category = np.full(rows, CATEGORIES.index(MemoryCategory.UNKNOWN), np.int64)
    evidence = np.full(rows, EVIDENCES.index(MemoryEvidence.NONE), np.int64)

    def tell(which: Bool, what: MemoryCategory, why: MemoryEvidence) -> None:
        free = which & (evidence == EVIDENCES.index(MemoryEvidence.NONE))
        category[free] = CATEGORIES.index(what)
        evidence[free] = EVIDENCES.index(why)

    for of_role, what in (
        (Role.GRADIENT_BUFFER, MemoryCategory.GRADIENT),
        (Role.COMMUNICATION, MemoryCategory.COMMUNICATION_BUFFER),
        (Role.INPUT, MemoryCategory.INPUT),
        (Role.RECOMPUTE, MemoryCategory.ACTIVATION),
        (Role.CONSTRUCTION, MemoryCategory.PARAMETER),
    ):
        tell(role == _place(of_role), what, MemoryEvidence.FRAMES)
    alive_at_end = lives.end == UNKNOWN
    _of_optimizer(lives, role == _place(Role.OPTIMIZER), steps, tell)
    backward = role == _place(Role.BACKWARD)
    tell(backward & _met_by(lives, steps), MemoryCategory.GRADIENT, MemoryEvidence.LIFE)
    tell(backward & ~alive_at_end, MemoryCategory.TEMPORARY, MemoryEvidence.LIFE)
    forward = role == _place(Role.FORWARD)
    in_backward = (freed_by == _place(Role.BACKWARD)) | (freed_by == _place(Role.OPTIMIZER))
    tell(forward & ~alive_at_end & in_backward, MemoryCategory.ACTIVATION, MemoryEvidence.LIFE)
    tell(forward & ~alive_at_end, MemoryCategory.TEMPORARY, MemoryEvidence.LIFE)
    tell(forward, MemoryCategory.ACTIVATION, MemoryEvidence.FRAMES)
    early = before & ~alive_at_end & (lives.stack == UNKNOWN)
    tell(early & (freed_by == _place(Role.OPTIMIZER)), MemoryCategory.OPTIMIZER_STATE, MemoryEvidence.FREE_FRAMES)
    tell(early & (freed_by == _place(Role.BACKWARD)), MemoryCategory.ACTIVATION, MemoryEvidence.FREE_FRAMES)
    matched = _matched(
        lives,
        before & alive_at_end & (lives.stack == UNKNOWN),
        category == CATEGORIES.index(MemoryCategory.GRADIENT),
        steps,
    )
    tell(matched, MemoryCategory.PARAMETER, MemoryEvidence.SIZE_MATCH)
    return Categories(category, evidence)


def _of_optimizer(lives: Lifetimes, of_optimizer: Bool, steps: Steps, tell: object) -> None:
    """State outlives the step of the optimizer that it was allocated in."""
    assert callable(tell)
    following = np.searchsorted(steps.last, lives.begin, "left")
    inside = following < len(steps)
    last = np.where(inside, steps.last[np.minimum(following, max(len(steps) - 1, 0))] if len(steps) else 0, UNKNOWN)
    outlives = of_optimizer & ((lives.end == UNKNOWN) | (inside & (lives.end > last)))
    tell(outlives, MemoryCategory.OPTIMIZER_STATE, MemoryEvidence.LIFE)
    tell(of_optimizer, MemoryCategory.TEMPORARY, MemoryEvidence.LIFE)


def _met_by(lives: Lifetimes, steps: Steps) -> Bool:
    """Whether a step of the optimizer began while a block was live."""
    if not len(steps):
        return np.zeros(len(lives), np.bool_)
    following = np.searchsorted(steps.first, lives.begin, "right")
    first = np.where(following < len(steps), steps.first[np.minimum(following, len(steps) - 1)], np.iinfo(np.int64).max)
    return (following < len(steps)) & ((lives.end == UNKNOWN) | (lives.end > first))


def _freed_in(replay: Replay, roles: Sequence[Role]) -> Int64:
    """In which pass each block was freed: by the stack of the free, else by the last event before with a stack."""
    lives = replay.lifetimes
    frameless = Role.BACKWARD if any(one != Role.FRAMELESS for one in roles) else Role.OTHER
    own = _role_of(lives.free_stack, roles, frameless)
    passes = np.array([_place(_PASS_OF.get(role, Role.OTHER)) for role in Role], np.int64)
    found = passes[own]
    # A free by code of no pass (a garbage collection, the schedule itself) counts where it happens.
    current = passes[_role_of(replay.stack, roles, Role.OTHER)]
    told = np.flatnonzero(current != _place(Role.OTHER))
    event = np.where(lives.requested_free != UNKNOWN, lives.requested_free, lives.end)
    latest = np.searchsorted(told, event, "right") - 1
    there = (found == _place(Role.OTHER)) & (latest >= 0) & (lives.end != UNKNOWN)
    found[there] = current[told[latest[there]]]
    return found


def _matched(lives: Lifetimes, candidates: Bool, gradients: Bool, steps: Steps) -> Bool:
    """The candidates whose sizes are those of the gradients, as many of each size."""
    found = np.zeros(len(lives), np.bool_)
    starts = [lives.alive(int(event) - 1) & gradients for event in steps.first] or [gradients & (lives.end == UNKNOWN)]
    most = max(starts, key=lambda which: int(lives.requested[which].sum()))
    wanted = Counter(lives.requested[most].tolist())
    there = Counter(lives.requested[candidates].tolist())
    if sum(wanted.values()) < LEAST_MATCHED:
        return found
    for numerator, denominator in _SCALES:
        scaled = {size * numerator // denominator: count for size, count in wanted.items()}
        if all(there[size] >= count for size, count in scaled.items()):
            for size, count in scaled.items():
                # Which of more blocks of one size than gradients they are, nothing shows; as many are named.
                found[np.flatnonzero(candidates & (lives.requested == size))[:count]] = True
            return found
    return found


def _role_of(stacks: Int64, roles: Sequence[Role], absent: Role) -> Int64:
    table = np.array([*map(_place, roles), _place(absent)], np.int64)
    return table[np.where(stacks == UNKNOWN, len(roles), stacks)]


_PLACES = {role: place for place, role in enumerate(Role)}


def _place(role: Role) -> int:
    return _PLACES[role]
