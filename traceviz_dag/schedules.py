"""Pipeline schedules: in which order a stage runs its forward and backward steps, and what it exchanges in between.

The orders are those of Megatron-core's ``schedules.py`` and ``combined_1f1b.py``; tests hold them against authentic
traces. Zero-bubble's (ZB-H1) is that of sail-sg/zero-bubble-pipeline-parallelism, branch zb-h1-quick-start. The
simulator runs these orders, and predictions make them anew for another number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _OfMicrobatch:
    """Work on one micro-batch in one model chunk; work of another kind is never equal."""

    chunk: int
    microbatch: int


class Forward(_OfMicrobatch):
    """The forward step."""

    __slots__ = ()


class Backward(_OfMicrobatch):
    """The backward step."""

    __slots__ = ()


class InputGradient(_OfMicrobatch):
    """A backward step without the products that give gradients of weights."""

    __slots__ = ()


class WeightGradient(_OfMicrobatch):
    """The products that a backward step of ``InputGradient`` left out."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Combined:
    """A forward and a backward step interleaved layer by layer; either may be missing."""

    forward: Forward | None
    backward: Backward | None


@dataclass(frozen=True, slots=True)
class Transfer:
    """One direction of an exchange with a neighbour.

    Attributes:
        sends: whether this stage sends; it receives otherwise.
        gradient: whether the message is a gradient (it travels towards the first stage).
    """

    sends: bool
    gradient: bool

    def peer(self, stage: int, stages: int) -> int:
        """The stage at the other end; the ring is closed for interleaving."""
        downstream = self.sends != self.gradient
        return (stage + (1 if downstream else -1)) % stages


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of Megatron's P2P communicator; without transfers it returns at once."""

    call: str
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Await:
    """The compute stream waits for the last overlapped receive of this kind."""

    gradient: bool


Step = Forward | Backward | InputGradient | WeightGradient
Action = Step | Combined | Exchange | Await

SEND_FORWARD, RECEIVE_FORWARD = Transfer(True, False), Transfer(False, False)
SEND_BACKWARD, RECEIVE_BACKWARD = Transfer(True, True), Transfer(False, True)


@dataclass(frozen=True, slots=True)
class Order:
    """What decides the order of a job's work.

    Attributes:
        stages, chunks: pipeline stages, and model chunks of each. microbatches: of a training step.
        combined: a forward and a backward step run into each other layer by layer.
        overlapped: exchanges run beside computation (``--overlap-p2p-communication``).
        split: gradients of weights are computed later than those of inputs, where a stage would wait (ZB-H1).
    """

    stages: int
    chunks: int
    microbatches: int
    combined: bool = False
    overlapped: bool = False
    split: bool = False

    def actions(self, stage: int) -> tuple[Action, ...]:
        """The actions of one pipeline stage in one training step, in host order."""
        if self.stages == 1:
            return tuple(_no_pipelining(self.microbatches, self.combined))
        if self.chunks == 1:
            plain = _plain(self.stages, stage, self.microbatches)
            return tuple(_split(plain, stage) if self.split and stage else plain)
        plan = Interleaving(self.stages, stage, self.chunks, self.microbatches, self.combined)
        return tuple(_interleaved_overlapped(plan) if self.overlapped else _interleaved(plan))


def _no_pipelining(microbatches: int, combined: bool) -> Iterator[Action]:
    if not combined:
        for microbatch in range(microbatches):
            yield Forward(0, microbatch)
            yield Backward(0, microbatch)
        return
    for step in range(microbatches + 1):
        yield Combined(
            Forward(0, step) if step < microbatches else None,
            Backward(0, step - 1) if step else None,
        )


