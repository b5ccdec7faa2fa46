"""What one GPU of an Nsight Systems profile did, as arrays: the start of every nsys command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.intervals import Intervals
from traceviz_dag.analyze.kernel_intervals import DIMENSIONS, KINDS, KernelIntervals
from traceviz_dag.arrays import Bool, Int64, distinct
from traceviz_dag.classify.rules import Rules
from traceviz_dag.errors import UsageError
from traceviz_dag.read.events import KERNEL, MISSING
from traceviz_dag.read.limits import LAST_INSTANT_NS
from traceviz_dag.read.nsys.profile import NO_NAME, NsysProfile
from traceviz_dag.read.nsys.rows import array_of
from traceviz_dag.read.nsys.store import codes_of, words_of
from traceviz_dag.vocabulary import Dimension, Kind

_LAST_SECOND = LAST_INSTANT_NS // 1_000_000_000
_COLUMNS = ("name", "category", "start_ns", "duration_ns", "stream", "process", "launch", "bytes")


@dataclass(frozen=True, slots=True)
class Clip:
    """A window, ns of the capture's clock: ``[start_ns, end_ns)``.

    Attributes:
        last_included: whether it ends where everything does, so that what starts there is in it, too.
    """

    start_ns: int
    end_ns: int
    last_included: bool = False

    @classmethod
    def of_seconds(cls, start: float, end: float) -> Clip:
        """A window given in seconds.

        Raises:
            UsageError: it ends before it starts or is empty, or one of them is no time.
        """
        if not (abs(start) < _LAST_SECOND and abs(end) < _LAST_SECOND):
            raise UsageError(f"--trim {start} {end}: give seconds of the capture's clock")
        if end <= start:
            raise UsageError(f"--trim {start} {end} ends before it starts")
        window = cls(round(start * 1e9), round(end * 1e9))
        if window.end_ns == window.start_ns:
            raise UsageError(f"--trim {start} {end} is shorter than a nanosecond")
        return window

    def within(self, profile: NsysProfile) -> Clip:
        """The part of the window that a profile covers: nothing is known of the time before and after.

        Raises:
            UsageError: it covers nothing of the window.
        """
        first, last = profile.facts.first_ns, profile.facts.last_ns
        if first is None or last is None:
            return self
        inside = Clip(max(self.start_ns, first), min(self.end_ns, last), last_included=self.end_ns > last)
        if inside.end_ns <= inside.start_ns:
            span = f"{self.start_ns / 1e9:.6f} to {self.end_ns / 1e9:.6f} s"
            covered = f"{first / 1e9:.6f} to {last / 1e9:.6f} s"
            raise UsageError(f"{profile.path}: the window {span} is outside the time covered, {covered}")
        return inside


@dataclass(frozen=True, slots=True)
class Activity:
    """The operations of one GPU by start.

    Attributes:
        device: the GPU's number.
        intervals: time and kind of each; the dimension is unknown here.
        kernel: which are kernels and no memory operations.
        name: index into ``names``.
        stream, process, row: stream, process and row of ``operations`` of each.
        launch: row of ``calls`` that launched it, or -1.
        bytes: of memory operations; MISSING otherwise.
    """

    device: int
    intervals: KernelIntervals
    kernel: Bool
    name: npt.NDArray[np.int32]
    names: tuple[str, ...]
    stream: Int64
    process: Int64
    launch: Int64
    bytes: Int64
    row: Int64

    def __len__(self) -> int:
        return len(self.launch)

    @property
    def starts(self) -> Int64:
        """Start of each operation."""
        return self.intervals.time.starts

    @property
    def ends(self) -> Int64:
        """End of each operation."""
        return self.intervals.time.ends

    def window(self, clip: Clip | None) -> Clip:
        """The clip, else from the first operation's start to the last one's end, as in window ``kernels`` of a home."""
        if clip is not None:
            return clip
        return Clip(int(self.starts.min()), int(self.ends.max()), last_included=True)

    def started_within(self, window: Clip) -> Bool:
        """Operations that start in a window."""
        before = self.starts <= window.end_ns if window.last_included else self.starts < window.end_ns
        return (self.starts >= window.start_ns) & before

    def take(self, chosen: Bool) -> Activity:
        """Some of the operations."""
        if chosen.all():
            return self
        return Activity(
            self.device,
            self.intervals.take(chosen),
            self.kernel[chosen],
            self.name[chosen],
            self.names,
            self.stream[chosen],
            self.process[chosen],
            self.launch[chosen],
            self.bytes[chosen],
            self.row[chosen],
        )


def activities(profile: NsysProfile, rules: Rules, gpus: Sequence[int] = ()) -> list[Activity]:
    """The operations of a profile, GPU by GPU; kernels are computation or communication by their names.

    Args:
        gpus: only these GPUs, in this order; empty takes all that did something.

    Raises:
        UsageError: a GPU that did nothing is asked for, or none did anything.
    """
    chosen = active_gpus(profile, gpus)
    names = profile.names("operations", "name")
    kinds = kinds_of(names, rules)
    return [_activity(profile, gpu, names, kinds) for gpu in chosen]


def active_gpus(profile: NsysProfile, gpus: Sequence[int] = ()) -> Sequence[int]:
    """The GPUs that did something, or those chosen among them.

    Raises:
        UsageError: a GPU that did nothing is chosen, or none did anything.
    """
    there = profile.keys("operations")
    if not there:
        raise UsageError(f"{profile.path}: no kernels and no memory operations were recorded")
    check_gpus(profile, gpus)
    return gpus or there


def check_gpus(profile: NsysProfile, gpus: Sequence[int]) -> None:
    """Refuse a GPU that did nothing.

    Raises:
        UsageError: one of them did nothing.
    """
    there = profile.keys("operations")
    unknown = [gpu for gpu in gpus if gpu not in there]
    if unknown:
        listed = ", ".join(map(str, there)) if there else "none"
        raise UsageError(f"{profile.path}: no activity on GPU {unknown[0]}; there is some on {listed}")


def processes_of(gpus: Iterable[Activity]) -> tuple[int, ...] | None:
    """The processes of some operations, ascending; None, which means all, where an operation does not show its own."""
    found = sorted({process for gpu in gpus for process in distinct(gpu.process).tolist()})
    return None if MISSING in found else tuple(found)


def _activity(profile: NsysProfile, gpu: int, names: tuple[str, ...], kinds: npt.NDArray[np.int8]) -> Activity:
    rows = profile.rows("operations", *_COLUMNS, of=[gpu])
    name = rows["name"]
    kernel = rows["category"] == KERNEL
    starts = rows.integers("start_ns")
    return Activity(
        device=gpu,
        intervals=KernelIntervals(
            Intervals(starts, starts + rows["duration_ns"]),
            np.where(kernel, kinds[name], KINDS.index(Kind.MEMORY)).astype(np.int8),
            np.full(len(rows), DIMENSIONS.index(Dimension.UNKNOWN), dtype=np.int8),
        ),
        kernel=kernel,
        name=name.astype(np.int32, copy=False),
        names=names,
        row=rows.runs.rows(),
        **{column: rows.integers(column) for column in ("stream", "process", "launch", "bytes")},
    )


def numbers(table: pa.Table, column: str) -> Int64:
    """A column of integers as int64."""
    return array_of(table[column]).astype(np.int64, copy=False)


def name_codes(table: pa.Table, column: str) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
    """A dictionary column as codes and words; NULL is a word of its own, "(no name)"."""
    words = words_of(table[column])
    return codes_of(table[column]).astype(np.int32), (*(NO_NAME if word is None else word for word in words), NO_NAME)


def kinds_of(names: tuple[str, ...], rules: Rules) -> npt.NDArray[np.int8]:
    """What kernels of each name are."""
    rule = rules.match_kernels(names)
    return np.array(
        [KINDS.index(rules.kernels[index].kind if index >= 0 else Kind.COMPUTATION) for index in rule], dtype=np.int8
    )
