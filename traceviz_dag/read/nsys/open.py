"""From a path to an open Nsight Systems export, with one clear line for whatever is none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.nsys.finished import check_finished
from traceviz_dag.read.nsys.source import NsysSource, ParquetSource, SqliteSource
from traceviz_dag.read.other_files import is_kineto_like
from traceviz_dag.read.regular_file import open_regular, seems_file, seems_folder
from traceviz_dag.system.processes import run_program
from traceviz_dag.system.whole_files import scratch_folder

REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
"""Suffixes of reports that only the nsys program can read."""

_SQLITE_MAGIC = b"SQLite format 3\0"
EXPORT_SUFFIXES = (".sqlite", ".sqlite3", ".db")
"""Suffixes of exports that are one file."""

FOLDER_MARK = "StringIds.parquet"
"""The table that every export has, and that the other tables point into."""

_SQLITE_HEAD_BYTES = 100
_PARQUET_MAGIC = b"PAR1"
_OWN_TABLES = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "ENUM_NSYS_", "TARGET_INFO_", "ANALYSIS_DETAILS")
_EXPORT_AGAIN = "export it again: nsys export --type sqlite REPORT.nsys-rep"
_WANTED = "give a .sqlite file that nsys export wrote, a folder of its Parquet files, or a .nsys-rep"


def open_nsys(path: Path) -> NsysSource:
    """Open an export: a ``.sqlite`` file or a folder of Parquet files.

    Raises:
        BadInputError: the path is missing, empty, damaged, locked, still being written, or no such export.
    """
    if not path.exists():
        raise BadInputError(path, "no such file or folder", "check the path")
    if path.is_dir():
        if not any(path.glob("*.parquet")):
            raise BadInputError(path, "a folder without Parquet files", _WANTED)
        source: NsysSource = ParquetSource(path)
    else:
        _check_file(path)
        source = SqliteSource(path)
    try:
        _check_tables(source)
    except BadInputError:
        source.close()
        raise
    return source


def is_nsys(path: Path) -> bool:
    """Whether a path looks like a profile of Nsight Systems, by its name and first bytes alone."""
    if seems_folder(path):
        return seems_file(path / FOLDER_MARK)
    name = path.name.lower()
    if name.endswith(REPORT_SUFFIXES):
        return True
    if not name.endswith(EXPORT_SUFFIXES) or not seems_file(path):
        return False
    try:
        with open_regular(path) as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:
        return True  # whoever opens it says why it cannot be read


def is_whole_export(path: Path) -> bool:
    """Whether an export was written to its end; a file that is certainly no export counts as whole.

    A report that nsys writes appears when it is whole; a SQLite file has the pages that its head states, no fewer (a
    copy is under way, or broke off) and no more (its writer has not closed the transaction); a Parquet file ends with
    the letters that it begins with.
    """
    if path.is_dir():
        return all(_is_whole_parquet(file) for file in path.glob("*.parquet") if file.is_file())
    if is_report(path):
        return True
    with path.open("rb") as file:
        magic = file.read(len(_SQLITE_MAGIC))
    # Space that is set aside for a file to come holds zeros.
    if magic != _SQLITE_MAGIC and magic.strip(b"\0"):
        return not _SQLITE_MAGIC.startswith(magic)
    stated = _stated_bytes(path)
    return path.stat().st_size == stated > 0


def _is_whole_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        begins = file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
        size = file.seek(0, os.SEEK_END)
        if not begins or size < 2 * len(_PARQUET_MAGIC):
            return False
        file.seek(-len(_PARQUET_MAGIC), os.SEEK_END)
        return file.read() == _PARQUET_MAGIC


def _stated_bytes(path: Path) -> int:
    """The size that the head of a SQLite file states."""
    with path.open("rb") as file:
        head = file.read(_SQLITE_HEAD_BYTES)
    size = int.from_bytes(head[16:18], "big") or 1
    pages = int.from_bytes(head[28:32], "big")
    # A page size of 65,536 is written as 1.
    return pages * (65_536 if size == 1 else size)


def is_report(path: Path) -> bool:
    """Whether a path names a report that must be exported first."""
    return path.name.lower().endswith(REPORT_SUFFIXES)


def export_report(report: Path, target: Path) -> None:
    """Export a ``.nsys-rep`` to a SQLite file with the ``nsys`` program; the file appears when it is whole.

    Args:
        report: the report.
        target: the file to make.

    Raises:
        BadInputError: the report is missing, the program is not installed, or it cannot export the report.
    """
    if not report.is_file():
        raise BadInputError(report, "no such file", "check the path")
    found = shutil.which("nsys")
    if found is None:
        raise BadInputError(
            report,
            "only the nsys program can read a report, and it is not installed here",
            "run nsys export --type sqlite on a machine that has Nsight Systems, and give the .sqlite file",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(target.parent) as folder:
        made = folder / "export.sqlite"
        command = [found, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(made), str(report)]
        ended = run_program(command)
        if ended.returncode or not made.is_file():
            raise BadInputError(
                report,
                f"nsys export failed with code {ended.returncode}",
                "run nsys export --type sqlite on it and see what it says; a newer report needs a newer nsys",
            )
        made.replace(target)


def _check_file(path: Path) -> None:
    try:
        with open_regular(path) as file:
            magic = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        raise BadInputError(path, f"cannot be opened ({error.strerror})", "check its permissions") from None
    check_finished(path)
    if not magic:
        raise BadInputError(path, "empty file", _EXPORT_AGAIN)
    if magic != _SQLITE_MAGIC:
        if is_kineto_like(path):
            raise BadInputError(path, "JSON, not an export of Nsight Systems", "traceviz analyze reads PyTorch traces")
        raise BadInputError(path, "not a SQLite file", _WANTED)
    there, stated = path.stat().st_size, _stated_bytes(path)
    if there < stated:
        fault = f"the SQLite file is damaged or was cut short: {there:,} of {stated:,} bytes are there"
        raise BadInputError(path, fault, _EXPORT_AGAIN)


def _check_tables(source: NsysSource) -> None:
    tables = source.columns()
    if not tables:
        raise BadInputError(source.path, "it holds no tables: empty, or still being written", _EXPORT_AGAIN)
    if not any(name.startswith(_OWN_TABLES) for name in tables):
        raise BadInputError(source.path, "a database, but no export of Nsight Systems", _WANTED)
