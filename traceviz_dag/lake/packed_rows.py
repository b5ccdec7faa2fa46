"""The rows of several ranks in one file: by rank, each in the order that it had.

A row group holds whole ranks, unless one has more rows than it takes, so that few groups need to be read for a rank.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from traceviz_dag.lake.write import WRITER_OPTIONS, one_array, with_version
from traceviz_dag.system.whole_files import whole_file
from traceviz_dag.tables import PARTITION_COLUMNS, Table

_RANK = pa.field("rank", PARTITION_COLUMNS["rank"].type)
_ROWS_PER_GROUP = 49_152
"""Reading a rank decodes the group that it is in: one of 131,072 rows takes twice as long, and of half as many the
longer footer takes what they save."""


def write_packed(path: Path, table: Table, parts: Iterable[tuple[int, pa.Table]]) -> tuple[str, list[int]]:
    """Write a packed file, and return its digest and the ranks that it has; equal parts give equal bytes.

    Args:
        parts: ranks, in order, and their rows, with the columns of the table.

    Raises:
        OutputError: it cannot be written.
    """
    schema = with_version(pa.schema([_RANK, *table.schema]), table.version)
    written: list[int] = []
    with whole_file(path) as file:
        stream = _Digested(file)
        with pq.ParquetWriter(pa.PythonFile(stream, mode="w"), schema, **_options(schema)) as writer:
            waiting: list[pa.Table] = []
            count = 0
            for rank, rows in parts:
                written.append(rank)
                waiting.append(rows)
                count += rows.num_rows
                if count >= _ROWS_PER_GROUP:
                    _write_group(writer, written, waiting)
                    waiting, count = [], 0
            _write_group(writer, written, waiting)
    return stream.digest.hexdigest(), written


def _options(schema: pa.Schema) -> dict[str, Any]:
    """Small, and with a dictionary of all but times: of many ranks these have so many values that to look each up takes
    a query twice as long as to add up differences."""
    times = [field.name for field in schema if pa.types.is_integer(field.type) and field.name.endswith("_ns")]
    rest = [field.name for field in schema if field.name not in times and not pa.types.is_list(field.type)]
    encoded = dict.fromkeys(times, "DELTA_BINARY_PACKED")
    small = {"compression": "zstd", "compression_level": 3}
    return {**WRITER_OPTIONS, **small, "use_dictionary": rest, "column_encoding": encoded or None}


def rows_of_ranks(file: pq.ParquetFile, ranks: Sequence[int], columns: Sequence[str]) -> pa.Table:
    """The rows of some ranks in a packed file; row groups without any of them are not read.

    Args:
        ranks: in order.
    """
    import pyarrow.compute as pc

    groups = []
    # Arrow's schema takes longer to build.
    place = file.schema.names.index(_RANK.name)
    for number in range(file.metadata.num_row_groups):
        limits = file.metadata.row_group(number).column(place).statistics
        at = bisect_left(ranks, limits.min)
        if at < len(ranks) and ranks[at] <= limits.max:
            groups.append(number)
    data = file.read_row_groups(groups, columns=list({_RANK.name: None, **dict.fromkeys(columns)}))
    found = pc.is_in(data[_RANK.name], value_set=pa.array(ranks, _RANK.type))
    return data.select(columns) if pc.all(found).as_py() else data.filter(found).select(columns)


def rows_by_rank(file: pq.ParquetFile, ranks: Iterable[int], columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Each of the ranks and its rows, in order; every row group is read once.

    Args:
        ranks: in order.
    """
    groups = (file.read_row_group(number) for number in range(file.num_row_groups))
    waiting = file.schema_arrow.empty_table()
    for rank in ranks:
        pieces: list[pa.Table] = []
        while True:
            found = waiting[_RANK.name].to_numpy()
            first, last = np.searchsorted(found, [rank, rank + 1])
            pieces.append(waiting.slice(first, last - first))
            waiting = waiting.slice(last)
            if waiting.num_rows or (following := next(groups, None)) is None:
                break
            waiting = following
        yield rank, pa.concat_tables(pieces).select(columns)


def _write_group(writer: pq.ParquetWriter, written: Sequence[int], parts: Sequence[pa.Table]) -> None:
    """Rows of the last ranks, which are whole, as row groups; of one rank with many rows several."""
    counts = [part.num_rows for part in parts]
    if rows := sum(counts):
        ranks = np.repeat(np.array(written[-len(parts) :]), counts)
        joined = pa.concat_tables(parts).unify_dictionaries()
        columns = [pa.array(ranks, _RANK.type), *map(one_array, joined.columns)]
        plain = pa.Table.from_arrays(columns, schema=writer.schema)
        writer.write_table(plain, row_group_size=rows if len(parts) > 1 else _ROWS_PER_GROUP)


class _Digested:
    """A stream that digests what it writes: what a disk makes of it afterwards does not count."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest = file, xxhash.xxh3_128()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        """Whoever opened the file closes it."""
