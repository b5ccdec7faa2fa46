"""Reading every file of the lake against its record, whatever was read before: damaged, missing and stray files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from traceviz_dag.lake import recorded, upgrade
from traceviz_dag.lake.inputs import registered_if_any
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.partitions import ANALYSE_AGAIN, FILE_NAME, SET_ASIDE, Partition, values_in
from traceviz_dag.system.whole_files import is_being_written
from traceviz_dag.tables import all_tables

_REMOVE = "move it away; no query needs it"


@dataclass(frozen=True, slots=True)
class Fault:
    """One file of the lake that is not what it should be.

    Attributes:
        table, run, iteration, rank: the part; None as far as the file belongs to none.
        is_foreign: whether no writer put a part there, and no trace of it is registered.
    """

    path: Path
    fault: str
    remedy: str
    table: str | None = None
    run: str | None = None
    iteration: int | None = None
    rank: int | None = None
    is_foreign: bool = False

    @property
    def fault_with_place(self) -> str:
        """The fault, with the part where the file is one."""
        words = {"table": self.table, "run": self.run, "iteration": self.iteration, "rank": self.rank}
        place = ", ".join(f"{name} {value}" for name, value in words.items() if value is not None)
        return f"{place}: {self.fault}" if place else self.fault


@dataclass(frozen=True, slots=True)
class Verified:
    """What became of reading a lake.

    Attributes:
        parts, bytes: that were compared, and are as they were written.
        without_digest: parts of a version that kept no record.
    """

    parts: int
    bytes: int
    without_digest: int
    faults: tuple[Fault, ...]


def verify(lake: Lake) -> Verified:
    """Compare every part with its record, from the disk; safe beside writers.

    Raises:
        OSError: a folder cannot be listed.
    """
    folder = lake.tables_folder
    parts = dict(_parts(folder))
    sound = size = older = 0
    faults: list[Fault] = []
    for table, place in parts.values():
        path = place.folder(folder / table) / FILE_NAME
        try:
            if not recorded.is_as_recorded(folder, table, place, read_again=True):
                faults.append(_why(lake, table, place, path))
            elif recorded.is_listed(folder, table, place):
                sound, size = sound + 1, size + path.stat().st_size
            else:
                older += 1
        except FileNotFoundError:
            # Deleted meanwhile, and recorded so: the next look at the record shows it.
            continue
        except OSError as error:
            faults.append(_fault(table, place, path, f"cannot be read ({error.strerror})"))
    faults += _missing(folder)
    faults += _stray(folder, parts)
    return Verified(sound, size, older, tuple(sorted(faults, key=lambda fault: fault.path)))


def set_aside(lake: Lake, faults: Iterable[Fault]) -> int:
    """Move the foreign ones of these files to where no query reads them, and forget those that are gone; how many.

    Raises:
        OutputError: one cannot be moved.
    """
    settled = 0
    for one in faults:
        if one.table is None or one.run is None or one.iteration is None:
            continue
        place = Partition(one.run, one.iteration, one.rank)
        if one.is_foreign:
            upgrade.move_aside(lake.tables_folder, all_tables()[one.table], place)
        elif not one.path.exists():
            with recorded.change_of(lake.tables_folder, one.table, place):
                pass
        else:
            continue
        settled += 1
        with suppress(OSError):
            os.removedirs(one.path.parent)
    lake.refresh_catalogue()
    return settled


def _why(lake: Lake, table: str, place: Partition, path: Path) -> Fault:
    """What is wrong with a part that is not as it was recorded."""
    if recorded.is_listed(lake.tables_folder, table, place):
        return _fault(table, place, path, "is damaged, or is not the file that was written there")
    inputs = registered_if_any(lake.home, iteration_key(place.run, place.iteration))
    if table in all_tables() and (inputs is None or (place.rank is not None and inputs.rank(place.rank) is None)):
        fault = "no writer of this lake put it there, and no trace of it is registered"
        return Fault(path, fault, SET_ASIDE, table, place.run, place.iteration, place.rank, is_foreign=True)
    return _fault(table, place, path, "is not recorded: no writer of this lake put it there, or the record is damaged")


def _fault(table: str, place: Partition, path: Path, why: str) -> Fault:
    return Fault(path, why, ANALYSE_AGAIN, table, place.run, place.iteration, place.rank)


def _parts(folder: Path) -> Iterator[tuple[Path, tuple[str, Partition]]]:
    """Every part, also of tables that this version does not know."""
    for table in _folders(folder):
        for run, of_run in values_in(f"{folder}/{table}", "run"):
            for number, of_iteration in values_in(of_run, "iteration"):
                places = [(None, of_iteration), *((int(rank), at) for rank, at in values_in(of_iteration, "rank"))]
                for rank, at in places:
                    if (path := Path(at, FILE_NAME)).is_file():
                        yield path, (table, Partition(run, int(number), rank))


def _folders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except FileNotFoundError:
        return []


def _missing(folder: Path) -> Iterator[Fault]:
    for run, iteration in recorded.recorded_iterations(folder):
        record = recorded.recorded(folder, run, iteration)
        if record.damaged_lines:
            path = Partition(run, iteration).folder(folder / recorded.FOLDER)
            fault = f"{record.damaged_lines} lines of the record of this iteration are damaged"
            yield Fault(path, fault, ANALYSE_AGAIN, None, run, iteration)
        for table, rank in record.contents:
            place = Partition(run, iteration, rank)
            path = place.folder(folder / table) / FILE_NAME
            if recorded.GONE not in record.digests((table, rank)) and not path.is_file():
                now = recorded.recorded(folder, run, iteration).digests((table, rank))
                if now and recorded.GONE not in now:
                    yield _fault(table, place, path, "is missing")


def _stray(folder: Path, parts: dict[Path, tuple[str, Partition]]) -> Iterator[Fault]:
    records = {
        Partition(run, iteration).folder(folder / recorded.FOLDER)
        for run, iteration in recorded.recorded_iterations(folder)
    }
    records |= {*upgrade.own_files(folder), *upgrade.set_aside(folder)}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            # What appeared since is reported by the next call.
            is_known = path in parts or path in records or is_being_written(path)
            if not is_known and not (name == FILE_NAME and path in dict(_parts(folder))):
                yield Fault(path, "is no file of the lake", _REMOVE)
