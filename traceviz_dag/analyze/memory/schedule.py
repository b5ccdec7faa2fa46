"""Memory joined with the schedule: activations in flight per stage, against what the schedule implies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

LEAST_BYTES_SHARE = 0.01
"""A micro-batch is in flight while it holds at least this share of what it holds at most."""


@dataclass(frozen=True, slots=True)
class Span:
    """One forward or backward step on the host of a rank; ns of the epoch."""

    phase: str
    chunk: int
    microbatch: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Activation:
    """One block of activations; ``end_ns`` is None where it is live when the snapshot was taken."""

    bytes: int
    start_ns: int
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of time, ns of the epoch."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a dense model, for the formula.

    Attributes:
        batch: samples of a micro-batch.
        stored_scores: whether the attention's scores are kept (no fused attention).
        recompute: full recomputation of every layer.
    """

    sequence: int
    hidden: int
    heads: int
    batch: int = 1
    tensor: int = 1
    stored_scores: bool = False
    recompute: bool = False

    @property
    def layer_bytes(self) -> int:
        """Activation bytes that a layer keeps of a micro-batch, two bytes a number, with sequence parallelism.

        s·b·h·(34 + 5·a·s/h)/t with stored scores, 34·s·b·h/t without, 2·s·b·h/t with full recomputation: Korthikanti
        et al., Reducing Activation Recomputation in Large Transformer Models (2022), for a dense GPT.
        """
        unit = self.sequence * self.batch * self.hidden
        if self.recompute:
            return 2 * unit // self.tensor
        scores = 5 * self.heads * self.sequence * self.sequence * self.batch if self.stored_scores else 0
        return (34 * unit + scores) // self.tensor


@dataclass(frozen=True, slots=True)
class Alignment:
    """How well the clocks of snapshot and trace agree.

    Attributes:
        residue_ns: at most so far are they apart: the steps of the optimizer in the snapshot hold the launches of the
            optimizer in the trace, and begin and end so much before and after; None where nothing can be compared.
        refusal: why nothing is joined; None where it is.
    """

    residue_ns: int | None
    refusal: str | None


@dataclass(frozen=True, slots=True)
class StageMemory:
    """One rank's activations in one iteration.

    Attributes:
        in_flight: the most chunks of micro-batches whose activations were kept at once.
        expected_in_flight: what the schedule implies.
        chunk_bytes: what one micro-batch holds of one chunk, the median; layer_bytes: the same by layer.
        in_flight_bytes: the most that activations of the iteration's micro-batches held at once.
        peak_phase, peak_chunk, peak_microbatch: in which step of the host most was requested; None outside of all.
    """

    in_flight: int
    expected_in_flight: int | None
    chunk_bytes: int | None
    layer_bytes: int | None
    in_flight_bytes: int
    peak_phase: str | None
    peak_chunk: int | None
    peak_microbatch: int | None


def expected_in_flight(stage: int, stages: int, chunks: int, microbatches: int) -> int:
    """Chunks of micro-batches that a stage keeps at once.

    1F1B: min(m, p - s). Interleaved: min(m·v, 2·(p - s - 1) + (v - 1)·p + 1): the forward steps of the warm-up, and the
    one that follows them.
    """
    if chunks == 1 or stages == 1:
        return min(microbatches, stages - stage)
    return min(microbatches * chunks, 2 * (stages - stage - 1) + (chunks - 1) * stages + 1)


def alignment(annotated: Sequence[Interval], launched: Interval | None, shortest_ns: int | None) -> Alignment:
    """Compare the optimizer's steps of the snapshot with its launches in the trace.

    Both clocks count from the epoch, so nothing is shifted; the comparison says how far that can be believed. It is
    refused where the clocks may be apart by more than half of the shortest step of a micro-batch.

    Args:
        annotated: steps of the optimizer in the snapshot.
        launched: from the first to the last launch of the optimizer in the iteration.
        shortest_ns: the shortest forward or backward step of the rank.
    """
    if launched is None:
        return Alignment(None, "the trace holds no launch of the optimizer")
    if not annotated:
        return Alignment(None, "the snapshot knows no step of the optimizer")
    if shortest_ns is None:
        return Alignment(None, "the trace has no call stacks, so the host's micro-batches are unknown")
    residue = min(max(abs(launched.start_ns - one.start_ns), abs(one.end_ns - launched.end_ns)) for one in annotated)
    if residue > shortest_ns // 2:
        fault = f"clocks may be {residue / 1e6:,.3f} ms apart, and the shortest step takes {shortest_ns / 1e6:,.3f} ms"
        return Alignment(residue, fault)
    return Alignment(residue, None)


