"""Which messages a pipeline's send-receive kernels carry, known from the order of a rank's forward and backward steps.

A batched exchange says neither what it sends nor to whom. But the schedule leaves no choice: the output of a step is
sent by the first exchange after it, and what a step needs has come by the last exchange before it, or was posted after
the step of the same direction before it (overlapped point-to-point). The virtual stage of a step is
``chunk * stages + stage``: activations go to the next one, gradients to the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from traceviz_dag.arrays import Int64

ANY, SENDS, RECEIVES = range(3)
"""What an exchange is known to do: a batch (whatever the schedule wants), one send, one receive."""

FORWARD, BACKWARD = range(2)


@dataclass(frozen=True, slots=True)
class RankSchedule:
    """One rank's steps and exchanges, both in the order of launch.

    Attributes:
        virtual: virtual stage of each step; direction: FORWARD or BACKWARD; last: the pipeline's last virtual stage.
        gaps: per exchange, how many steps were launched before it; kinds: ANY, SENDS or RECEIVES.
        previous_first: of two sends in one gap, the one to the stage before goes first (as gloo runs a batch).
    """

    virtual: Int64
    direction: Int64
    last: int
    gaps: Int64
    kinds: Int64
    previous_first: bool = False

    @property
    def key(self) -> tuple[bytes, ...]:
        """Equal for ranks whose exchanges carry the same messages."""
        parts = (self.virtual, self.direction, self.gaps, self.kinds)
        flags = f"{self.last} {self.previous_first}".encode()
        return (flags, *(part.astype(np.int64).tobytes() for part in parts))


@dataclass(frozen=True, slots=True)
class CarriedMessages:
    """What the exchanges carry, one entry per message.

    Attributes:
        exchange: which exchange; step: the step whose output it sends or whose input it receives; sends: which of both.
        unassigned: messages that the steps need and no exchange carries.
    """

    exchange: Int64
    step: Int64
    sends: Int64
    unassigned: int


def carried_messages(schedule: RankSchedule) -> CarriedMessages:
    """Assign a rank's messages to its exchanges.

    The loop is over the exchanges of one rank; ranks with equal schedules share its result (``RankSchedule.key``).
    """
    state = _State.of(schedule)
    gaps, kinds = schedule.gaps.tolist(), schedule.kinds.tolist()
    for number, (gap, kind) in enumerate(zip(gaps, kinds, strict=True)):
        later = (other for other in gaps[number + 1 :] if other > gap)
        state.enter(gap, next(later, len(schedule.virtual)))
        if kind == SENDS:
            state.send(number, 1)
        elif kind == RECEIVES:
            state.receive(number)
        else:
            state.send(number, len(schedule.virtual))
            if number + 1 == len(gaps) or gaps[number + 1] != gap or kinds[number + 1] != ANY:
                state.receive_all(number)
    return state.result()


@dataclass(slots=True)
class _State:
    """What has been sent and received so far."""

    directions: list[int]
    sends: list[bool]
    receives: list[bool]
    previous_first: bool
    gap: int = 0
    next_gap: int = 0
    pending: list[int] = field(default_factory=list)
    arrived: set[int] = field(default_factory=set)
    carried: list[tuple[int, int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, schedule: RankSchedule) -> _State:
        forward = schedule.direction == FORWARD
        at_first, at_last = schedule.virtual == 0, schedule.virtual == schedule.last
        sends, receives = np.where(forward, ~at_last, ~at_first), np.where(forward, ~at_first, ~at_last)
        return cls(schedule.direction.tolist(), sends.tolist(), receives.tolist(), schedule.previous_first)

    def enter(self, gap: int, next_gap: int) -> None:
        """Come to an exchange after ``gap`` steps; the next one in another place comes after ``next_gap``."""
        fresh = [step for step in range(self.gap, gap) if self.sends[step]]
        if self.previous_first:
            fresh.sort(key=lambda step: -self.directions[step])
        self.pending += fresh
        self.gap, self.next_gap = gap, next_gap

    def send(self, exchange: int, most: int) -> None:
        """Send what the steps before have put out and nothing has sent yet."""
        for step in self.pending[:most]:
            self.carried.append((exchange, step, 1))
        del self.pending[:most]

    def receive(self, exchange: int) -> None:
        """Receive one message: what the coming steps need first, else what is posted ahead."""
        for step in (*self._needed(), *self._ahead()):
            self._take(exchange, step)
            return

    def receive_all(self, exchange: int) -> None:
        """Receive everything that the steps before the next exchange need."""
        for step in list(self._needed()):
            self._take(exchange, step)

    def result(self) -> CarriedMessages:
        table = np.array(self.carried, dtype=np.int64).reshape(-1, 3)
        needed = sum(self.sends) + sum(self.receives)
        return CarriedMessages(table[:, 0], table[:, 1], table[:, 2], needed - len(table))

    def _take(self, exchange: int, step: int) -> None:
        self.arrived.add(step)
        self.carried.append((exchange, step, 0))

    def _needed(self) -> Iterator[int]:
        coming = range(self.gap, min(self.next_gap, len(self.directions)))
        return (step for step in coming if self.receives[step] and step not in self.arrived)

    def _ahead(self) -> Iterator[int]:
        """The next step of the direction just run, else the next backward step, if its input is still to come."""
        last = self.directions[self.gap - 1] if self.gap else FORWARD
        for direction in dict.fromkeys((last, BACKWARD)):
            steps = range(self.gap, len(self.directions))
            step = next((step for step in steps if self.directions[step] == direction), None)
            if step is not None and self.receives[step] and step not in self.arrived:
                yield step