def _plain(stages: int, stage: int, microbatches: int) -> Iterator[Action]:
    first, last = stage == 0, stage == stages - 1
    up, down = (not first), (not last)
    warmup = min(stages - stage - 1, microbatches)
    steady = microbatches - warmup
    for microbatch in range(warmup):
        yield _exchange("recv_forward", (RECEIVE_FORWARD, up))
        yield Forward(0, microbatch)
        yield _exchange("send_forward", (SEND_FORWARD, down))
    if steady:
        yield _exchange("recv_forward", (RECEIVE_FORWARD, up))
    for index in range(steady):
        yield Forward(0, warmup + index)
        yield _exchange("send_forward_recv_backward", (SEND_FORWARD, down), (RECEIVE_BACKWARD, down))
        yield Backward(0, index)
        if index < steady - 1:
            yield _exchange("send_backward_recv_forward", (SEND_BACKWARD, up), (RECEIVE_FORWARD, up))
        else:
            yield _exchange("send_backward", (SEND_BACKWARD, up))
    for index in range(steady, microbatches):
        yield _exchange("recv_backward", (RECEIVE_BACKWARD, down))
        yield Backward(0, index)
        yield _exchange("send_backward", (SEND_BACKWARD, up))


def _split(actions: Iterator[Action], stage: int) -> Iterator[Action]:
    """1F1B of a stage that is not the first one, in ZB-H1.

    The first ``stage`` backward steps and those of the cool-down leave gradients of weights for later: from the last
    steady one on, each is followed by the oldest that is left if it is not one of the first, and the rest comes last.
    """
    left: list[int] = []
    behind = False
    every = list(actions)
    last_steady = max((at for at, each in enumerate(every) if isinstance(each, Forward)), default=0)
    for at, action in enumerate(every):
        if isinstance(action, Backward):
            ends_steady = at > last_steady
            if ends_steady or action.microbatch < stage:
                left.append(action.microbatch)
                yield InputGradient(0, action.microbatch)
            else:
                yield action
            behind = ends_steady and action.microbatch >= stage
            continue
        yield action
        if behind and left and isinstance(action, Exchange) and SEND_BACKWARD in action.transfers:
            yield WeightGradient(0, left.pop(0))
            behind = False
    for microbatch in left:
        yield WeightGradient(0, microbatch)


def _exchange(call: str, *transfers: tuple[Transfer, bool]) -> Exchange:
    return Exchange(call, tuple(transfer for transfer, happens in transfers if happens))


@dataclass(frozen=True, slots=True)
class Interleaving:
    """Which virtual micro-batch a stage works on, and what arrives for the next one."""

    stages: int
    stage: int
    chunks: int
    microbatches: int
    combined: bool

    @property
    def total(self) -> int:
        """Virtual micro-batches of a step."""
        return self.chunks * self.microbatches

    @property
    def warmup(self) -> int:
        """Forward steps before the first backward step is paired with one."""
        ahead = (self.stages - self.stage - 1) * 2 + (self.chunks - 1) * self.stages + self.combined
        return min(ahead, self.total)

    def chunk(self, virtual: int, forward: bool) -> int:
        """The model chunk of a virtual micro-batch."""
        chunk = virtual % (self.stages * self.chunks) // self.stages
        return chunk if forward else self.chunks - 1 - chunk

    def microbatch(self, virtual: int) -> int:
        """The micro-batch of a virtual micro-batch."""
        return virtual // (self.stages * self.chunks) * self.stages + virtual % self.stages

    def forward(self, virtual: int) -> Forward:
        """The forward step at a position."""
        return Forward(self.chunk(virtual, True), self.microbatch(virtual))

    def backward(self, virtual: int) -> Backward:
        """The backward step at a position."""
        return Backward(self.chunk(virtual, False), self.microbatch(virtual))

    def receives(self, virtual: int, forward: bool) -> bool:
        """Whether a tensor for the next step arrives after this one."""
        leading = self.stage == (0 if forward else self.stages - 1)
        if not leading:
            return True
        if virtual < self.stages - 1:
            return False
        end = self.chunks - 1 if forward else 0
        return self.chunk(virtual - (self.stages - 1), forward) != end

    def sends(self, virtual: int, forward: bool) -> bool:
        """Whether this step's result goes to a neighbour."""
        chunk = self.chunk(virtual, forward)
        if forward:
            return not (self.stage == self.stages - 1 and chunk == self.chunks - 1)
        return not (self.stage == 0 and chunk == 0)