def longest_sequence(model: Model, in_flight_bytes: int, headroom_bytes: int) -> int | None:
    """Tokens of a sample with which activations would fill the headroom, too, all else as it is.

    Activations grow with the sequence as the formula does: in proportion, with stored scores faster.

    Args:
        in_flight_bytes: what activations hold at most at once, with the sequence of the model.

    Returns:
        None where nothing is in flight.
    """
    if in_flight_bytes <= 0:
        return None

    def held(sequence: int) -> int:
        return in_flight_bytes * replace(model, sequence=sequence).layer_bytes // model.layer_bytes

    fits, most = model.sequence, 2 * model.sequence
    while held(most) <= in_flight_bytes + headroom_bytes:
        fits, most = most, 2 * most
    while most - fits > 1:
        middle = (fits + most) // 2
        fits, most = (middle, most) if held(middle) <= in_flight_bytes + headroom_bytes else (fits, middle)
    return fits


def stage_memory(
    spans: Sequence[Span],
    activations: Sequence[Activation],
    peak_ns: int | None,
    stage: int | None,
    stages: int | None,
    layers: int | None,
) -> StageMemory:
    """Join one rank's activations with its micro-batches.

    A block belongs to the forward step in which it was allocated. A micro-batch of a chunk is in flight from its first
    allocation until less than a hundredth of its bytes is left.

    Args:
        spans: the host's forward and backward steps of the iteration.
        peak_ns: when most was requested in the iteration.
        layers: of one chunk; None where unknown or uneven.
    """
    of_chunk: defaultdict[tuple[int, int], list[Activation]] = defaultdict(list)
    forward = sorted((span for span in spans if span.phase == "forward"), key=lambda span: span.start_ns)
    owned = 0
    ordered = sorted(activations, key=lambda one: one.start_ns)
    for span in forward:
        while owned < len(ordered) and ordered[owned].start_ns < span.start_ns:
            owned += 1
        while owned < len(ordered) and ordered[owned].start_ns <= span.end_ns:
            of_chunk[span.chunk, span.microbatch].append(ordered[owned])
            owned += 1
    kept = [(_in_flight(blocks), sum(block.bytes for block in blocks)) for blocks in of_chunk.values()]
    chunks = len({span.chunk for span in forward})
    microbatches = len({span.microbatch for span in forward})
    held = int(median(size for _, size in kept)) if kept else None
    known = stage is not None and stages is not None and chunks
    where = next((span for span in spans if peak_ns is not None and span.start_ns <= peak_ns <= span.end_ns), None)
    return StageMemory(
        _most([(start, 1) for (start, _), _ in kept] + [(end, -1) for (_, end), _ in kept if end is not None]),
        expected_in_flight(stage or 0, stages or 1, chunks, microbatches) if known else None,
        held,
        held // layers if held is not None and layers else None,
        _most([change for blocks in of_chunk.values() for block in blocks for change in _changes(block)]),
        where.phase if where else None,
        where.chunk if where else None,
        where.microbatch if where else None,
    )


def _in_flight(blocks: Sequence[Activation]) -> tuple[int, int | None]:
    whole = sum(block.bytes for block in blocks)
    left = whole
    start = min(block.start_ns for block in blocks)
    for end, size in sorted((block.end_ns, block.bytes) for block in blocks if block.end_ns is not None):
        left -= size
        if left < LEAST_BYTES_SHARE * whole:
            return start, end
    return start, None


def _changes(block: Activation) -> list[tuple[int, int]]:
    ended = [] if block.end_ns is None else [(block.end_ns, -block.bytes)]
    return [(block.start_ns, block.bytes), *ended]


def _most(changes: Sequence[tuple[int, int]]) -> int:
    """The highest sum of changes so far; of two at one time, what ends comes first."""
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most
