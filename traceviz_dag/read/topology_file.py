"""Reads ``unique_parallel_groups_*``: process groups as TraceViz's patch (text) or our plugin (JSON) writes them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import ProcessGroup
from traceviz_dag.read.limits import MOST_RANKS
from traceviz_dag.read.regular_file import open_regular
from traceviz_dag.read.secrets import masked

_STEM = "unique_parallel_groups"
_TEXT, _JSON = ".txt", ".json"
_TIME_STAMP = re.compile(r"\d{8}_?\d{6}")

Ranks = tuple[int, ...]

_REMEDY = "copy the file again from the job's tensorboard folder, or remove it: trace headers also name the groups"
_LARGEST_FILE_BYTES = 256 * 2**20
_LINE = re.compile(r"([^\r\n]*)(?:\r\n?|\n|\Z)")
_MOST_LINES = 8 * MOST_RANKS
"""As many as there are groups of one rank in all dimensions of the largest job."""

_SIZE = re.compile(r"(?P<name>TP|PP|DP|EP|CP|ETP|EDP|WORLD)(?:\s*\([^)]*\))?\s+SIZE\s*:\s*(?P<value>.*)", re.IGNORECASE)
_HEADING = re.compile(
    r"(?:UNIQUE\s+)?(?:[A-Z][A-Z &/-]*\s)?\(?(?P<name>TP|PP|DP|EP|CP|ETP|EDP)\)?(?:\s+PARALLEL)?\s+GROUPS\s*:?",
    re.IGNORECASE,
)
_WORDED_HEADING = re.compile(
    r"(?:UNIQUE\s+)?(?P<word>TENSOR|PIPELINE|DATA|EXPERT|CONTEXT)(?:\s+MODEL)?(?:\s+PARALLEL)?\s+GROUPS\s*:?",
    re.IGNORECASE,
)
_FULL_MODEL_HEADING = re.compile(r"FULL\s+MODEL\s+RANK\s+GROUPS\b.*", re.IGNORECASE)
_OTHER_HEADING = re.compile(r"[A-Z][A-Z ()&/-]*\s(?:GROUPS|STATISTICS|CONFIGURATION)\b.*|STATISTICS")
_GROUP = re.compile(r"(?:[A-Za-z]+\s+)?Group\s+\d+\s*:?(?P<ranks>.*)", re.IGNORECASE)
_TOTAL = re.compile(r"Total\s+(?:(?:\w+\s+)?groups|model\s+replicas\b[^:]*)\s*:\s*(?P<value>\d{0,9})", re.IGNORECASE)
_STATISTIC = re.compile(r"(?P<name>Total|Valid|Error)\s+Ranks\s*:\s*(?P<value>\d{1,9})", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,9}")
_WORDS = {"tensor": "tp", "pipeline": "pp", "data": "dp", "expert": "ep", "context": "cp"}
_FULL_MODEL = "full model"
_MOST_SHOWN = 40


@dataclass(frozen=True, slots=True)
class TopologyFile:
    """What the file states, unjudged.

    Attributes:
        sizes: tp, pp, cp, ep, dp, world ... → size, those that are given.
        groups: tp, pp, dp, ep, cp ... → groups in file order; the patch sorts the ranks inside a group.
        full_model: the complete models; the patch's are right only for dense models in the default order.
        described: every group of the job with its name and description, members in group order; a text file has none.
    """

    path: Path
    sizes: Mapping[str, int]
    groups: Mapping[str, tuple[Ranks, ...]]
    full_model: tuple[Ranks, ...] = ()
    described: tuple[ProcessGroup, ...] = ()


def is_topology_name(name: str) -> bool:
    """Whether a file is a topology file, by its name."""
    return name.startswith(_STEM) and name.endswith((_TEXT, _JSON))


def find_topology_file(folder: Path) -> Path | None:
    """The newest topology file in a folder; None without one, and in a folder that cannot be listed.

    The newest by the time stamp in the name; files without one come before all others, by their time of change. Of a
    JSON and a text file with one stamp the JSON file is taken: it shows more.
    """

    def age(file: Path) -> tuple[str, bool, int]:
        stamp = _TIME_STAMP.search(file.name)
        return (stamp[0].replace("_", "") if stamp else "", _is_json(file), file.stat().st_mtime_ns)

    try:
        files = [file for file in folder.iterdir() if is_topology_name(file.name) and file.is_file()]
    except OSError:
        return None
    return max(files, key=age, default=None)


def read_topology_file(path: Path) -> TopologyFile:
    """Read and check one file.

    Raises:
        BadInputError: it cannot be read, is cut short, garbled or contradicts itself.
    """
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _LARGEST_FILE_BYTES:
                raise BadInputError(path, f"larger than {_LARGEST_FILE_BYTES >> 20} MiB, so no topology file", _REMEDY)
            text = file.read(_LARGEST_FILE_BYTES).decode("utf-8")
    except OSError as error:
        raise BadInputError(path, f"cannot be read ({error.strerror})", _REMEDY) from error
    except UnicodeDecodeError as error:
        raise BadInputError(path, f"not text (byte {error.start} is not UTF-8)", _REMEDY) from error
    return parse_topology_json(text, path) if _is_json(path) else parse_topology(text, path)


def _is_json(path: Path) -> bool:
    return path.name.endswith(_JSON)


class _JsonGroup(msgspec.Struct):
    ranks: tuple[int, ...]
    name: str | None = None
    description: str | None = None


class _JsonTopology(msgspec.Struct):
    format: Literal["traceviz topology"]
    version: Literal[1]
    world_size: int
    groups: tuple[_JsonGroup, ...]
    sizes: dict[str, int]
    replicas: tuple[Ranks, ...]
    complete: bool


def parse_topology_json(text: str, path: Path) -> TopologyFile:
    """Parse the JSON file of our capture plugin; ``path`` is named in errors.

    A file that says itself that it lacks groups gives its world size alone.

    Raises:
        BadInputError: the text is cut short, of another form or contradicts itself.
    """
    try:
        stated = msgspec.json.decode(text, type=_JsonTopology)
    except RecursionError:
        raise BadInputError(path, "no topology file: it is nested too deeply", _REMEDY) from None
    except msgspec.DecodeError as error:
        raise BadInputError(path, f"no topology file, or cut short ({error})", _REMEDY) from error
    _check_world(stated.world_size, path)
    _check_sizes(stated.sizes, path)
    for group in (*stated.groups, *(_JsonGroup(ranks) for ranks in stated.replicas)):
        outside = [rank for rank in group.ranks if not 0 <= rank < stated.world_size]
        if outside or len(set(group.ranks)) < len(group.ranks):
            label = masked(group.description or group.name or "a group")[:_MOST_SHOWN]
            fault = f"garbled: {label} of {list(group.ranks)[:16]} in a world of {stated.world_size}"
            raise BadInputError(path, fault, _REMEDY)
    if not stated.complete:
        return TopologyFile(path=path, sizes={"world": stated.world_size}, groups={})
    return TopologyFile(
        path=path,
        sizes={**stated.sizes, "world": stated.world_size},
        groups={},
        full_model=stated.replicas,
        described=tuple(
            ProcessGroup(_text(group.name), _text(group.description), group.ranks, len(group.ranks))
            for group in stated.groups
        ),
    )


def _text(stated: str | None) -> str | None:
    return None if stated is None else masked(stated)


def parse_topology(text: str, path: Path) -> TopologyFile:
    """Parse a file's text; ``path`` is named in errors.

    Raises:
        BadInputError: the text is cut short, garbled or contradicts itself.
    """
    sizes: dict[str, int] = {}
    sections: dict[str, _Section] = {}
    current: _Section | None = None
    statistics: dict[str, int] = {}
    for number, line in _lines(text, path):
        if (size := _SIZE.fullmatch(line)) is not None:
            sizes[size["name"].lower()] = _size(size["value"], path, number)
        elif (group := _GROUP.fullmatch(line)) is not None:
            if current is not None:
                current.groups.append(_ranks(group["ranks"], path, number))
        elif (total := _TOTAL.fullmatch(line)) is not None:
            if current is not None and total["value"]:
                current.total = int(total["value"])
        elif (statistic := _STATISTIC.fullmatch(line)) is not None:
            statistics[statistic["name"].lower()] = int(statistic["value"])
        elif (name := _heading(line)) is not None:
            current = sections.setdefault(name, _Section()) if name else None
    _check_world(sizes.get("world", 1), path)
    _check_complete(sizes, sections, path, counted=bool(statistics))
    for name, section in sections.items():
        _check_groups(name, section, path, None if statistics.get("error") else sizes.get("world"))
    full_model = sections.pop(_FULL_MODEL, _Section())
    return TopologyFile(
        path=path,
        sizes=sizes,
        groups={name: tuple(section.groups) for name, section in sections.items() if section.groups},
        full_model=tuple(full_model.groups),
    )


@dataclass(slots=True)
class _Section:
    """The groups under one heading and the number of them that the file states below."""

    groups: list[Ranks] = field(default_factory=list)
    total: int | None = None


def _lines(text: str, path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(_LINE.finditer(text), start=1):
        if number > _MOST_LINES:
            raise BadInputError(path, f"more than {_MOST_LINES:,} lines, so no topology file", _REMEDY)
        stripped = line[1].strip()
        if stripped and not set(stripped) <= {"-", "="}:
            yield number, stripped


def _heading(line: str) -> str | None:
    """The section that a line opens: a dimension, ``full model``, or "" for one not read; None for no heading."""
    if _FULL_MODEL_HEADING.fullmatch(line):
        return _FULL_MODEL
    if (match := _HEADING.fullmatch(line)) is not None:
        return match["name"].lower()
    if (match := _WORDED_HEADING.fullmatch(line)) is not None:
        return _WORDS[match["word"].lower()]
    return "" if _OTHER_HEADING.fullmatch(line) else None


def _size(text: str, path: Path, number: int) -> int:
    if not _NUMBER.fullmatch(text.strip()) or int(text) < 1:
        raise BadInputError(path, f"line {number} gives no size: {masked(text.strip())[:_MOST_SHOWN]!r}", _REMEDY)
    return int(text)


def _ranks(text: str, path: Path, number: int) -> Ranks:
    inner = text.strip()
    parts = [part.strip() for part in inner[1:-1].split(",")]
    if not (inner.startswith("[") and inner.endswith("]") and all(map(_NUMBER.fullmatch, parts))):
        raise BadInputError(
            path, f"line {number} is cut or garbled: no list of ranks in {masked(inner)[:_MOST_SHOWN]!r}", _REMEDY
        )
    return tuple(int(part) for part in parts)


def _check_world(world: int, path: Path) -> None:
    """Refuse a number of ranks that no job has."""
    if not 0 < world <= MOST_RANKS:
        raise BadInputError(path, f"garbled: a world of {world} ranks, which no job has", _REMEDY)


def _check_sizes(sizes: Mapping[str, int], path: Path) -> None:
    """Refuse sizes of groups that no job has."""
    for name, size in sizes.items():
        if not 0 < size <= MOST_RANKS:
            raise BadInputError(
                path, f"garbled: {masked(name)[:_MOST_SHOWN]} of size {size}, which no job has", _REMEDY
            )


def _check_complete(sizes: Mapping[str, int], sections: Mapping[str, _Section], path: Path, *, counted: bool) -> None:
    """Refuse a file that breaks off; one that counts its ranks or groups counts all of them."""
    if not any(section.groups for section in sections.values()):
        raise BadInputError(path, "lists no process groups: not a topology file, or cut short", _REMEDY)
    counted = counted or any(section.total is not None for section in sections.values())
    for name in ("tp", "pp", "dp"):
        if name not in sections and (counted or sizes.get(name, 1) > 1):
            raise BadInputError(path, f"cut short: no {name.upper()} groups", _REMEDY)
    for name, section in sections.items():
        if counted and section.total is None:
            raise BadInputError(path, f"cut short inside the {name.upper()} groups", _REMEDY)


def _check_groups(name: str, section: _Section, path: Path, world: int | None) -> None:
    """Refuse groups that cannot be; ``world`` is None where it is unknown or ranks are said to have failed."""
    label = f"{name.upper()} groups"
    if section.total is not None and section.total != len(section.groups):
        fault = f"cut or garbled: {section.total} {label} are announced, {len(section.groups)} listed"
        raise BadInputError(path, fault, _REMEDY)
    members = Counter(rank for group in section.groups for rank in group)
    repeated = [rank for rank, count in members.items() if count > 1]
    if repeated:
        raise BadInputError(path, f"garbled: rank {repeated[0]} is in two {label}", _REMEDY)
    if world is not None and max(members, default=0) >= world:
        raise BadInputError(path, f"garbled: rank {max(members)} in a world of {world}", _REMEDY)
    if world is not None and len(members) < world:
        fault = f"cut or garbled: the {label} hold {len(members)} of {world} ranks"
        raise BadInputError(path, fault, _REMEDY)
