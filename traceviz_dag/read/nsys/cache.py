"""Profiles that were read once, kept as Parquet files in the home, so that each later command takes what it needs.

HOME/nsys/NAME-DIGEST holds one export; in it a folder for its look (size, times of change) holds its tables, the words
of their text columns, and ``facts.json``, which is written last. An export that looks different is read again, into a
folder of its own, and the former one goes, but for files of others in it. Deleting the folder is always safe. The rows
of a process or GPU are row groups of their own, to be read alone. NVTX ranges, the longest table, are read when they
are first asked for. A process compares a file with its digest before it
first reads it: damage gives no other values, and the next command reads the export anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.digests import digest_of, stamp_of
from traceviz_dag.read.nsys.finished import check_finished
from traceviz_dag.read.nsys.profile import RANGE_TABLES, SCHEMAS, NsysFacts, NsysProfile
from traceviz_dag.read.nsys.rows import Array, Rows, Runs, Words, array_of
from traceviz_dag.read.nsys.store import is_text, runs_of, words_of
from traceviz_dag.system.json_bytes import decoded
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.whole_files import (
    exclusive_lock,
    remove_all_stale_temporaries,
    remove_stale_scratch,
    write_atomically,
)

FOLDER = "nsys"
_FACTS, _WORDS, _EXPORT, _MADE = "facts.json", "words.json", "export.sqlite", "screens"
_LOOK = re.compile(r"[0-9a-f]{16}")
"""Names of the folders of an export's former looks; whatever else lies beside them is not ours."""

_FORMAT = 15
"""Raised whenever what the tables hold changes."""

_ROWS_PER_GROUP = 1 << 20
_FEW_VALUES = frozenset({"thread", "end_thread", "process"})
"""Large numbers, but few of them: smaller as a dictionary than by their differences."""


class _Kept(msgspec.Struct, frozen=True):
    """What ``facts.json`` holds: how the export looked when it was read, and what is known of it.

    Attributes:
        runs: table → its keys in order and how many rows each has.
        files: name → how the file looked when it was written: one that looks different now is damaged.
        digests: name → digest of the file.
    """

    format: int
    look: tuple[int, int, int]
    facts: NsysFacts
    runs: dict[str, list[tuple[int, int]]]
    files: dict[str, tuple[int, int]]
    digests: dict[str, str]

    @property
    def is_whole(self) -> bool:
        """Whether the NVTX ranges are kept too."""
        return self.runs.keys() >= set(RANGE_TABLES)


def open_profile(path: Path, home: Path | None) -> NsysProfile:
    """Open a profile: from the home where it was read before and has not changed since, else by reading it.

    Args:
        path: a ``.sqlite`` export, a folder of Parquet files, or a ``.nsys-rep``, which the nsys program exports first.
        home: the folder that holds everything written; None keeps nothing.

    Raises:
        BadInputError: the export cannot be used.
    """
    if home is None:
        from traceviz_dag.read.nsys.open import is_report
        from traceviz_dag.read.nsys.reader import read_nsys

        if is_report(path):
            raise BadInputError(path, "a report that was not exported", "run nsys export --type sqlite on it")
        return read_nsys(path)
    if not path.exists():
        raise BadInputError(path, "no such file or folder", "check the path")
    # What is written beside a SQLite file leaves its size and time of change as they were.
    check_finished(path)
    look = stamp_of(path)
    folder = tables_folder(path, home, look)
    kept = _kept(folder, look)
    if kept is None:
        with exclusive_lock(folder.parent / ".lock"):
            kept = _kept(folder, look) or _fill(path, folder, look)
    return NsysProfile(path, KeptStore(path, folder, kept))


def cache_folder(path: Path, home: Path) -> Path:
    """Where an export is kept in a home."""
    place = real_path(path)
    return home / FOLDER / f"{place.stem[:80]}-{xxhash.xxh3_64_hexdigest(str(place).encode())}"


def tables_folder(path: Path, home: Path, look: tuple[int, int, int]) -> Path:
    """Where the tables of an export are kept that looks so: (bytes, times of change in ns)."""
    return cache_folder(path, home) / xxhash.xxh3_64_hexdigest(repr(look).encode())


def made_of_kept(profile: NsysProfile) -> tuple[Path, str] | None:
    """A folder for what is made of a kept profile, which goes with it, and a digest that changes with what is kept.

    None where the profile is not kept.
    """
    store = profile.store
    if not isinstance(store, KeptStore):
        return None
    return store.folder / _MADE, xxhash.xxh3_64_hexdigest(msgspec.json.encode(store.whole()))


