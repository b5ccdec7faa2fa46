"""The rules that give names a meaning: one readable table (``rules.toml``), which a user extends with a file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase, translate
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import CPU_OP, PYTHON_FUNCTION, USER_ANNOTATION
from traceviz_dag.read.toml_file import parse_toml, read_text
from traceviz_dag.vocabulary import Dimension, Kind, Phase

ROW_KINDS = {"cpu_op": CPU_OP, "python_function": PYTHON_FUNCTION, "user_annotation": USER_ANNOTATION}
OPENS = ("forward_step", "backward_step", "combined_step", "schedule")
KERNEL_OPENS = ("optimizer",)

_KEPT_NAMES, _LONGEST_KEPT = 1 << 14, 1000
"""So many names, of so many characters at most, are matched once: those of a job's ranks are nearly all the same."""

_LINE_NUMBER = re.compile(r"\(\d+\): ")


@dataclass(frozen=True, slots=True)
class FrameRule:
    """What a host row says of the launches below it; see the head of ``rules.toml`` for each field."""

    name: str
    patterns: tuple[str, ...]
    on: tuple[str, ...]
    phase: Phase | None = None
    weak: bool = False
    opens: str | None = None
    dimension: Dimension | None = None
    overrides: tuple[str, ...] = ()
    collectives: tuple[tuple[str, Dimension], ...] = ()
    among: tuple[Dimension, ...] = ()
    maxima: tuple[Dimension, ...] = ()
    role: str | None = None
    outermost: bool = False
    outranks: tuple[str, ...] = ()

    @property
    def tells_dimension(self) -> bool:
        """Whether the rule says what communication below the frame serves or carries."""
        return bool(self.dimension or self.collectives or self.among or self.role)

    @property
    def only_among(self) -> bool:
        """Whether all that the rule says of communication is a choice between several dimensions."""
        return bool(self.among) and not (self.dimension or self.collectives or self.role)

    def dimension_of(self, collective: str) -> Dimension | None:
        """What a communication of that name serves below the frame, or None where the rule does not say."""
        return _by_collective(self.collectives, collective) or self.dimension


@dataclass(frozen=True, slots=True)
class KernelRule:
    """What a kernel's own name says of it; see the head of ``rules.toml``."""

    name: str
    patterns: tuple[str, ...]
    kind: Kind
    role: str | None = None
    dimension: Dimension | None = None
    among: tuple[Dimension, ...] = ()
    phase: Phase | None = None
    opens: str | None = None


@dataclass(frozen=True, slots=True)
class GroupRule:
    """What collectives on a group of one dimension serve, or which it has at all; see the head of ``rules.toml``."""

    name: str
    dimension: Dimension
    collectives: tuple[tuple[str, Dimension], ...] = ()
    only: tuple[str, ...] = ()


class _Entry(msgspec.Struct):
    """The types of what a rule may say; which of it a rule of one kind may say is checked where that is made."""

    name: str = ""
    patterns: list[str] = []
    on: list[str] = []
    phase: str = ""
    weak: bool = False
    opens: str = ""
    dimension: str = ""
    overrides: list[str] = []
    collectives: dict[str, str] = {}
    among: list[str] = []
    maxima: list[str] = []
    role: str = ""
    outermost: bool = False
    outranks: list[str] = []
    kind: str = ""
    only: list[str] = []


class _Document(msgspec.Struct):
    frame: list[_Entry] = []
    kernel: list[_Entry] = []
    group: list[_Entry] = []


