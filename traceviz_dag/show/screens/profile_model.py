"""A profile of Nsight Systems as a screen walks through it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from traceviz_dag.analyze.nsys.activity import Activity, Clip, activities
from traceviz_dag.analyze.nsys.lost import partial_mark
from traceviz_dag.analyze.nsys.overlap import gpu_overlap
from traceviz_dag.analyze.nsys.rows import SEPARATOR
from traceviz_dag.analyze.nsys.summary import by_name
from traceviz_dag.arrays import NONE
from traceviz_dag.classify.rules import Rules
from traceviz_dag.printable import printable
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.nsys.profile import PROCESS_BITS, NsysProfile
from traceviz_dag.show.lanes import names
from traceviz_dag.show.lanes.bundle import Bundle
from traceviz_dag.show.lanes.lane import LaneKind, Mark, Window
from traceviz_dag.show.lanes.profile import (
    CALL_NAMES,
    OPERATION_NAMES,
    RANGE_NAMES,
    SYSTEM_CALL_NAMES,
    gpu_bundle,
    process_bundle,
    process_key,
    root_bundle,
)
from traceviz_dag.show.lanes.words import word_of
from traceviz_dag.show.screens.lanes_model import LanesModel
from traceviz_dag.show.screens.model import (
    ALL,
    MOST_NAMES,
    Aggregate,
    Detail,
    Fact,
    Filter,
    GroupMeasures,
    Hits,
    SliceId,
    TopName,
)
from traceviz_dag.vocabulary import ALL_DIMENSIONS

_TABLE = {
    LaneKind.STREAM: OPERATION_NAMES,
    LaneKind.RANGES: RANGE_NAMES,
    LaneKind.CALLS: CALL_NAMES,
    LaneKind.SYSTEM_CALLS: SYSTEM_CALL_NAMES,
}
_MEASURES = (
    *("kernels", "compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "memory_ns", "busy_ns", "idle_ns"),
)


class ProfileModel(LanesModel):
    """A profile; times are those of the capture's clock.

    Args:
        profile: opened, from a home or from memory.
        rules: which kernels communicate.
        title: words for the head of the screen; the name of the file by default.
        kept: as ``LanesModel`` takes it; by default nothing is kept.
        options: what commands that it names end with, such as ``--home``.
        gpus: only these GPUs, and the processes that drive them; empty takes all.
        window: only this time; None takes all that the profile covers.
    """

    def __init__(
        self,
        profile: NsysProfile,
        rules: Rules,
        title: str = "",
        kept: Callable[[str], Path | None] = lambda _: None,
        options: Sequence[str] = (),
        gpus: Sequence[int] = (),
        window: Clip | None = None,
    ) -> None:
        super().__init__(kept)
        self._gpus, self._window = gpus, window
        self._options = options
        self._profile, self._rules = profile, rules
        self._title = title or printable(profile.path.name)

    @property
    def title(self) -> str:
        """As ``ScreenModel`` says."""
        return self._title

    @property
    def span(self) -> Window:
        """As ``ScreenModel`` says."""
        facts = self._profile.facts
        if self._window is not None:
            return Window(self._window.start_ns, self._window.end_ns)
        if facts.first_ns is None or facts.last_ns is None:
            return Window(0, 1)
        return Window(facts.first_ns, max(facts.last_ns, facts.first_ns + 1))

    @property
    def notes(self) -> Sequence[str]:
        """As ``ScreenModel`` says."""
        mark = partial_mark(self._profile, self._gpus)
        return [printable(one) for one in (mark, *self._profile.facts.missing) if one]

    def marks(self, window: Window) -> Sequence[Mark]:
        """As ``ScreenModel`` says."""
        return [mark for mark in self._iterations() if mark.start_ns < window.end_ns and mark.end_ns > window.start_ns]

    def search(self, pattern: str, only: Filter = ALL, window: Window | None = None, page: int = 0) -> Hits:
        """As ``ScreenModel`` says."""
        return super().search(pattern, only, self.span if window is None and self._window is not None else window, page)

    def follow(self, slice_id: SliceId) -> SliceId | None:
        """As ``ScreenModel`` says."""
        with self._lock:
            kind, source = self._source(slice_id)
            if kind is LaneKind.STREAM:
                launch = self._profile.row("operations", source, "launch")["launch"]
                return None if launch in (None, NONE) else self._call(int(launch), CALL_NAMES)
            if kind is LaneKind.CALLS:
                return self._launched(source)
            return None

    def members(self, slice_id: SliceId) -> Sequence[SliceId]:
        """As ``ScreenModel`` says: a profile does not show which communications belong together."""
        del slice_id
        return ()

    def detail(self, slice_id: SliceId) -> Detail:
        """As ``ScreenModel`` says."""
        with self._lock:
            window = self.bounds(slice_id)
            kind, source = self._source(slice_id)
            name = self._name(slice_id)
            content = self._content(slice_id.lane)
            assert content is not None
            kind_word = word_of(content.kinds[content.rows.kind[slice_id.row]]).label
            facts = [
                Fact("start", window.start_ns, "ns"),
                Fact("duration", window.length_ns, "ns"),
                Fact("lane", self.lane(slice_id.lane).label),
                Fact("shown as", kind_word),
            ]
            launch = self.follow(slice_id)
            table = _TABLE.get(kind)
            if table is not None:
                facts += self._facts(table, source)
            if kind is LaneKind.STREAM:
                facts += self._launch_facts(launch, window) if launch is not None else []
                facts += self._path_facts(self._profile.row("launch_ranges", source, "range")["range"])
            if kind is LaneKind.RANGES:
                facts += self._path_facts(source)
            if kind is LaneKind.GAPS:
                facts += self._gap_facts(source, window)
            if not content.words:
                name = kind_word
            full = self._full_name(slice_id) or name
            group = self._busy_group(slice_id.lane)
            command = self._command(group, window) if group.startswith("gpu:") and window.length_ns else ""
            return Detail(slice_id, window, name, full, tuple(facts), launch=launch, command=command)

    def aggregate(self, window: Window, lanes: Sequence[str] = ()) -> Aggregate:
        """As ``ScreenModel`` says.

        Raises:
            UsageError: the profile covers nothing of the window.
        """
        with self._lock:
            clip = Clip(*window).within(self._profile)
            measures, top, commands = [], [], []
            for group in self._busy_groups(lanes):
                activity = self._activity(group)
                # What does not touch the window changes nothing, and costs sorting.
                near = activity.take((activity.starts <= clip.end_ns) & (activity.ends >= clip.start_ns))
                found = asdict(gpu_overlap(near, clip))
                measures.append(
                    GroupMeasures(
                        lane=group,
                        device=group,
                        dimension=ALL_DIMENSIONS,
                        window_start_ns=clip.start_ns,
                        window_end_ns=clip.end_ns,
                        **{name: found[name] for name in _MEASURES},
                    )
                )
                top += [
                    TopName(group, names.function_name(one.name), one.kind, one.count, one.total_ns, one.share)
                    for one in by_name(near, clip)[:MOST_NAMES]
                ]
                commands.append(self._command(group, Window(clip.start_ns, clip.end_ns)))
            return Aggregate(Window(clip.start_ns, clip.end_ns), tuple(measures), tuple(top), tuple(commands))

    def _make_root(self) -> Bundle:
        return root_bundle(self._profile, self._gpus)

    def _make(self, group: str) -> Bundle:
        kind, _, number = group.partition(":")
        # A profile keeps the columns that were asked of it; those that lanes are made of are not needed again.
        once = NsysProfile(self._profile.path, self._profile.store)
        if kind == "gpu":
            return gpu_bundle(once, self._rules, int(number))
        return process_bundle(once, int(number))

    def _words(self, group: str, words: str) -> Sequence[str | None]:
        del group
        return self._profile.store.words(words, "name")

    def _shorten(self, words: str) -> Callable[[str], str]:
        return names.function_name if words == OPERATION_NAMES else names.shown

    def _activity(self, group: str) -> Activity:
        return activities(self._profile, self._rules, [int(group.partition(":")[2])])[0]

    def _source(self, slice_id: SliceId) -> tuple[LaneKind, int]:
        """The kind of a slice's lane, and the row that it was made of."""
        self.bounds(slice_id)
        return self.lane(slice_id.lane).kind, int(self._rows(slice_id.lane).source[slice_id.row])

    def _call(self, row: int, table: str) -> SliceId | None:
        """The slice of a call."""
        found = self._profile.row(table, row, "thread")["thread"]
        if not isinstance(found, int):
            return None
        lane = f"{process_key(found >> PROCESS_BITS)}/thread:{found}/{LaneKind.CALLS.value}"
        return self._of_source(lane, row)

    def _of_source(self, lane: str, row: int) -> SliceId | None:
        """The slice that was made of a row of a table; rows of a lane ascend."""
        source = self._rows(lane).source
        place = int(np.searchsorted(source, row))
        return SliceId(lane, place) if place < len(source) and source[place] == row else None

    def _launched(self, call: int) -> SliceId | None:
        """The first operation, by GPU and start, that a call launched."""
        for device in self._profile.keys("operations"):
            rows = self._profile.rows("operations", "launch", "stream", of=[device])
            place = np.flatnonzero(rows["launch"] == call)
            if len(place):
                lane = f"gpu:{device}/stream:{int(rows['stream'][place[0]])}"
                return self._of_source(lane, int(rows.runs.rows()[place[0]]))
        return None

    def _facts(self, table: str, row: int) -> list[Fact]:
        """What a row of a table says beyond name and time."""
        found = self._profile.row(table, row)
        skipped = {"name", "short_name", "start_ns", "end_ns", "duration_ns", "category", "kind", "launch", "path"}
        facts = []
        for name, value in found.items():
            if name in skipped or value is None or value in (MISSING, False) or (name == "parent" and value == NONE):
                continue
            text = printable(value) if isinstance(value, str) else value
            facts.append(Fact(name.removesuffix("_bytes").replace("_", " "), text, "bytes" if "bytes" in name else ""))
        size, length = found.get("bytes"), found.get("duration_ns")
        if isinstance(size, int) and size != MISSING and isinstance(length, int) and length > 0:
            facts.append(Fact("bandwidth", size / length, "GB/s"))
        return facts

    def _launch_facts(self, launch: SliceId, window: Window) -> list[Fact]:
        call = self.bounds(launch)
        return [
            Fact("launched by", self._name(launch)),
            Fact("launched at", call.start_ns, "ns"),
            Fact("waited since the call returned", max(window.start_ns - call.end_ns, 0), "ns"),
        ]

    def _path_facts(self, row: int | str | None) -> list[Fact]:
        """The names of the ranges around a range, and its own, outermost first."""
        if not isinstance(row, int) or row == NONE:
            return []
        path = self._profile.row("ranges", row, "path")["path"]
        paths = self._profile.rows("paths", "name", "parent")
        words = self._profile.names("ranges", "name")
        found: list[str] = []
        while isinstance(path, int) and path != NONE:
            found.append(names.shown(words[int(paths["name"][path])]))
            path = int(paths["parent"][path])
        return [Fact("NVTX path", SEPARATOR.join(reversed(found)))] if found else []

    def _gap_facts(self, source: int, window: Window) -> list[Fact]:
        """What ends a gap, when it was launched, and what the launching thread was in, in the middle of the gap."""
        found = self._profile.row("operations", source, "name", "launch")
        facts = [Fact("ended by", names.function_name(str(found["name"] or names.NO_NAME)))]
        launch = found["launch"]
        if isinstance(launch, int) and launch != NONE:
            call = self._profile.row("calls", launch, "start_ns", "thread")
            start, thread = int(call["start_ns"] or 0), int(call["thread"] or 0)
            facts.append(Fact("which was launched at", start, "ns"))
            middle = (window.start_ns + window.end_ns) // 2
            facts += [Fact("the host was in", one.value) for one in self._path_facts(self._range_at(thread, middle))]
        return facts

    def _range_at(self, thread: int, time_ns: int) -> int | None:
        """The innermost range that is open on a thread at a time."""
        above = f"{process_key(thread >> PROCESS_BITS)}/thread:{thread}"
        if self._root.lane(process_key(thread >> PROCESS_BITS)) is None:
            return None
        levels = [
            lane for lane in self.lanes(above) if lane.kind is LaneKind.RANGES and not lane.key.endswith("across")
        ]
        for lane in sorted(levels, key=lambda lane: -lane.level):
            found = self.at(lane.key, time_ns)
            if found is not None:
                return int(self._rows(lane.key).source[found.row])
        return None

    def _command(self, group: str, window: Window) -> str:
        words = ["traceviz", "nsys", "overlap", str(self._profile.path), "--gpu", group.partition(":")[2]]
        trim = ["--trim", _seconds(window.start_ns), _seconds(window.end_ns)]
        return printable(shlex.join([*words, *trim, *self._options]))


def _seconds(time_ns: int) -> str:
    """A time as ``--trim`` takes it, exact to the nanosecond."""
    sign = "-" if time_ns < 0 else ""
    return f"{sign}{abs(time_ns) // 10**9}.{abs(time_ns) % 10**9:09d}"
