"""Every file of the lake against its record: damaged, missing and stray files are named, left-over ones removed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake import packing, recorded, upgrade
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.inputs import registered_if_any
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.partitions import (
    ANALYSE_AGAIN,
    FILE_NAME,
    FORGET_PACKS,
    PACK_AGAIN,
    SET_ASIDE,
    Partition,
    values_in,
)
from traceviz_dag.lake.record_lines import AS_PACKED, GONE, NO_FILE, PACKED_FOLDER, packed_folder
from traceviz_dag.system.whole_files import is_being_written, is_temporary, remove_if_stale
from traceviz_dag.tables import all_tables

_REMOVE = "move it away; no query needs it"
_CLEAN = "traceviz lake clean removes it; no query needs it"


@dataclass(frozen=True, slots=True)
class Fault:
    """One file of the lake that is not what it should be.

    Attributes:
        table, run, iteration, rank: the part; None as far as the file belongs to none.
        is_foreign: whether no writer put a part there, and no trace of it is registered.
        is_left_over: whether a writer or a packing that did not come to its end left it.
    """

    path: Path
    fault: str
    remedy: str
    table: str | None = None
    run: str | None = None
    iteration: int | None = None
    rank: int | None = None
    is_foreign: bool = False
    is_left_over: bool = False

    @property
    def fault_with_place(self) -> str:
        """The fault, with the part where the file is one."""
        words = {"table": self.table, "run": self.run, "iteration": self.iteration, "rank": self.rank}
        place = ", ".join(f"{name} {value}" for name, value in words.items() if value is not None)
        return f"{place}: {self.fault}" if place else self.fault


@dataclass(frozen=True, slots=True)
class LeftOver:
    """A file or an object that no record and no manifest names, from its writer's end before its time.

    Attributes:
        changed_ns: its last change, ns since 1970.
    """

    path: Path
    bytes: int
    changed_ns: int


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
    unreadable = _unreadable_places(folder)
    parts = dict(_parts(folder))
    faults, sound = list(unreadable.values()), list[Path]()
    older = 0
    for table, place in parts.values():
        if (place.run, place.iteration) in unreadable:
            continue
        path = place.folder(folder / table) / FILE_NAME
        try:
            fault = _wrong_with(lake, table, place, path)
        except FileNotFoundError:
            # Deleted meanwhile, and recorded so: the next look at the record shows it.
            continue
        except OSError as error:
            fault = _fault(table, place, path, f"cannot be read ({error.strerror})")
        if fault is not None:
            faults.append(fault)
        elif recorded.is_listed(folder, table, place):
            sound.append(path)
        else:
            older += 1
    for run, iteration in recorded.recorded_iterations(folder):
        if (run, iteration) not in unreadable:
            faults += _missing(folder, run, iteration)
            packs = dict(_packs(folder, run, iteration))
            faults += [fault for fault in packs.values() if fault is not None]
            sound += [path for path, fault in packs.items() if fault is None]
    faults += _stray(folder, parts, unreadable)
    size = sum(path.stat().st_size for path in sound if path.exists())
    return Verified(len(sound), size, older, tuple(sorted(faults, key=lambda fault: fault.path)))


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What became of left-over files or objects.

    Attributes:
        younger: how many stay for their age. stuck: how many were to be removed and are there still.
    """

    removed: tuple[LeftOver, ...]
    younger: int
    stuck: int = 0


def clean(lake: Lake, before_ns: int) -> Cleaned:
    """Remove the files that killed writers and packings left, as :func:`verify` names them; no part is read for it.

    Args:
        before_ns: their last change, ns since 1970.
    """
    folder, found = lake.tables_folder, list[LeftOver]()
    for fault in _stray(folder, dict(_parts(folder)), _unreadable_places(folder)):
        with suppress(FileNotFoundError):
            if fault.is_left_over:
                status = fault.path.lstat()
                found.append(LeftOver(fault.path, status.st_size, status.st_mtime_ns))
    old = [one for one in found if one.changed_ns < before_ns]
    for one in old:
        remove_if_stale(one.path)
    for place in recorded.iterations_below(folder / PACKED_FOLDER):
        if below := [one.path for one in old if one.path.is_relative_to(packed_folder(folder, *place))]:
            recorded.remove_left_over(folder, *place, below)
    removed = tuple(one for one in old if not os.path.lexists(one.path))
    return Cleaned(removed, len(found) - len(old), len(old) - len(removed))


def set_aside(lake: Lake, faults: Iterable[Fault]) -> int:
    """Move the foreign ones of these files to where no query reads them, and forget those that are gone; how many.

    Raises:
        OutputError: one cannot be moved.
    """
    settled = 0
    for one in faults:
        if one.run is None or one.iteration is None:
            continue
        if one.remedy == FORGET_PACKS:
            upgrade.move_packs_aside(lake.tables_folder, one.run, one.iteration)
            settled += 1
        if one.table is None or one.remedy == PACK_AGAIN:
            continue
        place = Partition(one.run, one.iteration, one.rank)
        if one.is_foreign:
            upgrade.move_aside(lake.tables_folder, all_tables()[one.table], place)
        elif not one.path.exists():
            with recorded.change_of(lake.tables_folder, place, {one.table: NO_FILE}):
                pass
        else:
            continue
        settled += 1
        with suppress(OSError):
            os.removedirs(one.path.parent)
    lake.refresh_catalogue()
    return settled


