"""Reads the TOML file that names pairs of stages which should overlap, and JSON lines of a user's own time stamps.

::

    [[pair]]
    name = "decode beside transfer"
    stage0 = {range = "decode*", rank = 0}     # a profiler annotation or an NVTX range, by shell pattern
    stage1 = {range = "transfer*", rank = 1}

    [[pair]]
    name = "A and B"
    timestamps = "stamps.jsonl"                # {"rank": 0, "unit": 7, "tA0": 11, "tA1": 19, "tSend": 20} per line
    stage0 = {stamp = "A"}                     # runs from tA0 to tA1
    stage1 = {stamp = "B"}
    time_unit = "us"                           # of the stamps; ns by default

    [[pair]]
    name = "first stages"
    stages = [0, 1]                            # neighbouring pipeline stages

    [[pair]]
    name = "gradients"
    dimension = "dp"                           # computation against a communication dimension

Each may have ``threshold`` (0.30), ``percentile`` (50, of the scores) and ``warmup`` (first units to leave out, 1).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.regular_file import open_regular
from traceviz_dag.read.toml_file import read_toml
from traceviz_dag.vocabulary import Dimension

_LONGEST_LINE = 1 << 16
_LARGEST_NUMBER = 2**62
_SHOWN_LETTERS = 60
DEFAULT_THRESHOLD, DEFAULT_PERCENTILE, DEFAULT_WARMUP = 0.30, 50.0, 1
_TIME_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_KEYS = {
    *("name", "stages", "dimension", "stage0", "stage1", "timestamps", "time_unit"),
    *("threshold", "percentile", "warmup"),
}


@dataclass(frozen=True, slots=True)
class StageSelector:
    """Which ranges are one of the two stages.

    Attributes:
        pattern: shell pattern of their names; of stamps the stage's letter.
        rank: whose ranges; None for any.
    """

    pattern: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class NamedPair:
    """A pair that a user named; exactly one of stages, dimension and the two selectors is there.

    Attributes:
        stages: two neighbouring pipeline stages. dimension: a communication dimension.
        stage0, stage1: selectors of ranges; timestamps: the file whose stamps are the ranges, None for annotations.
        time_unit_ns: length of the unit of the stamps, ns.
        threshold: lowest score that passes; percentile: of the scores that is held against it.
        warmup: units at the beginning that are left out; pipelines know their steady units themselves.
    """

    name: str
    stages: tuple[int, int] | None = None
    dimension: str | None = None
    stage0: StageSelector | None = None
    stage1: StageSelector | None = None
    timestamps: Path | None = None
    time_unit_ns: int = 1
    threshold: float = DEFAULT_THRESHOLD
    percentile: float = DEFAULT_PERCENTILE
    warmup: int = DEFAULT_WARMUP


@dataclass(frozen=True, slots=True)
class Stamp:
    """One stage of one unit of a user's time stamps, in ns."""

    rank: int
    unit: int
    start_ns: int
    end_ns: int


def read_pairs_file(path: Path) -> tuple[NamedPair, ...]:
    """Read the pairs.

    Raises:
        BadInputError: the file cannot be read, or an entry is not one of the forms above.
    """
    document = read_toml(path)
    entries = document.get("pair")
    if not isinstance(entries, list) or not entries or set(document) != {"pair"}:
        raise BadInputError(path, "names no pairs", "add [[pair]] entries with a name, and nothing else")
    pairs = tuple(_pair(path, entry) for entry in entries)
    names = [pair.name for pair in pairs]
    if len(set(names)) < len(names):
        raise BadInputError(path, f"two pairs are called {_cut(max(names, key=names.count))}", "give each its own name")
    return pairs


