"""Writing a file of the lake: the same table gives the same bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from traceviz_dag.lake.partitions import FILE_NAME, SCHEMA_VERSION_KEY, Partition
from traceviz_dag.lake.record_lines import Content
from traceviz_dag.lake.recorded import change_of
from traceviz_dag.system.whole_files import write_atomically
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


def write_part(lake: Path, definition: Table, partition: Partition, data: pa.Table, made: str = "") -> Written:
    """Write one partition's file, in the order of its rows, and record its digest.

    The file is durable before it appears under its name; a crash leaves the former file, or none.

    Args:
        lake: the folder of all tables.
        made: of what it was made, a word.

    Raises:
        OutputError: it cannot be written.
        ValueError: the columns or their types are not those of the table.
    """
    check_schema(definition, data)
    return store_part(lake, definition, partition, data, Content("", made=made))


def store_part(lake: Path, definition: Table, partition: Partition, data: pa.Table, recorded: Content) -> Written:
    """Write one partition's file as :func:`write_part`, with the columns that it is given.

    Args:
        recorded: what is recorded of it beside its digest.

    Raises:
        OutputError: it cannot be written.
    """
    encoded = encode(data, definition.version)
    digest = xxhash.xxh3_128_hexdigest(encoded)
    content = replace(recorded, digest=digest)
    path = partition.folder(lake / definition.name) / FILE_NAME
    write_atomically(path, encoded, lambda: change_of(lake, definition.name, partition, content))
    return Written(path, data.num_rows, encoded.size, digest)


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
    columns = [one_array(column) for column in data.columns]
    plain = pa.Table.from_arrays(columns, schema=with_version(data.schema, version))
    # Packed files, which are kept, take the time that zstd and a dictionary of numbers need; and no query skips rows by
    # the first and last of some words.
    words = [field.name for field in plain.schema if pa.types.is_dictionary(field.type) or field.type == pa.string()]
    numbers = [name for name in plain.column_names if name not in words]
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
    dictionary = array.dictionary
    if dictionary.null_count or len(dictionary.unique()) != len(dictionary):
        return array.dictionary_decode().dictionary_encode()
    used = array.indices.unique().drop_null()
    places = used.to_numpy()
    if len(places) == len(dictionary) and (places[1:] > places[:-1]).all():
        return array
    return pa.DictionaryArray.from_arrays(pc.index_in(array.indices, value_set=used), dictionary.take(used))