def _wrong_with(lake: Lake, table: str, place: Partition, path: Path) -> Fault | None:
    """What is wrong with a file of one part, of a packed one that nothing reads any more as well."""
    if recorded.pack_of(lake.tables_folder, table, place) is not None:
        content = recorded.content_of(lake.tables_folder, table, place)
        is_same = content is None or digest_of(path) == content.digest
        return None if is_same else _fault(table, place, path, "is not what was packed", _REMOVE)
    if not recorded.is_as_recorded(lake.tables_folder, table, place, read_again=True):
        return _why(lake, table, place, path)
    return None


def _why(lake: Lake, table: str, place: Partition, path: Path) -> Fault:
    """What is wrong with a part that is not as it was recorded."""
    if recorded.is_listed(lake.tables_folder, table, place):
        return _fault(table, place, path, "is damaged, or is not the file that was written there")
    inputs = registered_if_any(lake.home, iteration_key(place.run, place.iteration))
    if table in all_tables() and (inputs is None or (place.rank is not None and inputs.rank(place.rank) is None)):
        fault = "no writer of this lake put it there, and no trace of it is registered"
        return Fault(path, fault, SET_ASIDE, table, place.run, place.iteration, place.rank, is_foreign=True)
    return _fault(table, place, path, "is not recorded: no writer of this lake put it there, or the record is damaged")


def _fault(table: str, place: Partition, path: Path, why: str, remedy: str = ANALYSE_AGAIN) -> Fault:
    return Fault(path, why, remedy, table, place.run, place.iteration, place.rank)


def _unreadable_places(folder: Path) -> dict[tuple[str, int], Fault]:
    return {place: fault for place in _places(folder) for fault in _unreadable(folder, *place)}


def _unreadable(folder: Path, run: str, iteration: int) -> Iterator[Fault]:
    """Why nothing can be said of an iteration: its record is of a newer version, or lost what it had packed."""
    try:
        list(recorded.packed_iterations(folder, run, iteration))
        record = recorded.recorded(folder, run, iteration)
        for pack in record.packs.values():
            recorded.sources_of(folder, run, iteration, pack)
    except BadInputError as error:
        yield Fault(Path(error.path), error.fault, error.remedy, None, run, iteration)


def _packs(folder: Path, run: str, iteration: int) -> Iterator[tuple[Path, Fault | None]]:
    """The packed files of an iteration and the lists of their sources, each with what is wrong with it."""
    for pack in recorded.recorded(folder, run, iteration).packs.values():
        for name, digest, remedy in (
            (pack.path(folder, run, iteration).name, pack.digest, PACK_AGAIN),
            (pack.sources, pack.sources, ANALYSE_AGAIN),
        ):
            path = packed_folder(folder, run, iteration) / name
            fault = None
            try:
                if digest_of(path) != digest:
                    fault = "is damaged, or is not the file that was packed"
            except FileNotFoundError:
                fault = "is missing"
            except OSError as error:
                fault = f"cannot be read ({error.strerror})"
            # Whoever packs anew meanwhile has another file named.
            if fault is None or recorded.recorded(folder, run, iteration).packs.get(pack.table) == pack:
                yield path, None if fault is None else Fault(path, fault, remedy, pack.table, run, iteration)


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


def _missing(folder: Path, run: str, iteration: int) -> Iterator[Fault]:
    record = recorded.recorded(folder, run, iteration)
    if record.damaged_lines:
        path = Partition(run, iteration).folder(folder / recorded.FOLDER)
        fault = f"{record.damaged_lines} lines of the record of this iteration are damaged"
        yield Fault(path, fault, ANALYSE_AGAIN, None, run, iteration)
    for table, rank in record.contents:
        place = Partition(run, iteration, rank)
        path = place.folder(folder / table) / FILE_NAME
        if GONE not in record.digests((table, rank)) and not path.is_file():
            now = recorded.recorded(folder, run, iteration).digests((table, rank))
            if now and GONE not in now and AS_PACKED.digest not in now:
                yield _fault(table, place, path, "is missing")


def _places(folder: Path) -> list[tuple[str, int]]:
    """Run and iteration of what is recorded, and of what is packed."""
    packed = recorded.iterations_below(folder / PACKED_FOLDER)
    return sorted({*recorded.recorded_iterations(folder), *packed})


def _stray(
    folder: Path, parts: dict[Path, tuple[str, Partition]], unreadable: Iterable[tuple[str, int]]
) -> Iterator[Fault]:
    records = {
        Partition(run, iteration).folder(folder / recorded.FOLDER)
        for run, iteration in recorded.recorded_iterations(folder)
    }
    records |= {*upgrade.own_files(folder), *upgrade.set_aside(folder)}
    untold = [packed_folder(folder, *place) for place in unreadable]
    for run, iteration in recorded.recorded_iterations(folder):
        if (run, iteration) not in unreadable:
            for pack in recorded.recorded(folder, run, iteration).packs.values():
                path = pack.path(folder, run, iteration)
                records |= {path, path.with_name(pack.sources)}
    for place, _, names in os.walk(folder):
        below = Path(place).relative_to(folder)
        packed = below.parts[:1] == (PACKED_FOLDER,)
        if packed and any(map(Path(place).is_relative_to, untold)):
            continue
        if packed and names and recorded.is_being_packed(folder.joinpath(*below.parts[:3])):
            continue
        for name in names:
            path = Path(place, name)
            # What appeared since is reported by the next call.
            is_known = path in parts or path in records or is_being_written(path)
            is_of_packing = packed and packing.is_own(path.relative_to(folder / PACKED_FOLDER).as_posix())
            if not is_known and (is_of_packing or is_temporary(path)):
                fault = f"was left by a {'packing' if packed else 'writer'} that did not come to its end"
                yield Fault(path, fault, _CLEAN, is_left_over=True)
            elif not is_known and not (name == FILE_NAME and path in dict(_parts(folder))):
                yield Fault(path, "is no file of the lake", _REMOVE)
