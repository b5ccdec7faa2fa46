"""What a command printed, taken apart: tables with their titles, and every other line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa

_BARS = re.compile(r"[█▏▎▍▌▋▊▉]+")
_BRANCHES = re.compile(r"(?:[│├└]─? )+")
_FACTORS = {"ns": 1, "µs": 1e3, "us": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True)
class Sentence:
    """A line that may be printed, and the query that its numbers are those of.

    Attributes:
        pattern: of the whole line. A group ``k_name`` is a parameter $name of the query; ``v_name`` is held against its
            column name, ``b_name`` (there or not) against a column that is true or false.
        sql: one row; $run and $iteration are those of the last heading. Empty for lines that hold no figure.
    """

    pattern: str
    sql: str = ""


@dataclass(frozen=True)
class PrintedTable:
    """A table that may be printed.

    Attributes:
        title: pattern of its title; groups as in a sentence.
        sql: its rows, in any order.
        columns: heading → column of the query; a heading that comes again is ``heading#2``.
        key: headings that show a row.
        said: the query that the numbers of its title are those of, as in a sentence.
    """

    title: str
    sql: str
    columns: Mapping[str, str]
    key: Sequence[str]
    said: str = ""


class Source(Protocol):
    """What answers the queries of sentences."""

    def query(self, sql: str, parameters: Mapping[str, object]) -> pa.Table: ...


@dataclass(frozen=True)
class Home:
    """The tables of a home that nobody changes any more, as any DuckDB client reads them."""

    folder: Path

    def query(self, sql: str, parameters: Mapping[str, object]) -> pa.Table:
        return _answer(self.folder, sql, tuple(sorted(parameters.items())))


@cache
def _answer(home: Path, sql: str, parameters: tuple[tuple[str, object], ...]) -> pa.Table:
    # A cursor of its own, since the same names are made again in each answer.
    return _client(home).cursor().sql(sql, params=dict(parameters)).to_arrow_table()


@cache
def _client(home: Path) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(str(home / "traceviz.duckdb"), read_only=True)


@dataclass
class Reader:
    """Reads output line by line, and fails on the first line that is not so, or that nobody knows."""

    source: Source
    sentences: Sequence[Sentence]
    tables: Sequence[PrintedTable]
    place: dict[str, object] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)

    def check(self, output: str) -> None:
        lines = [_BRANCHES.sub("", _BARS.sub("", line)).strip() for line in output.splitlines()]
        lines = [line for line in lines if line]
        at = 0
        while at < len(lines):
            if at + 2 < len(lines) and set(lines[at + 2]) == {"─"}:
                end = next((n for n in range(at + 3, len(lines)) if not _is_row(lines, at + 1, n)), len(lines))
                self._table(lines[at], lines[at + 1], lines[at + 3 : end])
                at = end
            else:
                self.sentence(lines[at])
                at += 1

    def sentence(self, line: str) -> None:
        for known in self.sentences:
            match = re.fullmatch(known.pattern, line)
            if match:
                self.read.append(line)
                groups = match.groupdict()
                self._know(groups)
                if known.sql:
                    self._hold(line, known.sql, groups)
                return
        if line.endswith(": none"):
            self._table(line.removesuffix(": none"), "", [])
            return
        assert not re.search(r"\d", line), f"nobody knows whether this is so: {line!r}"

    def _know(self, groups: Mapping[str, str | None]) -> None:
        self.place |= {name[2:]: _key(text) for name, text in groups.items() if name[:2] == "k_" and text}

    def _hold(self, line: str, sql: str, groups: Mapping[str, str | None]) -> None:
        rows = self.query(sql)
        assert len(rows) == 1, f"{line!r}: {len(rows)} rows"
        for name, text in groups.items():
            if name[:2] == "v_" and text is not None:
                assert_same(text, rows[0][name[2:]], f"{name[2:]} of {line!r}")
            if name[:2] == "b_":
                assert (text is not None) == bool(rows[0][name[2:]]), f"{name[2:]} of {line!r}: {rows[0]}"

    def _table(self, title: str, header: str, lines: Sequence[str]) -> None:
        for known in self.tables:
            match = re.fullmatch(known.title, title)
            if match:
                break
        else:
            raise AssertionError(f"nobody knows the table {title!r}")
        self._know(match.groupdict())
        if known.said:
            self._hold(title, known.said, match.groupdict())
        names: list[str] = []
        for name in re.split(r"\s{2,}", header):
            names.append(
                name if name not in names else f"{name}#{2 + sum(each.startswith(f'{name}#') for each in names)}"
            )
        rows = [dict(zip(names, map(_raw, _cells(line, len(names))), strict=True)) for line in lines]
        expected = self.query(known.sql)
        keys = [name for name in known.key if name in names]
        by_key = {tuple(_raw(_shown(row[known.columns[name]])) for name in keys): row for row in expected}
        assert len(by_key) == len(expected), f"{title!r}: rows that nothing distinguishes by {keys}"
        assert {tuple(row[name] for name in keys) for row in rows} == set(by_key), title
        assert len(rows) == len(expected), title
        for row in rows:
            same = by_key[tuple(row[name] for name in keys)]
            for name, text in row.items():
                assert_same(text, same[known.columns[name]], f"{name} of {row} in {title!r}")
        self.read.append(title)

    def query(self, sql: str) -> list[dict[str, object]]:
        wanted = {name: value for name, value in self.place.items() if re.search(rf"\${name}\b", sql)}
        return self.source.query(sql, wanted).to_pylist()


_VALUES = {
    **{name.upper(): name for name in ("tp", "cp", "ep", "etp", "dp", "edp", "pp")},
    **{"gradient norm": "grad_norm", "recomputation": "bwd_computation_recompute"},
    **{"communication of recomputation": "bwd_communication_recompute", "late begin": "late_begin"},
    **{"other ranks": "other_ranks", "launch lag": "launch", "unexplained lag": "unexplained"},
    **{f"{short} communication": f"{name}_communication" for short, name in (("PP", "pp"), ("DP", "dp"))},
    **{
        f"{long} {kind}": f"{short}_{kind}"
        for long, short in (("forward", "fwd"), ("backward", "bwd"), ("other", "other"), ("optimizer", "optimizer"))
        for kind in ("computation", "communication")
    },
}
"""Words → the value in the tables."""


def assert_same(text: str, value: object, what: str) -> None:
    """A printed number is the value, to its last digit; a printed text is the value."""
    if value is None or text == "–":
        assert text == "–" and value is None, f"{what}: {text} for {value}"
        return
    if isinstance(value, str | bool):
        assert _raw(text) == _raw(str(value)), f"{what}: {text} for {value}"
        return
    match = re.fullmatch(r"([+-]?)([\d,]+)(?:\.(\d+))?\s*(%|ns|µs|us|ms|s)?", text.replace("−", "-"))
    assert match, f"{what}: {text!r} is no number"
    sign, whole, decimals, unit = match.groups()
    shown = float(f"{sign}{whole.replace(',', '')}.{decimals or 0}")
    wanted = float(value) * 100 if unit == "%" else float(value) / _FACTORS.get(unit or "", 1)
    assert abs(shown - wanted) <= 0.501 * 10 ** -len(decimals or ""), f"{what}: {text} for {value}"


def _is_row(lines: Sequence[str], header: int, at: int) -> bool:
    """Whether a line belongs to the table above it: it has as many cells, and no table begins with it."""
    count = len(re.split(r"\s{2,}", lines[header]))
    begins = at + 2 < len(lines) and set(lines[at + 2]) == {"─"}
    return not begins and len(re.split(r"\s{2,}", lines[at])) == count


def _cells(line: str, count: int) -> list[str]:
    cells = re.split(r"\s{2,}", line)
    assert len(cells) == count, f"{line!r} has not {count} cells"
    return cells


def _raw(text: str) -> str:
    """A text of a table or sentence as the tables of the home have it."""
    return _VALUES.get(text, text)


def _shown(value: object) -> str:
    return "–" if value is None else str(value)


def _key(text: str) -> object:
    return int(text) if re.fullmatch(r"-?\d+", text) else text
