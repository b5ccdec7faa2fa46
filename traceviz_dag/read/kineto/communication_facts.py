"""What communication kernels and operators say of themselves, as columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np

from traceviz_dag.arrays import Int64
from traceviz_dag.read.events import MISSING, CollectiveFacts
from traceviz_dag.read.kineto.header import canonical_description, canonical_ranks
from traceviz_dag.read.kineto.packing import Columns, integers
from traceviz_dag.read.kineto.schema import FACT_TEXTS, as_integer, as_text

_TEXTS: dict[str, Callable[[object], str]] = {
    **dict.fromkeys(FACT_TEXTS, as_text),
    "group_description": canonical_description,
    "group_ranks": canonical_ranks,
}
"""Columns of text → how a value becomes one; the other columns are integers."""

_COLUMNS = tuple(part.name for part in fields(CollectiveFacts))


Facts = tuple[Int64, Columns]
"""Places of rows that have facts, and these; what becomes text is the number of a value."""


class FactValues(dict[tuple[type, Any], int]):
    """Type and value, as decoded, of what becomes text → its number; of the type, as 1 equals true."""

    def __missing__(self, key: tuple[type, Any]) -> int:
        self[key] = len(self)
        return self[key]

    def numbers(self, values: Sequence[Any]) -> list[int]:
        """Numbers of ``values``; lists cannot be looked up and go by their text."""
        try:
            return [self[type(value), value] for value in values]
        except TypeError:
            return self.numbers([str(value) if isinstance(value, list | dict) else value for value in values])

    def facts(self, arguments: Mapping[int, Any]) -> Facts:
        """Facts by place, from arguments of one type."""
        return np.array([*arguments], np.int64), self._columns([*arguments.values()])

    def repeated(self, places: Int64, which: Int64, stated: Sequence[Any]) -> Facts:
        """Facts by place, of a few that come again and again: ``stated`` is what each states, None for nothing, and
        ``which`` the one at each place."""
        states = np.array([one is not None for one in stated], bool)
        kept = np.flatnonzero(states[which])
        rows = (np.cumsum(states) - 1)[which[kept]]
        columns = self._columns([one for one in stated if one is not None])
        return places[kept], {name: column[rows] for name, column in columns.items()}

    def _columns(self, arguments: Sequence[Any]) -> Columns:
        if not arguments:
            return {}
        # Only the inputs of operators state the group's address.
        names = [name for name in _COLUMNS if hasattr(arguments[0], name)]
        columns = zip(names, zip(*map(attrgetter(*names), arguments), strict=True), strict=True)
        return {name: integers(self.numbers(values) if name in _TEXTS else _whole(values)) for name, values in columns}


class FactRows:
    """Facts of some rows of a table; ``values`` numbers what becomes text."""

    def __init__(self, values: FactValues) -> None:
        self._values = values
        self._rows: list[Int64] = [np.empty(0, np.int64)]
        self._facts: dict[str, list[Int64]] = {name: [np.empty(0, np.int64)] for name in _COLUMNS}

    def add(self, rows: Int64, facts: Columns) -> None:
        """Add the facts of ``rows``, MISSING where there is no such column."""
        if not len(rows):
            return
        self._rows.append(rows)
        for name, parts in self._facts.items():
            parts.append(facts[name] if name in facts else np.full(len(rows), MISSING))

    def dense(self, strings: defaultdict[str, int]) -> tuple[Int64, CollectiveFacts]:
        """The rows that have facts, ascending, and their facts; ``strings`` maps text to code and grows as needed."""
        rows = np.concatenate(self._rows)
        order = np.argsort(rows)
        columns: Columns = {name: np.concatenate(parts)[order] for name, parts in self._facts.items()}
        values = [value for _, value in self._values]
        for name in filter(_TEXTS.__contains__, _COLUMNS):
            codes = np.zeros(len(values), np.int32)
            # Codes depend on the file alone: not on the pieces in which it was read.
            first = np.full(len(values), len(rows))
            first[columns[name][::-1]] = np.arange(len(rows) - 1, -1, -1)
            used = np.flatnonzero(first < len(rows))
            for number in used[np.argsort(first[used])].tolist():
                codes[number] = strings[_TEXTS[name](values[number])]
            columns[name] = codes[columns[name]]
        return rows[order], CollectiveFacts(**columns)

    def spread(self, count: int, strings: defaultdict[str, int]) -> CollectiveFacts:
        """One row for each of ``count`` rows of the table; those without facts have code 0 and MISSING."""
        rows, dense = self.dense(strings)
        columns: Columns = {}
        for name in _COLUMNS:
            values = getattr(dense, name)
            columns[name] = np.full(count, 0 if name in _TEXTS else MISSING, values.dtype)
            columns[name][rows] = values
        return CollectiveFacts(**columns)


def _whole(values: Sequence[Any]) -> Sequence[int]:
    """Integers as decoded, MISSING for what is none."""
    if {*map(type, values)} == {int}:
        return values
    return [value if type(value) is int else as_integer(value) for value in values]