class KeptStore:
    """The tables of one kept export; it can travel to a worker process.

    Args:
        path: the export.
        kept: what is kept of it by now.
    """

    def __init__(self, path: Path, folder: Path, kept: _Kept) -> None:
        self.folder = folder
        self._path = path
        self._kept = kept
        self._words: dict[str, dict[str, Words]] = {}

    @property
    def facts(self) -> NsysFacts:
        """What is known of the profile as a whole."""
        return self.whole().facts

    @property
    def facts_so_far(self) -> NsysFacts:
        """The same without the NVTX ranges, unless they were read before."""
        return self._kept.facts

    def table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Some columns of a table."""
        import pyarrow.compute as pc

        found = self._file(name).read(columns=list(columns)).select(list(columns))
        for place, column in enumerate(columns):
            if is_text(name, column):
                codes = pc.if_else(pc.less(found[column], 0), None, found[column]).combine_chunks()
                words = pa.array(self.words(name, column), pa.string())
                found = found.set_column(place, column, pa.DictionaryArray.from_arrays(codes, words))
        return found.cast(pa.schema([SCHEMAS[name].field(column) for column in columns]))

    def rows(self, name: str, columns: Sequence[str], runs: Runs) -> Rows:
        """Some columns of the rows of some runs."""
        file = self._file(name)
        groups = _groups(file.metadata, runs)
        table = file.read_row_groups(groups, columns=list(columns))
        values: dict[str, Array] = {}
        for column in columns:
            values[column] = array_of(table[column])
            if is_text(name, column):
                none = len(self.words(name, column))
                values[column] = np.where(values[column] < 0, np.int32(none), values[column])
        return Rows(values, runs)

    def runs(self, name: str) -> Runs:
        """Where the keys of a table begin; a table without keys is one run."""
        return _runs((self.whole() if name in RANGE_TABLES else self._kept).runs[name])

    def words(self, name: str, column: str) -> Words:
        """What the codes of a text column represent."""
        if name not in self._words:
            with self._compared(f"{name}.{_WORDS}") as path:
                data = path.read_bytes()
            self._words[name] = msgspec.json.decode(data, type=dict[str, Words])
        return self._words[name][column]

    def row(self, name: str, columns: Sequence[str], row: int) -> dict[str, int]:
        """Some columns of one row; a text is its place in the column's words, NULL comes after the last."""
        file = self._file(name)
        first = np.cumsum([0, *(file.metadata.row_group(place).num_rows for place in range(file.num_row_groups))])
        group = int(np.searchsorted(first, row, side="right")) - 1
        table = file.read_row_group(group, columns=list(columns))
        found = {column: array_of(table[column])[row - first[group]].item() for column in columns}
        return {
            column: len(self.words(name, column)) if is_text(name, column) and value < 0 else value
            for column, value in found.items()
        }

    def whole(self) -> _Kept:
        """What is kept once the NVTX ranges are, which are read from the export where they are not."""
        if not self._kept.is_whole:
            with exclusive_lock(self.folder.parent / ".lock"):
                self._kept = _fill_ranges(self._path, self.folder, self._kept.look)
        return self._kept

    def _file(self, name: str) -> pq.ParquetFile:
        with self._compared(f"{name}.parquet") as path:
            return pq.ParquetFile(path)

    @contextmanager
    def _compared(self, name: str) -> Iterator[Path]:
        """A file that is as it was written, for the block to open.

        Raises:
            BadInputError: it is not, or is gone; the next command reads the export anew.
        """
        path = self.folder / name
        kept = self.whole() if name.partition(".")[0] in RANGE_TABLES else self._kept
        try:
            if _digest_in(path, *stamp_of(path)) != kept.digests[name]:
                with suppress(OSError):
                    (self.folder / _FACTS).unlink()
                raise BadInputError(path, "is damaged", "run the command again, which reads the export anew")
            yield path
        except FileNotFoundError:
            fault = "what was kept of the export was deleted while it was read; the export may have changed"
            raise BadInputError(self.folder, fault, "run the command again") from None


@lru_cache(maxsize=1024)
def _digest_in(path: Path, *_look: int) -> str:
    """A file that looks as it did when this process read it is not read again."""
    return digest_of(path)


def _runs(counts: Sequence[tuple[int, int]]) -> Runs:
    return Runs.of_counts([key for key, _ in counts], [rows for _, rows in counts])


def _groups(metadata: pq.FileMetaData, runs: Runs) -> list[int]:
    """The row groups that hold some runs; each group holds rows of one run only."""
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    first = np.cumsum([0, *rows])[:-1]
    wanted = [
        np.arange(*np.searchsorted(first, [start, start + count]))
        for start, count in zip(runs.first.tolist(), runs.count.tolist(), strict=True)
    ]
    return np.concatenate([np.empty(0, dtype=np.int64), *wanted]).tolist()


def _kept(folder: Path, look: tuple[int, int, int]) -> _Kept | None:
    try:
        stated, _, checksum = (folder / _FACTS).read_bytes().partition(b"\n")
        if checksum != _checksum(stated):
            return None
        kept = decoded(stated, _Kept)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    whole = (kept.format, kept.look) == (_FORMAT, look) and kept.files == _looks(folder, counts=kept.runs)
    return kept if whole else None