@dataclass(frozen=True, slots=True)
class Rules:
    """The whole table, in order of precedence.

    Attributes:
        digest: changes whenever a rule means something else, and not with comments or layout of its file; the lake
            records it with what the rules classified.
    """

    frames: tuple[FrameRule, ...]
    kernels: tuple[KernelRule, ...]
    groups: tuple[GroupRule, ...]
    digest: str

    def of_group(self, dimension: Dimension, collective: str) -> tuple[Dimension, str] | None:
        """(dimension, rule) of a collective on a group of that dimension, where a rule says other than the group's."""
        for rule in self.groups:
            told = _by_collective(rule.collectives, collective) if rule.dimension is dimension else None
            if told is not None:
                return told, rule.name
        return None

    def can_carry(self, dimension: Dimension, collective: str) -> bool:
        """Whether groups of that dimension have such a collective; they may unless a rule lists others only."""
        listed = [rule.only for rule in self.groups if rule.dimension is dimension and rule.only]
        return all(any(fnmatchcase(collective.lower(), pattern) for pattern in only) for only in listed)

    def match_frames(self, names: Sequence[str], row_kind: int, *, outermost: bool = True) -> list[int]:
        """For each name the index of the first frame rule that applies to rows of that kind, or -1.

        Args:
            outermost: whether no operator lies around the rows; rules that ask for that are left out otherwise.
        """
        applicable = [
            (index, rule.patterns)
            for index, rule in enumerate(self.frames)
            if row_kind in {ROW_KINDS[kind] for kind in rule.on} and (outermost or not rule.outermost)
        ]
        return _first_match(names, applicable, without_line_number)

    def match_kernels(self, names: Sequence[str]) -> list[int]:
        """For each kernel name the index of the first kernel rule that matches, or -1."""
        return _first_match(names, [(index, rule.patterns) for index, rule in enumerate(self.kernels)])


def without_line_number(name: str) -> str:
    """A Python frame's name without its line number, which drifts between versions."""
    return _LINE_NUMBER.sub(": ", name, count=1)


def load_rules(user_file: Path | None = None) -> Rules:
    """The built-in rules, with those of a user's TOML file before them.

    Raises:
        BadInputError: the file is missing, not TOML, or a rule in it is malformed.
    """
    frames, kernels, groups = _built_in()
    if user_file is not None:
        document = parse_toml(read_text(user_file), user_file)
        try:
            msgspec.convert(document, _Document)
        except msgspec.ValidationError as error:
            raise BadInputError(user_file, str(error), "see the head of the built-in rules.toml") from None
        own = _parse(document, user_file)
        frames, kernels, groups = (*own[0], *frames), (*own[1], *kernels), (*own[2], *groups)
    meaning = repr((frames, kernels, groups)).encode()
    return Rules(frames, kernels, groups, xxhash.xxh3_64_hexdigest(meaning))


@cache
def _built_in() -> tuple[tuple[FrameRule, ...], tuple[KernelRule, ...], tuple[GroupRule, ...]]:
    """The built-in rules."""
    text = resources.files(__package__).joinpath("rules.toml").read_text(encoding="utf-8")
    frames, kernels, groups = _parse(tomllib.loads(text), "built-in rules.toml")
    return tuple(frames), tuple(kernels), tuple(groups)


def _first_match(
    names: Iterable[str], rules: Iterable[tuple[int, tuple[str, ...]]], told: Callable[[str], str] = str
) -> list[int]:
    """For each name the number of the first rule that matches what is told of it, or -1."""
    first = _first_of(tuple(rules), told)
    return [first(name) for name in names]


@lru_cache(maxsize=64)
def _first_of(rules: tuple[tuple[int, tuple[str, ...]], ...], told: Callable[[str], str]) -> Callable[[str], int]:
    """A name → the number of the first rule that matches, in one pass of the regex engine, a group per rule; or -1."""
    groups = [f"(?P<r{index}>{'|'.join(translate(pattern) for pattern in patterns)})" for index, patterns in rules]
    # Without rules, what matches nothing.
    expression = re.compile("|".join(groups) or r"(?!)")
    kept: dict[str, int] = {}

    def first(name: str) -> int:
        number = kept.get(name)
        if number is None:
            match = expression.match(told(name))
            number = -1 if match is None else int(str(match.lastgroup)[1:])
            if len(name) <= _LONGEST_KEPT and len(kept) < _KEPT_NAMES:
                kept[name] = number
        return number

    return first


def _by_collective(collectives: Iterable[tuple[str, Dimension]], name: str) -> Dimension | None:
    return next((dimension for pattern, dimension in collectives if fnmatchcase(name.lower(), pattern)), None)


