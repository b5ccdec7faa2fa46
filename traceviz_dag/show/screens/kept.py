"""Bundles kept on disk: one file each, whose arrays are mapped into memory and read as far as they are looked at.

The name of a file ends in a digest of what it was made of. A changed source has another digest, so nothing is ever
invalidated; files of former digests go when the new one is written. A file holds, one behind the other: a mark, the
length of its head, the head as JSON, and the arrays that the head names with their places.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from traceviz_dag.show.lanes.bundle import Bundle, Content
from traceviz_dag.show.lanes.lane import Lane, Mark
from traceviz_dag.show.lanes.rows import Changes, LaneRows
from traceviz_dag.show.screens.counters import CounterLevel
from traceviz_dag.show.screens.levels import Level
from traceviz_dag.show.screens.tiled import Tiled
from traceviz_dag.system.json_bytes import decoded
from traceviz_dag.system.mapped_files import mapped_bytes
from traceviz_dag.system.whole_files import remove_all_stale_temporaries, whole_file

FORMAT = 3
"""Raised whenever what a bundle holds changes."""

ENDING = ".lanes"
_MARK = b"traceviz lanes\n\0"
_ALIGNED = 64
_LENGTH_BYTES = 8
_TYPES = {letter: np.dtype(letter) for letter in "bhilq"}

Made = TypeVar("Made", LaneRows, Level, Changes, CounterLevel)

_Places = dict[str, tuple[str, int, int]]
"""Field → letter of its type, first byte, entries."""


class _KeptSlices(msgspec.Struct, frozen=True):
    kinds: tuple[str, ...]
    words: str
    rows: _Places
    levels: list[tuple[int, _Places]]


class _KeptCounter(msgspec.Struct, frozen=True):
    changes: _Places
    levels: list[tuple[int, _Places]]


class _Head(msgspec.Struct, frozen=True):
    """What a file holds; ``size``: bytes of its arrays, to which all places are relative."""

    lanes: list[Lane]
    contents: dict[str, _KeptSlices]
    counters: dict[str, _KeptCounter]
    words: dict[str, list[str | None]]
    marks: list[Mark]
    size: int


def digest_of(*parts: object) -> str:
    """A digest of what a bundle is made of, and of the format of these files."""
    return xxhash.xxh3_64_hexdigest(repr((FORMAT, *parts)).encode("utf-8", "surrogatepass"))


def place_of(folder: Path, group: str, digest: str) -> Path:
    """Where a bundle is kept."""
    return folder / f"{group.replace(':', '_') or 'root'}-{digest}{ENDING}"


def read_bundle(path: Path) -> Tiled | None:
    """A kept bundle; None where there is none, or not a whole one."""
    try:
        data = mapped_bytes(path)
    except OSError:
        return None
    start = len(_MARK) + _LENGTH_BYTES
    if len(data) < start or data[: len(_MARK)].tobytes() != _MARK:
        return None
    length = int.from_bytes(data[len(_MARK) : start].tobytes(), "little")
    base = _aligned(start + length)
    try:
        head = decoded(data[start : start + length].tobytes(), _Head)
    except msgspec.DecodeError:
        return None
    if base + head.size != len(data):
        return None
    try:
        return _mapped(head, data, base)
    except (KeyError, TypeError, ValueError):
        return None  # Its head is damaged in a way that leaves it JSON.


def _mapped(head: _Head, data: npt.NDArray[np.uint8], base: int) -> Tiled:
    found = Tiled(Bundle(head.lanes, words=head.words, marks=head.marks), {}, {})
    for key, kept in head.contents.items():
        found.bundle.contents[key] = Content(_made(LaneRows, data, base, kept.rows), kept.kinds, kept.words)
        found.levels[key] = [_made(Level, data, base, places, exponent=exponent) for exponent, places in kept.levels]
    for key, counter in head.counters.items():
        found.bundle.counters[key] = _made(Changes, data, base, counter.changes)
        levels = [_made(CounterLevel, data, base, places, exponent=exponent) for exponent, places in counter.levels]
        found.counter_levels[key] = levels
    return found


def keep_bundle(path: Path, tiled: Tiled) -> None:
    """Keep a bundle; former ones of the same group go. Where nothing can be written, nothing is kept."""
    arrays, bundle = _Arrays(), tiled.bundle
    contents = {
        key: _KeptSlices(
            content.kinds,
            content.words,
            arrays.places(content.rows),
            [(level.exponent, arrays.places(level)) for level in tiled.levels[key]],
        )
        for key, content in bundle.contents.items()
    }
    counters = {
        key: _KeptCounter(
            arrays.places(changes), [(level.exponent, arrays.places(level)) for level in tiled.counter_levels[key]]
        )
        for key, changes in bundle.counters.items()
    }
    head = msgspec.json.encode(_Head(bundle.lanes, contents, counters, bundle.words, bundle.marks, arrays.size))
    start = len(_MARK) + _LENGTH_BYTES
    # A home that this user may only read, or whose disk is full, still shows everything.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(_MARK + len(head).to_bytes(_LENGTH_BYTES, "little") + head)
            file.write(bytes(_aligned(start + len(head)) - start - len(head)))
            for piece in arrays.pieces:
                file.write(piece)
        group = path.name.rpartition("-")[0]
        for other in path.parent.glob(f"*{ENDING}"):
            if other.name.rpartition("-")[0] == group and other != path:
                other.unlink(missing_ok=True)
        # A writer that was killed before its source changed leaves one of a name that nobody writes any more.
        remove_all_stale_temporaries(path.parent)


class _Arrays:
    """Arrays one behind the other, each at a multiple of ``_ALIGNED``.

    Attributes:
        pieces: their bytes, and those between them. size: bytes of all.
    """

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []
        self.size = 0

    def places(self, holder: object) -> _Places:
        """Add the arrays among the fields of a dataclass, one that is two fields once; where each lies."""
        found: _Places = {}
        by_id: dict[int, str] = {}
        for field in fields(holder):  # type: ignore[arg-type]
            values = getattr(holder, field.name)
            if not isinstance(values, np.ndarray):
                continue
            if id(values) in by_id:
                found[field.name] = found[by_id[id(values)]]
                continue
            by_id[id(values)] = field.name
            values = np.ascontiguousarray(values)
            found[field.name] = (values.dtype.char, self.size, len(values))
            free = _aligned(self.size + values.nbytes) - self.size - values.nbytes
            self.pieces += [values.view(np.uint8).data, memoryview(bytes(free))]
            self.size += values.nbytes + free
        return found


def _made(kind: type[Made], data: npt.NDArray[np.uint8], base: int, places: _Places, **more: int) -> Made:
    """A dataclass whose arrays are mapped.

    Raises:
        KeyError, TypeError, ValueError: ``places`` are not those of such a dataclass, or not in the file.
    """
    values: dict[str, Any] = dict(more)
    for name, (letter, first, count) in places.items():
        entry = _TYPES[letter]
        taken = data[base + first : base + first + count * entry.itemsize].view(entry)
        if first < 0 or len(taken) != count:
            raise ValueError(f"{name} is not in the file")
        values[name] = taken
    return kind(**values)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
