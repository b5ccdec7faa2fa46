"""Nsight Systems profiles as files: reports, SQLite exports and folders of Parquet files."""

from __future__ import annotations

from pathlib import Path

from traceviz_dag.read.nsys.open import (
    EXPORT_SUFFIXES,
    FOLDER_MARK,
    REPORT_SUFFIXES,
    is_nsys,
    is_report,
    is_whole_export,
)


class NsysFiles:
    """What ``nsys profile`` and ``nsys export`` write. The attributes are those of ``FileFormat``."""

    name = "nsys"
    title = "Nsight Systems profiles"
    suffixes: tuple[str, ...] = (*EXPORT_SUFFIXES, *REPORT_SUFFIXES)
    folder_mark: str | None = FOLDER_MARK
    detectable_while_writing = False
    remedy = "give a .sqlite file that nsys export wrote, a folder of its Parquet files, or a .nsys-rep"

    def recognises(self, path: Path) -> bool:
        """Whether a path is a report by its name, or an export by its name and first bytes."""
        return is_nsys(path)

    def stands_aside(self, path: Path) -> bool:
        """Whether a report has an export of its name beside it, which holds the same and needs no nsys program."""
        if not is_report(path):
            return False
        endings = (ending for suffix in EXPORT_SUFFIXES for ending in (suffix, suffix.upper()))
        return any(path.with_suffix(ending).is_file() for ending in endings)

    def is_whole(self, path: Path) -> bool:
        """Whether an export was written to its end; a file that is certainly none counts as whole."""
        return is_whole_export(path)


def is_profile_name(name: str) -> bool:
    """Whether a file that is out of reach may be a report or an export, by its name."""
    return name.lower().endswith(NsysFiles.suffixes)


def is_export_name(name: str) -> bool:
    """Whether a file that is out of reach may be an export, by its name."""
    return name.lower().endswith(EXPORT_SUFFIXES)
