"""What a snapshot of CUDA memory holds, as typed columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from traceviz_dag.read.memory.extraction import ACTIONS, STATES, UNKNOWN

__all__ = ["ACTIONS", "INACTIVE", "STATES", "UNKNOWN", "Action", "Annotation", "Frame", "Snapshot", "Stacks"]

INACTIVE = STATES.index("inactive")


class Action:
    """Numbers of the actions in column ``action`` of the events."""

    ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, SNAPSHOT, OOM = (
        range(len(ACTIONS))
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a call stack; file names without home folders, from ``site-packages`` on."""

    name: str
    file: str
    line: int

    @property
    def is_python(self) -> bool:
        """Whether it is of Python code; the others are of C++."""
        return self.file.endswith((".py", ".pyx")) or self.file.startswith("<")

    @property
    def text(self) -> str:
        """The frame as it is shown: where and what."""
        return f"{self.file}:{self.line} {self.name}" if self.is_python else self.name


@dataclass(frozen=True)
class Stacks:
    """Distinct call stacks, innermost frame first.

    Attributes:
        frames: distinct frames.
        of_stacks: a tuple of places in ``frames`` for each stack.
    """

    frames: tuple[Frame, ...]
    of_stacks: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.of_stacks)

    def of(self, stack: int) -> tuple[Frame, ...]:
        """The frames of a stack; none for ``UNKNOWN``."""
        return tuple(self.frames[place] for place in self.of_stacks[stack]) if stack >= 0 else ()


@dataclass(frozen=True, slots=True)
class Annotation:
    """A named interval of the recording, such as a profiler step or the step of an optimizer; epoch microseconds.

    ``start_us`` or ``end_us`` is None where the recording holds only the other.
    """

    name: str
    device: int
    start_us: int | None
    end_us: int | None


@dataclass(frozen=True)
class Snapshot:
    """One file: what was allocated when it was taken, and the events before, device by device, oldest first.

    Attributes:
        events: columns device, action, address, bytes, stream, time_us and stack; bytes are what was requested, of
            segments their size; unknown numbers are ``UNKNOWN``.
        segments: columns device, address, bytes, stream, small, expandable, stack.
        blocks: columns segment (place in ``segments``), address, bytes, requested, state (place in ``STATES``), stack.
        ooms: place of an event out of memory → bytes that the device had free then, or None.
        settings: the allocator's, those that are one value.
        traces: devices with events.
        unknown: keys and actions that nothing is known of → how often they occur.
        unusable: part of the snapshot → rows in it that could not be used.
        unusable_values: "name in part" → values of a wrong type in rows that were used without them.
        file_bytes: size of the file.
    """

    events: Mapping[str, npt.NDArray[np.int64]]
    segments: Mapping[str, npt.NDArray[np.int64]]
    blocks: Mapping[str, npt.NDArray[np.int64]]
    stacks: Stacks
    annotations: tuple[Annotation, ...]
    ooms: Mapping[int, int | None]
    settings: Mapping[str, bool | int | float | str]
    traces: int
    unknown: Mapping[str, int]
    unusable: Mapping[str, int]
    unusable_values: Mapping[str, int]
    file_bytes: int

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Devices with segments or events."""
        return tuple(sorted({*self.segments["device"].tolist(), *self.events["device"].tolist()}))

    @property
    def ring(self) -> tuple[bool | None, int | None]:
        """Whether older events were overwritten, and how many events are kept; None where the file does not show."""
        overflowed = self.settings.get("trace_alloc_overflowed")
        most = self.settings.get("trace_alloc_max_entries")
        return (
            overflowed if isinstance(overflowed, bool) else None,
            most if isinstance(most, int) and not isinstance(most, bool) else None,
        )