def _checksum(stated: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(stated).encode()


def _looks(folder: Path, counts: Mapping[str, object]) -> dict[str, tuple[int, int]]:
    """File → its size and time of change, of each table and its words, which a copy of a home has as well; a file that
    is not there is left out."""
    names = [f"{name}.{ending}" for name in counts for ending in ("parquet", _WORDS)]
    return {name: stamp_of(folder / name)[:2] for name in names if (folder / name).is_file()}


def _fill(path: Path, folder: Path, look: tuple[int, int, int]) -> _Kept:
    """Read an export into its folder, under its lock; what is kept of its former looks goes."""
    # Imported here because most commands find what they need in the home, and reading takes long to import.
    from traceviz_dag.read.nsys.open import export_report, is_report
    from traceviz_dag.read.nsys.reader import read_tables

    for other in folder.parent.iterdir():
        if other.is_dir() and not other.is_symlink() and other != folder and _LOOK.fullmatch(other.name):
            _forget(other)
    (folder / _FACTS).unlink(missing_ok=True)
    if is_report(path) and not (folder / _EXPORT).is_file():
        export_report(path, folder / _EXPORT)
    return _keep(path, folder, _Kept(_FORMAT, look, NsysFacts(), {}, {}, {}), read_tables)


def _fill_ranges(path: Path, folder: Path, look: tuple[int, int, int]) -> _Kept:
    """Read the NVTX ranges of an export into its folder too, under its lock."""
    from traceviz_dag.read.nsys.reader import read_range_tables

    kept = _kept(folder, look) or _fill(path, folder, look)
    if kept.is_whole:
        return kept
    store = KeptStore(path, folder, kept)
    return _keep(path, folder, kept, lambda export, keep: read_range_tables(export, kept.facts, store, keep))


def _keep(
    path: Path, folder: Path, kept: _Kept, read: Callable[[Path, Callable[[str, pa.Table], None]], NsysFacts]
) -> _Kept:
    """Keep tables that are read from an export, beside those that are kept.

    Args:
        read: reads the export and hands over each table by name; gives what is known of the profile by then.
    """
    counts = dict(kept.runs)

    def keep(name: str, table: pa.Table) -> None:
        if name == "launch_ranges":
            counts[name] = counts["operations"]
        else:
            runs = runs_of(name, table)
            counts[name] = list(zip(runs.keys.tolist(), runs.count.tolist(), strict=True))
        _write(folder, name, table, _runs(counts[name]))

    exported = folder / _EXPORT
    facts = read(exported if exported.is_file() else path, keep)
    if not path.exists() or stamp_of(path) != kept.look:
        raise BadInputError(path, "changed while it was read", "run the command again once it is whole")
    looks = _looks(folder, counts)
    digests = {name: kept.digests.get(name) or digest_of(folder / name) for name in looks}
    kept = _Kept(_FORMAT, kept.look, facts, counts, looks, digests)
    stated = msgspec.json.encode(kept)
    write_atomically(folder / _FACTS, stated + b"\n" + _checksum(stated))
    return kept


def _forget(folder: Path) -> None:
    """Remove what was kept of a former look, and its folder unless somebody put files of their own there."""
    own = {_FACTS, _EXPORT, *(f"{name}.{ending}" for name in SCHEMAS for ending in ("parquet", _WORDS))}
    remove_all_stale_temporaries(folder)
    remove_stale_scratch(folder)
    made = folder / _MADE
    tiles = [] if made.is_symlink() else made.glob("*.lanes")
    for path in (*(folder / name for name in own), *tiles):
        with suppress(OSError):
            path.unlink()
    for emptied in (made, folder):
        with suppress(OSError):
            emptied.rmdir()


def _write(folder: Path, name: str, table: pa.Table, runs: Runs) -> None:
    """Keep a table: numbers by their differences, texts as codes of words that are in a file of their own."""
    words = {column: words_of(table[column]) for column in table.column_names if is_text(name, column)}
    for place, column in enumerate(table.column_names):
        if column in words:
            codes = [chunk.indices.fill_null(-1) for chunk in table[column].unify_dictionaries().chunks]
            table = table.set_column(place, column, pa.chunked_array(codes, pa.int32()))
    few = [column for column in table.column_names if column in _FEW_VALUES]
    encodings = {
        field.name: "DELTA_BINARY_PACKED"
        for field in table.schema
        if field.name not in few and not pa.types.is_boolean(field.type)
    }
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, table.schema, compression="lz4", use_dictionary=few, column_encoding=encodings, write_statistics=False
    ) as writer:
        for first, count in zip(runs.first.tolist(), runs.count.tolist(), strict=True):
            writer.write_table(table.slice(first, count), row_group_size=_ROWS_PER_GROUP)
    write_atomically(folder / f"{name}.parquet", sink.getvalue())
    write_atomically(folder / f"{name}.{_WORDS}", pa.py_buffer(msgspec.json.encode(words)))
