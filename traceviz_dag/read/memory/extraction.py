"""From the plain containers of a snapshot to columns of numbers: what is known is taken, the rest is counted.

Only the standard library is imported here: a child process runs it, and starts in milliseconds.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress, count, islice
from operator import not_
from typing import Any, TypeGuard

ACTIONS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"),
    *("segment_map", "segment_unmap", "snapshot", "oom"),
)
"""Words of events; their places are the numbers in the columns."""

STATES = ("inactive", "active_allocated", "active_pending_free")
"""Words of blocks; their places are the numbers in the columns."""

UNKNOWN = -1
"""A number that the snapshot does not show."""

MOST_BYTES = 1 << 42
"""No block or segment is believed to be larger."""

_LAST_ADDRESS = (1 << 63) - 1
_LAST_DEVICE = (1 << 15) - 1
_LAST_MICROSECOND = (1 << 62) // 1000
"""In nanoseconds, too, a time fits into an integer, and so does what is added to it."""
_MOST_KEYS = 64
_MOST_TEXT = 400
_MOST_NAMES = 40
_MOST_LIKE = 64
"""Stacks that are compared with one: beyond that, all of its frames are looked up."""

_EVENTS_AT_ONCE = 1 << 11
"""So many, column by column, stay in the processor's cache."""

_LEAST_ROW_BYTES = 4
_STATE_OF = {**{word: place for place, word in enumerate(STATES)}, "active_awaiting_free": 2}
_ACTION_OF = {word: place for place, word in enumerate(ACTIONS)}
_OOM = _ACTION_OF["oom"]

