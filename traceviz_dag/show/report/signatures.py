"""What many kernels have in common, kept once: name, category, evidence, module, stream, size of the grid and so on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import codes, numbers
from traceviz_dag.arrays import NONE, Int64, Integers, number_groups
from traceviz_dag.printable import printable
from traceviz_dag.show.lanes.names import NO_NAME, function_name, shortened

COLUMNS = (
    "name",
    "kind",
    "phase",
    "dimension",
    "category",
    "phase_evidence",
    "phase_rule",
    "dimension_evidence",
    "dimension_rule",
    "dimension_candidates",
    "role",
    "chunk",
    "layer",
    "module",
    "operator",
    "launch_name",
    "device",
    "stream",
    "collective",
    "group_name",
    "group_description",
    "group_size",
    "dtype",
    "in_elements",
    "bytes",
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "registers_per_thread",
    "shared_memory_bytes",
)
"""Columns of table ``kernels`` that a signature is made of."""


@dataclass(slots=True)
class Signatures:
    """All combinations of these columns that occurred, numbered as they came.

    Attributes:
        columns: what a signature is made of.
        values: per column its distinct values, as they came; None is a value.
        rows: per signature and column the place in ``values``.
    """

    columns: tuple[str, ...] = COLUMNS
    values: dict[str, list[str | int | None]] = field(init=False)
    rows: list[tuple[int, ...]] = field(default_factory=list)
    _places: dict[str, dict[str | int | None, int]] = field(init=False)
    _numbers: dict[tuple[int, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = {name: [] for name in self.columns}
        self._places = {name: {} for name in self.columns}

    def of(self, kernels: pa.Table, lengths: Sequence[int] = ()) -> Int64:
        """The number of each kernel's signature.

        Args:
            lengths: of the parts that the table consists of; they are numbered as if they were given one by one, which
                takes several times as long. By default it is one part.
        """
        if not kernels.num_rows:
            return np.empty(0, np.int64)
        part = np.repeat(np.arange(max(len(lengths), 1)), lengths or [kernels.num_rows])
        keys, columns = [], []
        for name in self.columns:
            code, key, values = _coded(kernels, name, part)
            self._place_new(name, values, code, (part, key))
            columns.append((code, np.array([self._places[name][value] for value in (*values, None)])))
            # Columns without values, a third of them, tell nothing apart.
            keys += [key] if values else []
        first, group = number_groups(part, *keys)
        found = np.stack([places[code[first]] for code, places in columns], axis=1)
        mine = np.empty(len(first), np.int64)
        for place, signature in enumerate(map(tuple, found.tolist())):
            mine[place] = self._numbers.setdefault(signature, len(self._numbers))
            if len(self._numbers) > len(self.rows):
                self.rows.append(signature)
        return mine[group]

    def document(self) -> dict[str, Any]:
        """As the page's script reads them: ``signatures`` (fields, values by field, rows), and ``short_names``."""
        values = [self.values[name] for name in self.columns]
        short = [NO_NAME if name is None else function_name(str(name)) for name in self.values["name"]]
        return {"signatures": {"fields": self.columns, "values": values, "rows": self.rows}, "short_names": short}

    def _place_new(
        self, name: str, values: Sequence[str | int | None], code: Integers, order: tuple[Int64, Integers]
    ) -> None:
        """Take up the values of a column that are new, as they come in the parts; None behind those of the first."""
        known = self._places[name]
        if None in known and all(value in known for value in values):
            return
        part, key = order
        first, _ = number_groups(part, key)
        there = first[code[first] >= 0]
        came = code[there].tolist()
        came.insert(int(np.count_nonzero(part[there] == part[0])), NONE)
        for value in (None if each == NONE else values[each] for each in came):
            if value not in known:
                shown = shortened(printable(value)) if isinstance(value, str) else value
                if shown not in known:
                    known[shown] = len(self.values[name])
                    self.values[name].append(shown)
                known[value] = known[shown]


def _coded(kernels: pa.Table, name: str, part: Int64) -> tuple[Integers, Integers, Sequence[Any]]:
    """A column as codes into its distinct values, and as what orders the values of a part: texts by the alphabet,
    numbers as they come. NULL is -1, which picks the last entry of what follows them."""
    column = kernels[name]
    if not pa.types.is_integer(column.type) or column.null_count == len(column):
        places, names = codes(kernels, name)
        return places, places, names
    encoded = column.combine_chunks().dictionary_encode()
    code, values = numbers(encoded.indices), encoded.dictionary.to_pylist()
    if len(values) == 1 or part[-1] == 0:
        return code, code, values
    first, group = number_groups(part, code)
    came = np.empty(len(first), np.int64)
    came[np.argsort(first)] = np.arange(len(first))
    before = np.searchsorted(part[first], part[first])
    return code, np.where(code < 0, NONE, (came - before)[group]), values