def _parse(
    document: Mapping[str, Any], source: Path | str
) -> tuple[list[FrameRule], list[KernelRule], list[GroupRule]]:
    unknown = set(document) - {"frame", "kernel", "group"}
    if unknown:
        raise BadInputError(source, f"unknown section {sorted(unknown)}", "use [[frame]], [[kernel]] and [[group]]")
    frames = [_frame_rule(entry, source) for entry in document.get("frame", [])]
    kernels = [_kernel_rule(entry, source) for entry in document.get("kernel", [])]
    groups = [_group_rule(entry, source) for entry in document.get("group", [])]
    return frames, kernels, groups


def _frame_rule(entry: Mapping[str, Any], source: Path | str) -> FrameRule:
    values = _checked(entry, FrameRule, source)
    on = tuple(values.get("on", ROW_KINDS))
    if set(on) - set(ROW_KINDS):
        raise BadInputError(source, f"rule {entry['name']!r}: on = {list(on)}", f"use {list(ROW_KINDS)}")
    if values.get("opens") not in (None, *OPENS):
        raise BadInputError(source, f"rule {entry['name']!r}: opens = {values['opens']!r}", f"use one of {list(OPENS)}")
    values["on"] = on
    values["phase"] = _member(values.get("phase"), Phase, entry, source)
    values["dimension"] = _member(values.get("dimension"), Dimension, entry, source)
    values["overrides"] = tuple(values.get("overrides", ()))
    values["collectives"] = _collectives(entry, source)
    values["among"] = _dimensions(entry, "among", source)
    values["maxima"] = _dimensions(entry, "maxima", source)
    values["outranks"] = tuple(values.get("outranks", ()))
    return FrameRule(**values)


def _kernel_rule(entry: Mapping[str, Any], source: Path | str) -> KernelRule:
    values = _checked(entry, KernelRule, source)
    values["kind"] = _member(values.get("kind", "communication"), Kind, entry, source)
    values["dimension"] = _member(values.get("dimension"), Dimension, entry, source)
    values["among"] = _dimensions(entry, "among", source)
    values["phase"] = _member(values.get("phase"), Phase, entry, source)
    if values.get("opens") not in (None, *KERNEL_OPENS):
        raise BadInputError(source, f"rule {entry['name']!r}: opens = {values['opens']!r}", f"use {list(KERNEL_OPENS)}")
    return KernelRule(**values)


def _group_rule(entry: Mapping[str, Any], source: Path | str) -> GroupRule:
    if set(entry) not in ({"name", "dimension", "collectives"}, {"name", "dimension", "only"}):
        remedy = "a [[group]] has a name, a dimension, and collectives or only"
        raise BadInputError(source, f"rule {dict(entry)!r}", remedy)
    dimension = _member(entry["dimension"], Dimension, entry, source)
    return GroupRule(entry["name"], dimension, _collectives(entry, source), tuple(entry.get("only", ())))


def _collectives(entry: Mapping[str, Any], source: Path | str) -> tuple[tuple[str, Dimension], ...]:
    return tuple(
        (pattern, _member(dimension, Dimension, entry, source))
        for pattern, dimension in dict(entry.get("collectives", {})).items()
    )


def _dimensions(entry: Mapping[str, Any], key: str, source: Path | str) -> tuple[Dimension, ...]:
    return tuple(_member(dimension, Dimension, entry, source) for dimension in entry.get(key, ()))


def _checked(entry: Mapping[str, Any], rule_type: type, source: Path | str) -> dict[str, Any]:
    allowed = {field.name for field in fields(rule_type)}
    if "name" not in entry or not entry.get("patterns") or not isinstance(entry["patterns"], list):
        raise BadInputError(source, f"rule {dict(entry)!r} lacks a name or patterns", "give it both")
    if set(entry) - allowed:
        raise BadInputError(
            source, f"rule {entry['name']!r} has unknown keys {sorted(set(entry) - allowed)}", f"use {sorted(allowed)}"
        )
    return {**entry, "patterns": tuple(entry["patterns"])}


def _member(value: str | None, enum: Any, entry: Mapping[str, Any], source: Path | str) -> Any:
    if value is None:
        return None
    try:
        return enum(value)
    except ValueError:
        words = [member.value for member in enum]
        raise BadInputError(
            source, f"rule {entry['name']!r}: {value!r} is not a {enum.__name__.lower()}", f"use one of {words}"
        ) from None
