"""What a lane is, what marks are, and the window that both lie in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class LaneKind(StrEnum):
    """What a lane shows. ``rank`` and ``gpu`` show the parts of their time and hold the others."""

    RANK = "rank"
    GPU = "gpu"
    STREAM = "stream"
    DIMENSION = "dimension"
    MICROBATCHES = "microbatches"
    GAPS = "gaps"
    PATH = "path"
    PROCESS = "process"
    THREAD = "thread"
    RANGES = "ranges"
    CALLS = "calls"
    SYSTEM_CALLS = "system_calls"
    COUNTER = "counter"


class Window(NamedTuple):
    """``[start_ns, end_ns)`` on the model's axis."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane.

    Attributes:
        key: names it; stays the same as long as the source does.
        label: what a screen writes beside it.
        parent: key of the lane that it lies below; None for an outermost one.
        kind: what it shows.
        rows: slices, or changes of a counter; 0 of lanes that only hold others.
        holds_lanes: whether there are lanes below it.
        level: of NVTX ranges how many are around them; 0 otherwise.
        dimension: of communication, of a lane of one dimension; empty otherwise.
        unit: of a counter: ``bytes`` or ``operations``; empty otherwise.
    """

    key: str
    label: str
    parent: str | None
    kind: LaneKind
    rows: int = 0
    holds_lanes: bool = False
    level: int = 0
    dimension: str = ""
    unit: str = ""


class MarkKind(StrEnum):
    """What a mark marks."""

    ITERATION = "iteration"
    MICROBATCH = "microbatch"
    FINDING = "finding"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in time with words.

    Attributes:
        start_ns, end_ns: where it lies.
        lane: key of the lane that it belongs to; None for all.
        label: a few words. statement: a sentence; empty where the label says it all.
        number: of an iteration or finding.
        culprit: of a finding, who or what is at fault, such as "rank 3, dimension tp".
        places: of a finding, the lanes and windows that hold most of it, the weightiest first; none where it is of no
            particular time.
        evidence: what it was read from.
        sql: the query of a finding.
    """

    kind: MarkKind
    start_ns: int
    end_ns: int
    label: str
    lane: str | None = None
    statement: str = ""
    number: int | None = None
    culprit: str = ""
    evidence: str = ""
    sql: str = ""
    places: tuple[tuple[str, Window], ...] = ()
