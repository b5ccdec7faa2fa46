"""What many kernels have in common, kept once: name, category, evidence, module, stream, size of the grid and so on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import codes, numbers
from traceviz_dag.arrays import Int64, Integers, number_groups
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

    def of(self, kernels: pa.Table) -> Int64:
        """The number of each kernel's signature."""
        if not kernels.num_rows:
            return np.empty(0, np.int64)
        keys, tables = [], []
        for name in self.columns:
            code, values = _coded(kernels, name)
            keys.append(code)
            tables.append(np.array([*(self._place(name, value) for value in values), self._place(name, None)]))
        # Columns without values, a third of them, tell nothing apart.
        telling = [key for key, table in zip(keys, tables, strict=True) if len(table) > 1]
        first, group = number_groups(*(telling or keys[:1]))
        found = np.stack([table[key[first]] for key, table in zip(keys, tables, strict=True)], axis=1)
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

    def _place(self, name: str, value: str | int | None) -> int:
        known = self._places[name]
        if value not in known:
            shown = shortened(printable(value)) if isinstance(value, str) else value
            if shown not in known:
                known[shown] = len(self.values[name])
                self.values[name].append(shown)
            known[value] = known[shown]
        return known[value]


def _coded(kernels: pa.Table, name: str) -> tuple[Integers, Sequence[Any]]:
    """A column as codes into its distinct values; NULL is -1, which picks the last entry of what follows them."""
    column = kernels[name]
    if pa.types.is_integer(column.type) and column.null_count < len(column):
        encoded = column.combine_chunks().dictionary_encode()
        return numbers(encoded.indices), encoded.dictionary.to_pylist()
    return codes(kernels, name)
