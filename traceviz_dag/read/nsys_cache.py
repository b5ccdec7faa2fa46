"""Profiles that were read once, kept as Parquet files in the home, so that each later command takes what it needs.

HOME/nsys/NAME-DIGEST holds one export: its tables and ``facts.json``, which is written last and says how the export
looked (size, time of change). An export that looks different is read again. Deleting the folder is always safe.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.digests import look_of
from traceviz_dag.lake.write import exclusive_lock, write_atomically
from traceviz_dag.read.nsys import read_nsys
from traceviz_dag.read.nsys_open import export_report, is_report
from traceviz_dag.read.nsys_profile import SCHEMAS, NsysFacts, NsysProfile

FOLDER = "nsys"
_FACTS, _EXPORT = "facts.json", "export.sqlite"
_FORMAT = 1
"""Raised whenever what the tables hold changes."""


class _Kept(msgspec.Struct, frozen=True):
    """What ``facts.json`` holds: how the export looked when it was read, and what is known of it."""

    format: int
    look: tuple[int, int]
    facts: NsysFacts


def open_profile(path: Path, home: Path | None) -> NsysProfile:
    """Open a profile: from the home where it was read before and has not changed since, else by reading it.

    Args:
        path: a ``.sqlite`` export, a folder of Parquet files, or a ``.nsys-rep``, which the nsys program exports first.
        home: the folder that holds everything written; None keeps nothing.

    Raises:
        BadInputError: the export cannot be used.
    """
    if home is None:
        if is_report(path):
            raise BadInputError(path, "a report that was not exported", "run nsys export --type sqlite on it")
        return read_nsys(path)
    if not path.exists():
        raise BadInputError(path, "no such file or folder", "check the path")
    folder = cache_folder(path, home)
    look = look_of(path)
    kept = _kept(folder, look)
    if kept is None:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder / ".lock"):
            kept = _kept(folder, look) or _fill(path, folder, look)
    return NsysProfile(path, kept.facts, _Loader(folder))


def cache_folder(path: Path, home: Path) -> Path:
    """Where an export is kept in a home."""
    place = path.resolve()
    return home / FOLDER / f"{place.stem[:80]}-{xxhash.xxh3_64_hexdigest(str(place).encode())}"


def exported(path: Path, home: Path) -> Path:
    """The export that a report stands for; any other path is its own.

    Raises:
        BadInputError: the report cannot be exported.
    """
    if not is_report(path):
        return path
    folder = cache_folder(path, home)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / _EXPORT
    if not target.is_file() or target.stat().st_mtime_ns < path.stat().st_mtime_ns:
        export_report(path, target)
    return target


class _Loader:
    """Loads tables of one kept export; it can travel to a worker process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, columns: tuple[str, ...] | None) -> pa.Table:
        schema = SCHEMAS[name]
        names = schema.names if columns is None else list(columns)
        table = pq.read_table(self.folder / f"{name}.parquet", columns=names)
        return table.cast(pa.schema([schema.field(column) for column in names]))


def _kept(folder: Path, look: tuple[int, int]) -> _Kept | None:
    try:
        kept = msgspec.json.decode((folder / _FACTS).read_bytes(), type=_Kept)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return kept if (kept.format, kept.look) == (_FORMAT, look) else None


def _fill(path: Path, folder: Path, look: tuple[int, int]) -> _Kept:
    profile = read_nsys(exported(path, folder.parent.parent))
    (folder / _FACTS).unlink(missing_ok=True)
    for name in SCHEMAS:
        sink = pa.BufferOutputStream()
        pq.write_table(profile.table(name), sink, compression="zstd", compression_level=1)
        write_atomically(folder / f"{name}.parquet", sink.getvalue())
    kept = _Kept(_FORMAT, look, profile.facts)
    write_atomically(folder / _FACTS, pa.py_buffer(msgspec.json.encode(kept)))
    return kept


def forget(path: Path, home: Path) -> None:
    """Remove what is kept of an export."""
    shutil.rmtree(cache_folder(path, home), ignore_errors=True)
