"""Writing a file of the lake: the same table gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from traceviz_dag.lake.partitions import FILE_NAME, SCHEMA_VERSION_KEY, Partition
from traceviz_dag.lake.record_lines import Content
from traceviz_dag.lake.recorded import change_of
from traceviz_dag.system.whole_files import write_together
from traceviz_dag.tables import Table

ROWS_PER_GROUP = 131_072
WRITER_OPTIONS = {
    "version": "2.6",
    "data_page_version": "1.0",
    "use_compliant_nested_type": True,
    "store_schema": True,
}


@dataclass(frozen=True, slots=True)
class Written:
    """One file that was written.

    Attributes:
        bytes: its size.
        digest: XXH3-128 of its bytes, hexadecimal; equal for equal tables under one version of the Parquet library.
    """

    path: Path
    rows: int
    bytes: int
    digest: str


Parts = Sequence[tuple[Table, pa.Table]]
"""Tables, and the rows of one partition of each."""


def write_parts(lake: Path, partition: Partition, parts: Parts, made: str = "") -> dict[str, Written]:
    """Write the files of one partition, in the order of their rows, and record their digests.

    Each file is durable before it appears under its name; a crash leaves the former file, or none.

    Args:
        lake: the folder of all tables.
        made: of what they were made, a word.

    Raises:
        OutputError: one cannot be written.
        ValueError: the columns or their types are not those of the table; then nothing is written.
    """
    for definition, data in parts:
        check_schema(definition, data)
    return store_parts(lake, partition, parts, Content("", made=made))


def store_parts(lake: Path, partition: Partition, parts: Parts, recorded: Content) -> dict[str, Written]:
    """Write the files of one partition as :func:`write_parts`, with the columns that they are given.

    Args:
        recorded: what is recorded of them beside their digests.

    Raises:
        OutputError: one cannot be written.
    """
    written, files, contents = {}, {}, {}
    for definition, data in parts:
        encoded, path = encode(data, definition.version), lake.joinpath(definition.name, partition.below, FILE_NAME)
        digest = xxhash.xxh3_128_hexdigest(encoded)
        files[path] = encoded
        contents[definition.name] = replace(recorded, digest=digest)
        written[definition.name] = Written(path, data.num_rows, encoded.size, digest)
    # The record is synced once for all of them.
    write_together(files, lambda: change_of(lake, partition, contents))
    return written


def check_schema(definition: Table, data: pa.Table) -> None:
    """Refuse a table whose columns are not exactly those of the definition, in order and with their types.

    Raises:
        ValueError: with the columns that differ.
    """
    expected, found = definition.schema, data.schema
    if found.equals(expected):
        return
    missing = [name for name in expected.names if name not in found.names]
    unknown = [name for name in found.names if name not in expected.names]
    if not missing and not unknown and found.names != expected.names:
        raise ValueError(f"table {definition.name}: the columns are not in the order of its definition")
    other = [
        f"{field.name} is {found.field(field.name).type}, not {field.type}"
        for field in expected
        if field.name in found.names and found.field(field.name).type != field.type
    ]
    raise ValueError(f"table {definition.name}: missing columns {missing}, unknown {unknown}, other types {other}")


def encode(data: pa.Table, version: str) -> pa.Buffer:
    """The Parquet file of a table, with the version of its schema; chunks, dictionary order and schema metadata of the
    input leave no trace in it."""
    plain = data.combine_chunks().replace_schema_metadata({SCHEMA_VERSION_KEY: version})
    # Packed files, which are kept, take the time that zstd and a dictionary of numbers need; and no query skips rows by
    # the first and last of some words.
    words: list[str] = []
    numbers: list[str] = []
    for place, (name, kind) in enumerate(zip(data.column_names, plain.schema.types, strict=True)):
        is_dictionary = pa.types.is_dictionary(kind)
        (words if is_dictionary or kind == pa.string() else numbers).append(name)
        if is_dictionary and data.num_rows:
            array = plain.column(place).chunk(0)
            if (ordered := _by_first_use(array)) is not array:
                plain = plain.set_column(place, plain.field(place), ordered)
    options = {"compression": "snappy", "use_dictionary": words, "write_statistics": numbers, **WRITER_OPTIONS}
    sink = pa.BufferOutputStream()
    pq.write_table(plain, sink, row_group_size=ROWS_PER_GROUP, **options)
    return sink.getvalue()


def with_version(schema: pa.Schema, version: str) -> pa.Schema:
    """The schema of a file, which says of which version of its table it is, and nothing else."""
    return schema.with_metadata({SCHEMA_VERSION_KEY: version})


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The values of a column in one piece, a dictionary in order of first use."""
    # Most columns come in one piece; combining takes longer even so, and a rank has hundreds.
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=column.type)
    return _by_first_use(array) if isinstance(array, pa.DictionaryArray) else array


def _by_first_use(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same values with a dictionary that holds each value that is used once, in order of first use."""
    dictionary, indices = array.dictionary, array.indices
    if dictionary.null_count or len(set(dictionary.to_pylist())) != len(dictionary):
        return array.dictionary_decode().dictionary_encode()
    places = [place for place in indices.unique().to_pylist() if place is not None]
    if places == [*range(len(dictionary))]:
        return array
    used = pa.array(places, indices.type)
    import pyarrow.compute as pc

    return pa.DictionaryArray.from_arrays(pc.index_in(indices, value_set=used), dictionary.take(used))
