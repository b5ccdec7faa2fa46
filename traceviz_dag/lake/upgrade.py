"""Homes that other versions of this program wrote: their parts are converted once, or set aside by name.

``lake/.recorded/schemas`` says which version of each table's schema all its parts have. Where it is that of today,
nothing is to be done, which one look shows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from traceviz_dag.errors import BadInputError, OutputError
from traceviz_dag.lake import recorded
from traceviz_dag.lake.conversion import DAMAGED, converted, fits, missing_columns
from traceviz_dag.lake.packed_rows import rows_by_rank
from traceviz_dag.lake.partitions import (
    ANALYSE_AGAIN,
    FILE_NAME,
    SCHEMA_VERSION_KEY,
    Partition,
    fault_and_remedy,
    own_columns,
)
from traceviz_dag.lake.record_lines import GONE, NO_FILE, NOTHING, Content, packed_folder
from traceviz_dag.lake.write import store_parts
from traceviz_dag.printable import printable
from traceviz_dag.system.whole_files import exclusive_lock, write_atomically
from traceviz_dag.tables import Table, all_tables

ASIDE = ".set_aside"
"""In the lake's folder: parts that this version cannot read, at their places below it."""

_STATED = "schemas"
_LOCK = ".schemas.lock"
_log = logging.getLogger(__name__)


def is_begun(lake: Path) -> bool:
    """Whether the versions are stated, which a new lake does before its first part."""
    return (lake / recorded.FOLDER / _STATED).exists()


def is_upgraded(lake: Path) -> bool:
    """Whether every part has the columns of this version."""
    try:
        status = (lake / recorded.FOLDER / _STATED).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return _is_upgraded(lake, status.st_size, status.st_mtime_ns, status.st_ino)


def upgrade(lake: Path) -> bool:
    """Convert parts of other versions; where that is done already, one look at a file shows.

    A column that another version did not have is NULL, one that only another version has stays in the file. A part
    whose values this version cannot take, or that is damaged, is set aside, and a line logged that names it. What
    versions without a record left is recorded as it is.

    Returns:
        Whether it is done; False for a home that can only be read, or whose disk is full.
    """
    if is_upgraded(lake):
        return True
    try:
        with exclusive_lock(lake / recorded.FOLDER / _LOCK):
            for table in _stale_tables(lake):
                for parts in recorded.find_parts(lake, table):
                    for partition in parts.own:
                        _upgrade_part(lake, table, partition)
                    if parts.packed:
                        _upgrade_packed(lake, table, parts)
            versions = {**_stated(lake), **{table.name: table.version for table in all_tables().values()}}
            write_atomically(lake / recorded.FOLDER / _STATED, msgspec.json.encode(dict(sorted(versions.items()))))
    except OutputError:
        return False
    return True


def set_aside(lake: Path) -> Iterator[Path]:
    """The parts that are set aside."""
    return (path for path in (lake / ASIDE).rglob("*") if path.is_file())


def own_files(lake: Path) -> tuple[Path, Path]:
    """The files that state the versions."""
    return lake / recorded.FOLDER / _STATED, lake / recorded.FOLDER / _LOCK


def _stale_tables(lake: Path) -> list[Table]:
    stated = _stated(lake)
    return [table for name, table in all_tables().items() if stated.get(name) != table.version]


def _stated(lake: Path) -> Mapping[str, str]:
    path = lake / recorded.FOLDER / _STATED
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


@lru_cache(maxsize=64)
def _is_upgraded(lake: Path, *_of_file: int) -> bool:
    """A file that is as it was when it was last asked is not read again."""
    return not _stale_tables(lake)