def read_stamps(path: Path, letter: str, time_unit_ns: int) -> Iterator[Stamp]:
    """One stage's stamps: from ``t<letter>0`` to ``t<letter>1``, of every line that has both.

    Raises:
        BadInputError: the file cannot be read, or a line is not an object of numbers with ``rank`` and ``unit``.
    """
    decoder = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
    begin, end = f"t{letter}0", f"t{letter}1"
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            stamps = decoder.decode(line)
            if begin in stamps and end in stamps:
                at = (_whole(stamps, name, time_unit_ns) for name in (begin, end))
                yield Stamp(_whole(stamps, "rank"), _whole(stamps, "unit"), *at)
        except (msgspec.DecodeError, InvalidOperation, RecursionError, ValueError) as error:
            fault = f"line {number} is no object with rank, unit and times ({_cut(str(error))})"
            raise BadInputError(path, fault, "write one JSON object a line") from None


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, one in memory at a time; a longer one than a stamp can be comes in parts, which fail."""
    try:
        with open_regular(path) as file, io.BufferedReader(file) as lines:
            while line := lines.readline(_LONGEST_LINE):
                yield line
    except OSError as error:
        raise BadInputError(path, f"cannot be read ({error.strerror})", "give the path of a JSON-lines file") from None


def _whole(stamps: Mapping[str, Any], name: str, unit: int = 1) -> int:
    """A number of a stamp as int64, in units of ``unit``.

    Raises:
        ValueError: it is missing, no number, or out of range.
    """
    value = stamps.get(name)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError(f"{name} is missing or no number")
    # The size is looked at first: a number of a few letters can have a thousand million digits.
    if not -_LARGEST_NUMBER < value < _LARGEST_NUMBER or abs(whole := int(value * unit)) >= _LARGEST_NUMBER:
        raise ValueError(f"{name} is out of range")
    return whole


def _pair(path: Path, entry: Any) -> NamedPair:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise BadInputError(path, "a pair has no name", "give each [[pair]] a name")
    name = entry["name"]

    def fault(what: str, remedy: str) -> BadInputError:
        return BadInputError(path, f"pair {_cut(name)}: {what}", remedy)

    unknown = set(entry) - _KEYS
    if unknown:
        raise fault(f"unknown key {_cut(sorted(unknown)[0])}", f"use {', '.join(sorted(_KEYS))}")
    forms = [form for form in ("stages", "dimension", "stage0") if form in entry]
    if len(forms) != 1 or ("stage0" in entry) != ("stage1" in entry):
        raise fault("it is not one pair", "give either stages, or dimension, or stage0 and stage1")
    numbers = _numbers(entry, fault)
    if "stages" in entry:
        stages = entry["stages"]
        if not (isinstance(stages, list) and len(stages) == 2 and all(type(each) is int for each in stages)):
            raise fault(f"stages = {_cut(stages)}", "give two stage numbers, for example [0, 1]")
        if not 0 <= stages[0] < _LARGEST_NUMBER or stages[1] != stages[0] + 1:
            raise fault(f"stages {_cut(stages)} are no neighbours", "give S and S + 1")
        return NamedPair(name, stages=(stages[0], stages[1]), **numbers)
    if "dimension" in entry:
        if entry["dimension"] not in list(Dimension):
            raise fault(f"no dimension {_cut(entry['dimension'])}", f"use one of {', '.join(Dimension)}")
        return NamedPair(name, dimension=entry["dimension"], **numbers)
    stamps = entry.get("timestamps")
    unit = entry.get("time_unit", "ns")
    if not isinstance(unit, str) or unit not in _TIME_UNITS:
        raise fault(f"time_unit = {_cut(unit)}", f"use one of {', '.join(_TIME_UNITS)}")
    if stamps is not None and not isinstance(stamps, str):
        raise fault(f"timestamps = {_cut(stamps)}", "give the path of a JSON-lines file")
    selectors = [_selector(entry[key], "range" if stamps is None else "stamp", fault) for key in ("stage0", "stage1")]
    return NamedPair(
        name,
        stage0=selectors[0],
        stage1=selectors[1],
        timestamps=None if stamps is None else path.parent / stamps,
        time_unit_ns=_TIME_UNITS[unit],
        **numbers,
    )


def _numbers(entry: Mapping[str, Any], fault: Any) -> dict[str, Any]:
    numbers = {
        "threshold": entry.get("threshold", DEFAULT_THRESHOLD),
        "percentile": entry.get("percentile", DEFAULT_PERCENTILE),
        "warmup": entry.get("warmup", DEFAULT_WARMUP),
    }
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST_NUMBER:
            raise fault(f"{name} = {_cut(value)}", "give a number")
    if not 0 <= numbers["percentile"] <= 100:
        raise fault(f"percentile = {numbers['percentile']}", "give a number from 0 to 100")
    if not isinstance(numbers["warmup"], int) or numbers["warmup"] < 0:
        raise fault(f"warmup = {numbers['warmup']}", "give a whole number of units")
    return {**numbers, "threshold": float(numbers["threshold"]), "percentile": float(numbers["percentile"])}


def _selector(value: Any, key: str, fault: Any) -> StageSelector:
    if not isinstance(value, Mapping) or not isinstance(value.get(key), str) or set(value) - {key, "rank"}:
        raise fault(f"a stage is {_cut(value)}", f'write {{{key} = "...", rank = 0}}, rank where it matters')
    rank = value.get("rank")
    if rank is not None and (type(rank) is not int or not 0 <= rank < _LARGEST_NUMBER):
        raise fault(f"rank = {_cut(rank)}", "give the number of a rank")
    return StageSelector(value[key], rank)


def _cut(value: object) -> str:
    """A value for a message, not longer than a line bears; a number may have more digits than Python prints."""
    if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
        return "a number out of range"
    text = repr(value)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…"
