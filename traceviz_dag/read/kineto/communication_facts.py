"""What communication kernels and operators say of themselves, as columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import compress
from operator import attrgetter
from typing import Any

import numpy as np

from traceviz_dag.arrays import Int64
from traceviz_dag.read.events import MISSING, CollectiveFacts
from traceviz_dag.read.kineto.header import canonical_description, canonical_ranks
from traceviz_dag.read.kineto.packing import Columns, integers
from traceviz_dag.read.kineto.schema import as_integer, as_text
from traceviz_dag.read.kineto.stated_inputs import StatedCommunication

_TEXTS: dict[str, Callable[[object], str]] = {
    "collective": as_text,
    "group_name": as_text,
    "group_description": canonical_description,
    "group_ranks": canonical_ranks,
    "dtype": as_text,
    "in_split": as_text,
    "out_split": as_text,
}
"""Columns of text → how a value becomes one; the other columns are integers."""

_COLUMNS = tuple(part.name for part in fields(CollectiveFacts))


class FactRows:
    """Facts of some rows of a table."""

    def __init__(self) -> None:
        self._rows: list[Int64] = [np.empty(0, np.int64)]
        self._facts: dict[str, list[Int64]] = {name: [np.empty(0, np.int64)] for name in _COLUMNS}
        self._texts = {name: _TextCodes(as_canonical) for name, as_canonical in _TEXTS.items()}

    def add(self, rows: Int64, arguments: list[Any]) -> None:
        """Add the facts of ``rows`` from their arguments; rows without any are left out."""
        has_facts = [
            row.collective is not MISSING or row.group_name is not MISSING or type(row) is StatedCommunication
            for row in arguments
        ]
        if not any(has_facts):
            return
        told = list(compress(arguments, has_facts))
        self._rows.append(rows[np.array(has_facts)])
        # Only the inputs of operators state the group's address.
        kinds = {type(row): row for row in told}.values()
        common = [name for name in _COLUMNS if all(hasattr(row, name) for row in kinds)]
        columns = dict(zip(common, zip(*map(attrgetter(*common), told), strict=True), strict=True))
        for name in _COLUMNS:
            values = columns[name] if name in columns else [getattr(row, name, MISSING) for row in told]
            texts = self._texts.get(name)
            self._facts[name].append(integers(texts.codes(values) if texts is not None else _whole(values)))

    def rows(self) -> Int64:
        """The rows that have facts, ascending."""
        return np.concatenate(self._rows)

    def dense(self, strings: defaultdict[str, int]) -> CollectiveFacts:
        """One row for each of ``rows()``; ``strings`` maps text to code and grows as needed."""
        columns: Columns = {}
        for name in _COLUMNS:
            columns[name] = np.concatenate(self._facts[name])
            if name in self._texts:
                columns[name] = self._texts[name].shared(strings)[columns[name]]
        return CollectiveFacts(**columns)

    def spread(self, count: int, strings: defaultdict[str, int]) -> CollectiveFacts:
        """One row for each of ``count`` rows of the table; those without facts have code 0 and MISSING."""
        dense, rows = self.dense(strings), self.rows()
        columns: Columns = {}
        for name in _COLUMNS:
            values = getattr(dense, name)
            columns[name] = np.full(count, 0 if name in self._texts else MISSING, values.dtype)
            columns[name][rows] = values
        return CollectiveFacts(**columns)


def _whole(values: Sequence[Any]) -> Sequence[int]:
    """Integers as decoded, MISSING for what is none."""
    if {*map(type, values)} == {int}:
        return values
    return [value if type(value) is int else as_integer(value) for value in values]


class _TextCodes(dict[Any, int]):
    """Value as decoded → number of its canonical text in a list of its own.

    Numbers of its own, because codes must depend on the file alone: not on how many names a piece of it held.
    """

    def __init__(self, canonical: Callable[[object], str]) -> None:
        super().__init__()
        self._texts: list[str] = []
        self._canonical = canonical

    def __missing__(self, value: object) -> int:
        self[value] = len(self._texts)
        self._texts.append(self._canonical(value))
        return self[value]

    def codes(self, values: Sequence[Any]) -> list[int]:
        """Numbers of ``values``; lists cannot be looked up and go by their text."""
        try:
            return [self[value] for value in values]
        except TypeError:
            return [self[str(value) if isinstance(value, list | dict) else value] for value in values]

    def shared(self, strings: defaultdict[str, int]) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Number → code in ``strings``."""
        return np.array([strings[text] for text in self._texts], np.int32)