def _upgrade_part(lake: Path, table: Table, partition: Partition) -> None:
    path = partition.folder(lake / table.name) / FILE_NAME
    recorded.begin(lake, partition)
    try:
        found = pq.read_schema(path)
        if fits(found, table.schema):
            return
        if SCHEMA_VERSION_KEY in (found.metadata or {}) and not recorded.is_as_recorded(lake, table.name, partition):
            # Not what was written: whoever asks it gets an error, and converting it would hide that.
            return
        data = converted(path, pq.ParquetFile(path).read(), table.schema)
    except FileNotFoundError:
        return
    except (*DAMAGED, BadInputError) as error:
        _set_aside(lake, table, partition, error)
        return
    before = recorded.content_of(lake, table.name, partition) or Content(GONE)
    former = recorded.digest_in_place(path) or GONE
    now = replace(before, former=former, missing=missing_columns(found, table.schema))
    store_parts(lake, partition, [(table, data)], now)


def _upgrade_packed(lake: Path, table: Table, parts: recorded.Parts) -> None:
    """Convert the parts of a packed file into files of their own, which win over it until they are packed anew."""
    partitions = [Partition(parts.run, parts.iteration, rank) for rank in parts.packed]
    path = recorded.file_of(lake, table.name, partitions[0])
    if not recorded.is_as_recorded(lake, table.name, partitions[0]):
        return
    with pq.ParquetFile(path) as file:
        found = file.schema_arrow
        if fits(found, table.schema):
            return
        rows = rows_by_rank(file, parts.packed, own_columns(table, found.names))
        for one, (_, mine) in zip(partitions, rows, strict=True):
            data = converted(path, mine, table.schema)
            before = recorded.content_of(lake, table.name, one) or Content(GONE)
            missing = missing_columns(found, table.schema)
            now = replace(before, former=before.computed, missing=missing)
            store_parts(lake, one, [(table, data)], now)


def move_aside(lake: Path, table: Table, partition: Partition) -> Path:
    """Move the file of a part to where no query reads it, within a change of the record; returns where it is.

    Raises:
        FileNotFoundError: there is none.
        OutputError: it cannot be moved.
    """
    path = partition.folder(lake / table.name) / FILE_NAME
    target = partition.folder(lake / ASIDE / table.name) / FILE_NAME
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    except FileNotFoundError:
        raise
    except OSError as failed:
        raise OutputError(path, f"cannot be moved ({failed.strerror})", "free space there", failed.errno) from failed
    return target


def move_packs_aside(lake: Path, run: str, iteration: int) -> None:
    """Move the packed files of an iteration away whose record does not name them any more; their ranks are gone then.

    Raises:
        OutputError: they cannot be moved.
    """
    path, target = packed_folder(lake, run, iteration), packed_folder(lake / ASIDE, run, iteration)
    with recorded.turn_at(path):
        try:
            target.mkdir(parents=True, exist_ok=True)
            for file in path.iterdir():
                file.replace(target / file.name)
        except OSError as failed:
            raise OutputError(
                path, f"cannot be moved ({failed.strerror})", "free space there", failed.errno
            ) from failed
        recorded.forget_packs(lake, run, iteration)
        recorded.remove_others(lake, run, iteration, NOTHING)


def _set_aside(lake: Path, table: Table, partition: Partition, error: Exception) -> None:
    """Move a part away that keeps all others of its table from being read.

    Raises:
        OutputError: it cannot be moved.
        BadInputError: it cannot be read, and is not damaged.
    """
    path = partition.folder(lake / table.name) / FILE_NAME
    fault, remedy = fault_and_remedy(error)
    if remedy != ANALYSE_AGAIN:
        raise BadInputError(path, f"{fault} ({error})", remedy) from error
    try:
        with recorded.change_of(lake, partition, {table.name: NO_FILE}):
            target = move_aside(lake, table, partition)
    except FileNotFoundError:
        return  # Somebody else moved or deleted it meanwhile.
    _log.warning(
        "traceviz: %s",
        printable(
            f"table {table.name}, {partition.in_words}: its file is damaged, or of another version that cannot be "
            f"converted; it is set aside as {target}; {ANALYSE_AGAIN}"
        ),
    )