def _interleaved(plan: Interleaving) -> Iterator[Action]:
    last_stage = plan.stage == plan.stages - 1
    steady = plan.total - plan.warmup
    yield _exchange("recv_forward", (RECEIVE_FORWARD, plan.stage > 0))
    for virtual in range(plan.warmup):
        receives = plan.receives(virtual, True) and virtual < plan.total - 1
        yield from _steps(plan, plan.forward(virtual), None)
        forward = ((SEND_FORWARD, plan.sends(virtual, True)), (RECEIVE_FORWARD, receives))
        if virtual == plan.warmup - 1 and steady:
            gradient = (RECEIVE_BACKWARD, not last_stage)
            yield _exchange("send_forward_backward_recv_forward_backward", *forward, gradient)
        else:
            yield _exchange("send_forward_recv_forward", *forward)
    for virtual in range(steady):
        ahead = virtual + plan.warmup
        yield from _steps(plan, plan.forward(ahead), plan.backward(virtual))
        yield _exchange(
            "send_forward_backward_recv_forward_backward",
            (SEND_FORWARD, plan.sends(ahead, True)),
            (SEND_BACKWARD, plan.sends(virtual, False)),
            (RECEIVE_FORWARD, plan.receives(ahead, True) and virtual < steady - 1),
            (RECEIVE_BACKWARD, plan.receives(virtual, False) and virtual < plan.total - 1),
        )
    if not steady:
        yield _exchange("recv_backward", (RECEIVE_BACKWARD, not last_stage))
    for virtual in range(steady, plan.total):
        yield from _steps(plan, None, plan.backward(virtual))
        receives = plan.receives(virtual, False) and virtual < plan.total - 1
        yield _exchange(
            "send_backward_recv_backward", (SEND_BACKWARD, plan.sends(virtual, False)), (RECEIVE_BACKWARD, receives)
        )


def _interleaved_overlapped(plan: Interleaving) -> Iterator[Action]:
    """As ``_interleaved``, with the exchanges of the two directions apart and not waited for at once."""
    yield _exchange("recv_forward", (RECEIVE_FORWARD, plan.stage > 0))
    expects_input = expects_gradient = False
    for virtual in range(plan.total + plan.warmup):
        ahead, behind = virtual, virtual - plan.warmup
        has_forward, has_backward = ahead < plan.total, behind >= 0
        if has_forward and expects_input:
            yield Await(gradient=False)
        if has_backward and expects_gradient:
            yield Await(gradient=True)
        backward = plan.backward(behind) if has_backward else None
        if has_forward and not plan.combined:
            yield plan.forward(ahead)
        elif plan.combined:
            yield Combined(plan.forward(ahead) if has_forward else None, backward)
        if has_forward:
            expects_input = plan.receives(ahead, True) and ahead < plan.total - 1
            transfers = ((SEND_FORWARD, plan.sends(ahead, True)), (RECEIVE_FORWARD, expects_input))
            yield _exchange("send_forward_recv_forward", *transfers)
        if backward is not None and not plan.combined:
            yield backward
        if has_backward:
            expects_gradient = plan.receives(behind, False) and behind < plan.total - 1
            transfers = ((SEND_BACKWARD, plan.sends(behind, False)), (RECEIVE_BACKWARD, expects_gradient))
            yield _exchange("send_backward_recv_backward", *transfers)
        elif behind == -1:
            expects_gradient = plan.stage < plan.stages - 1
            yield _exchange("send_backward_recv_backward", (RECEIVE_BACKWARD, expects_gradient))


def _steps(plan: Interleaving, forward: Forward | None, backward: Backward | None) -> Iterator[Action]:
    if plan.combined:
        yield Combined(forward, backward)
        return
    if forward is not None:
        yield forward
    if backward is not None:
        yield backward