_KNOWN_OF_EVENTS = frozenset(
    {"action", "addr", "size", "stream", "time_us", "frames", "device_free", "device", "pool_id", "segment_pool_id"}
    | {"compile_context", "user_metadata", "forward_frames"}
)
_KNOWN_OF_SEGMENTS = frozenset(
    {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type"}
    | {"segment_pool_id", "is_expandable", "frames", "blocks", "registration_counter"}
)
_KNOWN_OF_BLOCKS = frozenset({"address", "size", "requested_size", "state", "frames", "history", "user_metadata"})
_KNOWN_OF_ANNOTATIONS = frozenset({"name", "stage", "device", "time_us"})
TYPES_OF_SETTINGS = {"trace_alloc_overflowed": bool, "trace_alloc_max_entries": int}
"""Settings that answers rest on."""

_KNOWN_AT_TOP = frozenset({"segments", "device_traces", "allocator_settings", "external_annotations"})

COLUMNS = {
    "events": {"device": "i", "action": "b", "address": "q", "bytes": "q", "stream": "q", "time_us": "q", "stack": "i"},
    "segments": {
        **{"device": "i", "address": "q", "bytes": "q", "stream": "q", "small": "b", "expandable": "b", "stack": "i"},
    },
    "blocks": {"segment": "i", "address": "q", "bytes": "q", "requested": "q", "state": "b", "stack": "i"},
    "stacks": {"frames": "i"},
    "frames_of_stacks": {"frame": "i"},
}
"""Table → column → type code of :mod:`array`."""


class NotASnapshotError(ValueError):
    """The value is no snapshot; the message says why."""


class Extraction:
    """The columns of one snapshot.

    Args:
        value: what the pickle held.
        size: bytes of the file: more rows than these can hold are refused, since containers may be referred to often.

    Raises:
        NotASnapshotError: it is no snapshot.
    """

    def __init__(self, value: Any, size: int) -> None:
        self.columns = {table: {name: array(code) for name, code in each.items()} for table, each in COLUMNS.items()}
        self.frames: list[tuple[str, str, int]] = []
        self.annotations: list[tuple[str, str, int, int]] = []
        self.ooms: list[tuple[int, int]] = []
        self.settings: dict[str, Any] = {}
        self.unknown: Counter[str] = Counter()
        self.unusable: Counter[str] = Counter()
        self.unusable_values: Counter[str] = Counter()
        self.traces: set[int] = set()
        self._rows_left = size // _LEAST_ROW_BYTES
        self._frame_of: dict[int, int] = {}
        self._frame_numbers: dict[tuple[str, str, int], int] = {}
        self._stacks_of: dict[tuple[int, ...], list[tuple[list[Any], int]]] = {}
        self._stack_numbers: dict[tuple[int, ...], int] = {}
        self._take(value)

    def facts(self) -> dict[str, Any]:
        """All but the columns, as JSON can hold it."""
        return {
            "frames": self.frames,
            "annotations": self.annotations,
            "ooms": self.ooms,
            "settings": self.settings,
            "traces": len(self.traces),
            "unknown": dict(self.unknown.most_common(_MOST_NAMES)),
            "unusable": dict(self.unusable.most_common(_MOST_NAMES)),
            "unusable_values": dict(self.unusable_values.most_common(_MOST_NAMES)),
        }

    def _take(self, value: Any) -> None:
        if type(value) is list and value and all(type(one) is dict and "blocks" in one for one in value[:8]):
            value = {"segments": value}  # What torch.cuda.memory_snapshot() returns: the segments alone.
        if type(value) is not dict:
            raise NotASnapshotError(f"it holds a {type(value).__name__}, where a snapshot is a dictionary")
        if "segments" not in value:
            keys = ", ".join(repr(str(key)[:40]) for key in list(value)[:4])
            raise NotASnapshotError(f"a dictionary without 'segments'{f' (it has {keys})' if keys else ''}")
        if len(value) <= _MOST_KEYS:
            self._count_unknown("", [value], _KNOWN_AT_TOP)
        for segment in self._rows("segments", value["segments"]):
            self._segment(segment)
        for device, trace in enumerate(self._entries("device_traces", value.get("device_traces"))):
            self._trace(device, trace)
        for row in self._rows("external_annotations", value.get("external_annotations")):
            self._annotation(row)
        self._take_settings(value.get("allocator_settings"))

    def _take_settings(self, settings: Any) -> None:
        """Keep those that are one value; containers, of which PyTorch writes some, are of no use here."""
        if settings is None:
            return
        if type(settings) is not dict or len(settings) > _MOST_KEYS:
            self.unusable_values["allocator_settings"] += 1
            return
        for key, one in settings.items():
            if type(key) is not str or not _is_setting(key, one):
                self._lose(_shown(key), "allocator_settings")
            elif type(one) in (bool, int, float, str):
                name = _writable(key)[:_MOST_TEXT]
                self.settings[name] = _writable(one)[:_MOST_TEXT] if isinstance(one, str) else one

    def _entries(self, name: str, value: Any) -> Iterable[Any]:
        """A list of no more entries than the file has room for."""
        if value is None:
            return ()
        if type(value) not in (list, tuple):
            raise NotASnapshotError(f"its '{name}' is a {type(value).__name__}, not a list")
        self._rows_left -= len(value)
        if self._rows_left < 0:
            raise NotASnapshotError("it refers to the same entries over and over")
        return value

    def _rows(self, name: str, value: Any) -> Iterable[dict[Any, Any]]:
        for row in self._entries(name, value):
            if type(row) is dict and len(row) <= _MOST_KEYS:
                yield row
            else:
                self.unusable[name] += 1

    def _segment(self, segment: dict[Any, Any]) -> None:
        self._count_unknown("segments", [segment], _KNOWN_OF_SEGMENTS)
        address, size = segment.get("address"), segment.get("total_size")
        device = segment.get("device", 0)
        if not (_is_address(address) and _is_size(size) and type(device) is int and 0 <= device <= _LAST_DEVICE):
            self.unusable["segments"] += 1
            return
        columns = self.columns["segments"]
        number = len(columns["device"])
        columns["device"].append(device)
        columns["address"].append(address)
        columns["bytes"].append(size)
        columns["stream"].append(self._number(segment, "stream", "segments"))
        columns["small"].append(self._size_class(segment.get("segment_type")))
        expandable = segment.get("is_expandable")
        if expandable is not None and type(expandable) is not bool:
            self._lose("is_expandable", "segments")
        columns["expandable"].append(1 if expandable is True else 0)
        columns["stack"].append(self._stack(segment.get("frames"), "segments"))
        following = address
        for block in self._rows("blocks", segment.get("blocks")):
            following = self._block(number, following, block)

    def _block(self, segment: int, following: int, block: dict[Any, Any]) -> int:
        """Take a block; older snapshots give no address, but each block in its place. Returns where the next begins."""
        self._count_unknown("blocks", [block], _KNOWN_OF_BLOCKS)
        address, size = block.get("address", following), block.get("size")
        state = _STATE_OF.get(_text(block.get("state")))
        if not (_is_address(address) and _is_size(size)) or state is None:
            self.unusable["blocks"] += 1
            return following + (size if _is_size(size) else 0)
        requested, frames = block.get("requested_size"), block.get("frames")
        history = block.get("history")
        if type(history) is list and history and type(history[0]) is dict:
            requested = history[0].get("real_size") if requested is None else requested
            frames = history[0].get("frames") if frames is None else frames
        if state and requested is not None and not (_is_size(requested) and requested <= size):
            self._lose("requested_size", "blocks")
            requested = None
        columns = self.columns["blocks"]
        columns["segment"].append(segment)
        columns["address"].append(address)
        columns["bytes"].append(size)
        columns["requested"].append((UNKNOWN if requested is None else requested) if state else 0)
        columns["state"].append(state)
        columns["stack"].append(self._stack(frames, "blocks"))
        return address + size

    def _trace(self, device: int, trace: Any) -> None:
        rows = self._rows("device_traces", trace)
        while some := list(islice(rows, _EVENTS_AT_ONCE)):
            self.traces.add(device)
            self._events(device, some)

    def _events(self, device: int, rows: list[dict[Any, Any]]) -> None:
        """Take some events of a device, column by column: there may be millions."""
        self._count_unknown("device_traces", rows, _KNOWN_OF_EVENTS)
        words = [row.get("action") for row in rows]
        actions = [_ACTION_OF.get(word, UNKNOWN) if type(word) is str else UNKNOWN for word in words]
        if UNKNOWN in actions:
            known = [action != UNKNOWN for action in actions]
            self.unknown.update(f"action {_shown(word)}" for word in compress(words, map(not_, known)))
            rows, actions = list(compress(rows, known)), list(compress(actions, known))
        addresses, sizes = [row.get("addr", 0) for row in rows], [row.get("size", 0) for row in rows]
        usable = [
            type(address) is int and 0 <= address <= _LAST_ADDRESS and type(size) is int and 0 <= size <= MOST_BYTES
            for address, size in zip(addresses, sizes, strict=True)
        ]
        if not all(usable):
            self.unusable["device_traces"] += usable.count(False)
            rows, actions = list(compress(rows, usable)), list(compress(actions, usable))
            addresses, sizes = list(compress(addresses, usable)), list(compress(sizes, usable))
        columns = self.columns["events"]
        first = len(columns["device"])
        self.ooms += [
            (first + place, self._number(rows[place], "device_free", "device_traces"))
            for place in compress(count(), map(_OOM.__eq__, actions))
        ]
        columns["device"].extend(array("i", [device]) * len(rows))
        columns["action"].fromlist(actions)
        columns["address"].fromlist(addresses)
        columns["bytes"].fromlist(sizes)
        columns["stream"].fromlist(self._numbers(rows, "stream", "device_traces"))
        columns["time_us"].fromlist(self._numbers(rows, "time_us", "device_traces", _LAST_MICROSECOND))
        columns["stack"].fromlist(self._stacks([row.get("frames") for row in rows], "device_traces"))

    def _annotation(self, row: dict[Any, Any]) -> None:
        self._count_unknown("external_annotations", [row], _KNOWN_OF_ANNOTATIONS)
        time, stage = row.get("time_us"), _text(row.get("stage"))
        if stage not in ("START", "END") or not _is_time(time):
            self.unusable["external_annotations"] += 1
            return
        if type(row.get("name")) is not str:
            self._lose("name", "external_annotations")
        device = UNKNOWN if row.get("device") == UNKNOWN else self._number(row, "device", "external_annotations")
        self.annotations.append((_writable(row.get("name"))[:_MOST_TEXT], stage, device, time))

    def _lose(self, name: str, where: str) -> None:
        """Count a value that is not of its type, and so unknown, in a row that is of use without it."""
        self.unusable_values[f"{name} in {where}"] += 1

    def _number(self, row: dict[Any, Any], name: str, where: str) -> int:
        return self._numbers([row], name, where)[0]

    def _numbers(self, rows: Sequence[dict[Any, Any]], name: str, where: str, most: int = _LAST_ADDRESS) -> list[int]:
        """The value of each row, from 0 to ``most``; UNKNOWN, and counted, where it is another."""
        return [
            value
            if type(value := row.get(name)) is int and 0 <= value <= most
            else self._lost(name, where)
            if value is not None
            else UNKNOWN
            for row in rows
        ]

    def _lost(self, name: str, where: str) -> int:
        self._lose(name, where)
        return UNKNOWN

    def _size_class(self, value: Any) -> int:
        """Whether a segment is for small blocks; the word is known, or counted."""
        if value in (None, "small", "large"):
            return UNKNOWN if value is None else int(value == "small")
        if type(value) is str:
            self.unknown[f"segment_type {_shown(value)}"] += 1
        else:
            self._lose("segment_type", "segments")
        return UNKNOWN

    def _count_unknown(self, where: str, rows: Sequence[dict[Any, Any]], known: frozenset[str]) -> None:
        """Count the keys that nothing is known of; rows have few shapes, so each is looked at once."""
        if known.issuperset(set().union(*rows)):
            return
        for shape, times in Counter(map(tuple, rows)).items():
            for key in shape:
                if key not in known:
                    self.unknown[f"{where}: {_shown(key)}" if where else _shown(key)] += times

    def _stacks(self, every: Iterable[Any], where: str) -> list[int]:
        """The number of each; one is often equal to the one before, as a completed free's to that of its request."""
        found: list[int] = []
        number, last = UNKNOWN, None
        for frames in every:
            if number == UNKNOWN or frames != last:
                number, last = self._stack(frames, where), frames
            found.append(number)
        return found

    def _stack(self, frames: Any, where: str) -> int:
        """The number of a stack, by content; UNKNOWN where it has no frames."""
        if type(frames) is not list or not frames:
            if frames is not None and type(frames) is not list:
                self._lose("frames", where)
            return UNKNOWN
        # Lists are rarely shared, their frames are: two from where stacks differ most lead to the few that it may be.
        length = len(frames)
        known = self._stacks_of.setdefault((length, id(frames[3 * length >> 3]), id(frames[5 * length >> 3])), [])
        for like, number_of_like in known:
            if like == frames:
                return number_of_like
        numbers = tuple([self._frame(frame) for frame in frames])
        number = self._stack_numbers.setdefault(numbers, len(self._stack_numbers))
        if number == len(self.columns["stacks"]["frames"]):
            self.columns["frames_of_stacks"]["frame"].extend(numbers)
            self.columns["stacks"]["frames"].append(length)
        if len(known) < _MOST_LIKE:
            known.append((frames, number))
        return number

    def _frame(self, frame: Any) -> int:
        if id(frame) in self._frame_of:
            return self._frame_of[id(frame)]
        if type(frame) is dict:
            line = frame.get("line")
            if line is not None and not (type(line) is int and 0 <= line < 1 << 31):
                self._lose("line", "frames")
            for name in ("name", "filename"):
                if type(frame.get(name, "")) is not str:
                    self._lose(name, "frames")
            content = (
                _writable(frame.get("name"))[:_MOST_TEXT],
                _writable(frame.get("filename"))[-_MOST_TEXT:],
                line if type(line) is int and 0 <= line < 1 << 31 else 0,
            )
        else:
            content = ("?", "", 0)
            self.unusable["frames"] += 1
        number = self._frame_numbers.get(content)
        if number is None:
            number = self._frame_numbers[content] = len(self.frames)
            self.frames.append(content)
        self._frame_of[id(frame)] = number
        return number


def _is_address(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _LAST_ADDRESS


def _is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MOST_BYTES


def _is_setting(key: str, value: Any) -> bool:
    """Whether a setting is of its type, or of one that settings have."""
    if value is None or type(value) in (dict, list, tuple):
        return value is None or key not in TYPES_OF_SETTINGS
    if type(value) is int and abs(value) > _LAST_ADDRESS:
        return False
    return type(value) in ((TYPES_OF_SETTINGS[key],) if key in TYPES_OF_SETTINGS else (bool, int, float, str))


def _is_time(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _LAST_MICROSECOND


def _text(value: Any) -> str:
    return value if type(value) is str else ""


def _writable(value: Any) -> str:
    """A text as UTF-8 can hold it: what is of no character, as in some names of files, becomes the replacement one."""
    text = _text(value)
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _shown(value: Any) -> str:
    return repr(value[:_MOST_NAMES]) if type(value) is str else type(value).__name__
