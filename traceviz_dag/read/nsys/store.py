"""The tables of a profile in memory, behind the same questions as those that are kept in the home."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from traceviz_dag.read.nsys.profile import KEYS, PROCESS_BITS, SCHEMAS, NsysFacts
from traceviz_dag.read.nsys.rows import Array, Rows, Runs, Words, array_of, integers_of


@dataclass(frozen=True, slots=True)
class MemoryStore:
    """All tables of a profile, as ``read_tables`` and ``read_range_tables`` give them."""

    tables: Mapping[str, pa.Table]
    facts: NsysFacts

    @property
    def facts_so_far(self) -> NsysFacts:
        """All of them."""
        return self.facts

    def table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Some columns of a table."""
        return self.tables[name].select(columns)

    def rows(self, name: str, columns: Sequence[str], runs: Runs) -> Rows:
        """Some columns of the rows of some runs."""
        rows, table = runs.rows(), self.tables[name]
        return Rows({column: codes_of(table[column])[rows] for column in columns}, runs)

    def runs(self, name: str) -> Runs:
        """Where the keys of a table begin; a table without keys is one run."""
        return runs_of(name, self.tables["operations" if name == "launch_ranges" else name])

    def words(self, name: str, column: str) -> Words:
        """What the codes of a text column represent."""
        return words_of(self.tables[name][column])

    def row(self, name: str, columns: Sequence[str], row: int) -> dict[str, int]:
        """Some columns of one row; a text is its place in the column's words, NULL comes after the last."""
        table = self.tables[name]
        return {column: codes_of(table[column])[row].item() for column in columns}


def runs_of(name: str, table: pa.Table) -> Runs:
    """Where the keys of a table begin; of ``launch_ranges``, whose rows are those of ``operations``, of that table."""
    if name not in KEYS:
        return Runs.of_counts([0], [table.num_rows])
    if KEYS[name] in table.column_names:
        return Runs.of(integers_of(table[KEYS[name]]))
    return Runs.of(integers_of(table["thread"]) >> PROCESS_BITS)


def is_text(name: str, column: str) -> bool:
    """Whether a column holds codes of words."""
    return pa.types.is_dictionary(SCHEMAS[name].field(column).type)


def words_of(column: pa.ChunkedArray) -> Words:
    """The words of a text column, in the order of its codes."""
    values = column.unify_dictionaries()
    return tuple(values.chunk(0).dictionary.to_pylist()) if values.num_chunks else ()


def codes_of(column: pa.ChunkedArray) -> Array:
    """A column as an array; a text column as codes of ``words_of``, NULL as the number of words."""
    if not pa.types.is_dictionary(column.type):
        return array_of(column)
    values = column.unify_dictionaries()
    none = len(values.chunk(0).dictionary) if values.num_chunks else 0
    return array_of(pa.chunked_array([chunk.indices.fill_null(none) for chunk in values.chunks], pa.int32()))
