"""Writing a file of the lake: the same table gives the same bytes, and a reader sees a whole file or none."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from traceviz_dag.lake.partitions import FILE_NAME
from traceviz_dag.tables import Table

_TEMPORARY_SUFFIX = ".writing"
_ROWS_PER_GROUP = 131_072
_ATTEMPTS = 20


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


def write_part(folder: Path, definition: Table, data: pa.Table) -> Written:
    """Write one partition's file into its folder, in the order of its rows.

    The file is durable before it appears under its name; a crash leaves the former file, or none.

    Raises:
        ValueError: the columns or their types are not those of the table.
    """
    check_schema(definition, data)
    encoded = encode(data)
    path = folder / FILE_NAME
    write_atomically(path, encoded)
    return Written(path, data.num_rows, encoded.size, xxhash.xxh3_128_hexdigest(encoded))


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
        raise ValueError(f"table {definition.name}: the columns stand in another order than in its definition")
    other = [
        f"{field.name} is {found.field(field.name).type}, not {field.type}"
        for field in expected
        if field.name in found.names and found.field(field.name).type != field.type
    ]
    raise ValueError(f"table {definition.name}: missing columns {missing}, unknown {unknown}, other types {other}")


def encode(data: pa.Table) -> pa.Buffer:
    """The Parquet file of a table; chunks, dictionary order and schema metadata of the input leave no trace in it."""
    columns = [_one_array(column) for column in data.columns]
    plain = pa.Table.from_arrays(columns, schema=data.schema.remove_metadata())
    sink = pa.BufferOutputStream()
    pq.write_table(
        plain,
        sink,
        row_group_size=_ROWS_PER_GROUP,
        version="2.6",
        compression="zstd",
        compression_level=3,
        use_dictionary=True,
        write_statistics=True,
        data_page_version="1.0",
        use_compliant_nested_type=True,
        store_schema=True,
    )
    return sink.getvalue()


def write_atomically(path: Path, data: bytes | pa.Buffer | Sequence[bytes]) -> None:
    """Write the bytes to a hidden temporary file beside ``path``, sync it to disk, and rename it.

    Concurrent writers of one path are safe, the last one wins. Temporaries of writers that died are removed first.

    Args:
        data: the bytes, or pieces of them in order.
    """
    for _ in range(_ATTEMPTS):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_temporaries(path.parent)
        try:
            with _locked_temporary(path) as (temporary, descriptor):
                with os.fdopen(os.dup(descriptor), "wb") as stream:
                    for piece in [data] if isinstance(data, bytes | pa.Buffer) else data:
                        stream.write(memoryview(piece))
                os.fsync(descriptor)
                temporary.replace(path)
                return
        except FileNotFoundError:
            # The folder was empty and deleted, or the temporary was taken for stale, before its lock was held.
            continue
    raise FileNotFoundError(f"{path.parent}: the folder is deleted again and again while {path.name} is written")


def remove_stale_temporaries(folder: Path) -> int:
    """Remove temporaries whose writer is gone, and say how many.

    A writer holds a lock on its temporary, which the system releases when the process dies: one whose lock is free
    belongs to nobody.
    """
    removed = 0
    for temporary in folder.glob(f".*{_TEMPORARY_SUFFIX}"):
        try:
            descriptor = os.open(temporary, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink()
            removed += 1
        except (BlockingIOError, FileNotFoundError):
            continue
        finally:
            os.close(descriptor)
    return removed


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock across processes and threads; the file stays, empty, for the next one."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _locked_temporary(path: Path) -> Iterator[tuple[Path, int]]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink == 0:
            raise FileNotFoundError(temporary)
        yield temporary, descriptor
    finally:
        temporary.unlink(missing_ok=True)
        os.close(descriptor)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=column.type)
    return _by_first_use(array) if pa.types.is_dictionary(column.type) else array


def _by_first_use(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same values with a dictionary that holds each value that is used once, in order of first use."""
    if array.dictionary.null_count or pc.count_distinct(array.dictionary).as_py() != len(array.dictionary):
        return array.dictionary_decode().dictionary_encode()
    used = pc.unique(array.indices).drop_null()
    indices = pc.index_in(array.indices, value_set=used)
    return pa.DictionaryArray.from_arrays(indices, array.dictionary.take(used))
