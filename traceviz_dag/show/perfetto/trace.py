"""The one writer of native Perfetto traces: tracks in a tree, slices, counters and flows, encoded column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal import igzip_threaded

from traceviz_dag.arrays import Int64, UInt64
from traceviz_dag.show.perfetto.columns import Interning, Numbers, Texts, numbers, texts
from traceviz_dag.show.perfetto.protobuf_rows import Messages, encode_field
from traceviz_dag.show.perfetto.trace_lanes import begin_end_order, lanes_of, nests
from traceviz_dag.system.whole_files import whole_file

Column: TypeAlias = str | npt.NDArray[np.generic] | pa.Array | pa.ChunkedArray
"""A value a slice: texts, integers, floats or booleans, NULL where a slice has none; one text serves all slices."""


_SEQUENCE = 1
_CLEARED, _NEEDED = 1, 2
_BEGIN, _END, _COUNTER = 1, 2, 4
_EXPLICIT = 3
_ROWS = 1 << 15
_COMPRESSION_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Track:
    """One track of a trace; made by :meth:`PerfettoTrace.add_track`."""

    number: int
    name: str
    parent: int | None
    order: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """What runs on one track; all columns have one length.

    Attributes:
        start_ns: int64.
        duration_ns: int64, never negative.
        name: what is in each slice; without a name where NULL.
        category: category of each slice; slices of one category have one colour in every trace.
        arguments: further facts of each slice, shown where it is chosen; name → column.
        flows_out: the flows that leave a slice at its start; uint64 arrays, a value a slice, 0 for none.
        flows_in: the flows that arrive before a slice ends. A flow runs from the one slice that it leaves to the one
            at which it arrives, or through several, in the order of their ends.
        coloured_as: category whose colour each slice has, where that is another than its own.
    """

    start_ns: Int64
    duration_ns: Int64
    name: Column
    category: Column | None = None
    arguments: Mapping[str, Column] = field(default_factory=dict)
    flows_out: Sequence[UInt64] = ()
    flows_in: Sequence[UInt64] = ()
    coloured_as: Column | None = None

    def __len__(self) -> int:
        return len(self.start_ns)


@contextmanager
def perfetto_trace(path: Path, clock: str, about: Mapping[str, str] | None = None) -> Iterator[PerfettoTrace]:
    """Write a trace; it appears under its name once the block ends without an error.

    Args:
        path: gzip-compressed where the name ends in ``.gz``; Perfetto reads both.
        clock: what the times mean, in a sentence; it is in the trace.
        about: further facts of the whole trace.

    Raises:
        OutputError: the file cannot be written.
    """
    with whole_file(path) as raw, _packed(raw, path.suffix == ".gz") as file:
        trace = PerfettoTrace(file)
        yield trace
        trace.finish(clock, about or {})


class PerfettoTrace:
    """A trace that is being written; see :func:`perfetto_trace`.

    Attributes:
        slices: how many were added.
        counted: how many values of counters were added.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.slices = 0
        self.counted = 0
        self._file = file
        self._interning = Interning()
        self._tracks = 0
        self._filled: set[int] = set()
        self._span: tuple[int, int] | None = None
        self._packet(encode_field(13, _CLEARED) + encode_field(41, 1))

    def add_track(
        self, name: str, parent: Track | None = None, *, order: int | None = None, description: str = ""
    ) -> Track:
        """Add a track, or a group of tracks: a track that is the parent of others.

        Args:
            order: its place among the tracks of its parent, lowest first; by name where None.
            description: what the UI shows beside the track's name.
        """
        return self._track(name, parent.number if parent else None, order, encode_field(14, description))

    def add_counter(
        self, name: str, parent: Track | None = None, *, unit: str = "", order: int | None = None, description: str = ""
    ) -> Track:
        """Add the track of a counter.

        Args:
            unit: name of the unit, such as ``bytes`` or ``%``.
        """
        content = encode_field(14, description) + encode_field(8, encode_field(6, unit) if unit else b"")
        return self._track(name, parent.number if parent else None, order, content)

    def add_slices(self, track: Track, slices: Slices, *, nested: bool = False) -> int:
        """Add everything that runs on a track, once for each track.

        Slices that overlap are put on lanes: further tracks of the same name, which the UI shows as one. With
        ``nested``, slices that hold each other wholly stay on one lane, as a call stack.

        Returns:
            How many lanes were needed.

        Raises:
            ValueError: a negative duration or start, which Perfetto would drop, columns of several lengths, or a track
                that has slices already.
        """
        if track.number in self._filled:
            raise ValueError(f"track {track.name!r} has slices already: add all slices of a track at once")
        self._filled.add(track.number)
        starts, durations = np.asarray(slices.start_ns, np.int64), np.asarray(slices.duration_ns, np.int64)
        if len(starts) != len(durations) or (durations < 0).any() or (starts < 0).any():
            raise ValueError(f"track {track.name!r}: starts and durations differ in number, or one is negative")
        if not len(starts):
            return 0
        ends = starts + durations
        lanes = np.zeros(len(starts), np.int64) if nested and nests(starts, ends) else lanes_of(starts, ends)
        count = int(lanes.max()) + 1
        others = [self._track(track.name, track.parent, track.order, b"").number for _ in range(count - 1)]
        self._write_slices(np.array([track.number, *others], np.int64)[lanes], starts, ends, slices)
        self.slices += len(starts)
        self._reach(int(starts.min()), int(ends.max()))
        return count

    def add_counts(self, counter: Track, time_ns: Int64, values: npt.NDArray[np.integer | np.floating]) -> None:
        """Add values of a counter; each holds until the next.

        Raises:
            ValueError: a negative instant, which Perfetto would drop.
        """
        if not len(time_ns):
            return
        if (time_ns < 0).any():
            raise ValueError(f"counter {counter.name!r}: an instant is negative")
        packets = self._packets(len(time_ns), np.asarray(time_ns, np.int64))
        event = Messages(len(time_ns))
        event.varint(9, _COUNTER)
        event.varint(11, counter.number)
        if np.issubdtype(values.dtype, np.floating):
            event.double(44, values.astype(np.float64))
        else:
            event.varint(30, values.astype(np.int64))
        packets.messages(11, event)
        self._write(packets)
        self.counted += len(time_ns)
        self._reach(int(time_ns.min()), int(time_ns.max()))

    def finish(self, clock: str, about: Mapping[str, str]) -> None:
        """Write what the trace says of itself: a slice over all of it, named by the clock."""
        start, end = self._span or (0, 0)
        track = self.add_track("about this trace", order=-1)
        one = Slices(np.array([start]), np.array([end - start]), clock, None, {"clock": clock, **about})
        self.add_slices(track, one)
        self.slices -= 1

    def _track(self, name: str, parent: int | None, order: int | None, content: bytes) -> Track:
        self._tracks += 1
        descriptor = encode_field(1, self._tracks) + encode_field(2, name) + encode_field(11, _EXPLICIT) + content
        if parent is not None:
            descriptor += encode_field(5, parent)
        if order is not None:
            descriptor += encode_field(12, order)
        self._packet(encode_field(60, descriptor))
        return Track(self._tracks, name, parent, order)

    def _write_slices(self, tracks: Int64, starts: Int64, ends: Int64, slices: Slices) -> None:
        count = len(starts)
        names = texts(slices.name, count, self._interning.names)
        categories = None if slices.category is None else texts(slices.category, count, self._interning.categories)
        hue = slices.category if slices.coloured_as is None else slices.coloured_as
        colours = None if hue is None else texts(hue, count, self._interning.colours)
        arguments = [
            (self._interning.argument_names.number(name), self._argument(column, count))
            for name, column in slices.arguments.items()
        ]
        self._write_interned()
        order, begins = begin_end_order(starts, ends)
        times = np.where(begins, starts[order], ends[order])
        for first in range(0, len(order), _ROWS):
            rows, is_begin = order[first : first + _ROWS], begins[first : first + _ROWS]
            event = Messages(len(rows))
            event.varint(9, np.where(is_begin, _BEGIN, _END))
            event.varint(11, tracks[rows])
            event.varint(10, names.numbers[rows], is_begin & names.present[rows])
            if categories is not None and colours is not None:
                event.varint(3, categories.numbers[rows], is_begin & categories.present[rows])
                event.varint(54, colours.numbers[rows], is_begin & colours.present[rows])
            for columns, at in ((slices.flows_out, is_begin), (slices.flows_in, ~is_begin)):
                for flows in columns:
                    event.fixed64(47, flows[rows], at & (flows[rows] != 0))
            for number, column in arguments:
                present = is_begin & column.present[rows]
                if present.any():
                    event.messages(4, column.annotation(number, rows), present)
            packets = self._packets(len(rows), times[first : first + _ROWS])
            packets.messages(11, event)
            self._write(packets)

    def _argument(self, column: Column, count: int) -> Texts | Numbers:
        found = numbers(column, count)
        return texts(column, count, self._interning.argument_texts) if found is None else found

    def _packets(self, count: int, times: Int64) -> Messages:
        packets = Messages(count)
        packets.varint(8, times)
        packets.varint(10, _SEQUENCE)
        packets.varint(13, _NEEDED)
        return packets

    def _write(self, packets: Messages) -> None:
        framed = Messages(packets.count)
        framed.messages(1, packets)
        self._file.write(framed.encode())

    def _packet(self, content: bytes) -> None:
        self._file.write(encode_field(1, encode_field(10, _SEQUENCE) + content))

    def _write_interned(self) -> None:
        fresh = self._interning.fresh()
        if fresh:
            self._packet(encode_field(13, _NEEDED) + encode_field(12, fresh))

    def _reach(self, start: int, end: int) -> None:
        low, high = self._span or (start, end)
        self._span = min(low, start), max(high, end)


@contextmanager
def _packed(raw: IO[bytes], compressed: bool) -> Iterator[IO[bytes]]:
    if not compressed:
        yield raw
        return
    with igzip_threaded.open(raw, "wb", compresslevel=_COMPRESSION_LEVEL, threads=1) as file:
        yield cast("IO[bytes]", file)
