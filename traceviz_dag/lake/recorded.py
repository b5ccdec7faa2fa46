"""The lake's record of its parts: what was written is compared with it before it is read.

DuckDB and Arrow do not notice a flipped bit in a Parquet file, nor a file that was copied to another place. So each
iteration has a file of lines, ``lake/.recorded/run=…/iteration=N``, that says which digest each of its parts has. A
writer announces a digest before the part appears under its name and settles it afterwards. Killed in between, it leaves
two digests that the part may have, and both are right: the former file, or the new one. :func:`settle` shows which.

The lines are those of ``record_lines.py``; they are appended in one write, so writers need no lock among themselves;
those of one part take turns. Parts of several ranks may lie together in a packed file (``packing.py``): which file
holds a part, the record alone says, so that its renaming is what commits a packing.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import pyarrow.parquet as pq

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.conversion import DAMAGED
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.partitions import (
    ANALYSE_AGAIN,
    FILE_NAME,
    FORGET_PACKS,
    PACK_AGAIN,
    SCHEMA_VERSION_KEY,
    SET_ASIDE,
    Partition,
    escape,
    fault_and_remedy,
    find_files,
    values_in,
)
from traceviz_dag.lake.record_lines import (
    ANNOUNCED,
    AS_PACKED,
    GONE,
    NO_FILE,
    NOTHING,
    PACKED_FOLDER,
    SETTLED,
    Content,
    Pack,
    Part,
    Record,
    begun,
    in_order,
    line_of,
    line_of_pack,
    packed_folder,
    parsed,
)
from traceviz_dag.printable import printable
from traceviz_dag.system.whole_files import locked, make_folder, sync_folder, unwritable, write_atomically
from traceviz_dag.tables import Table, all_tables

_log = logging.getLogger(__name__)

FOLDER = ".recorded"
"""In the lake's folder: no table has this name."""

_REMEMBERED = 1 << 16


@contextmanager
def change_of(lake: Path, partition: Partition, contents: Mapping[str, Content]) -> Iterator[None]:
    """Record parts that the block writes or deletes; writers of the same part take turns.

    Args:
        lake: the folder of all tables.
        contents: table → what its new file holds; NO_FILE where it is deleted.

    Raises:
        OutputError: the record cannot be written; the parts stay as they are.
    """
    path = _path(lake, partition.run, partition.iteration)
    place = _place(partition.run, partition.iteration)

    def lines(word: str) -> bytes:
        return b"".join(line_of(place, word, (table, partition.rank), one) for table, one in contents.items())

    with ExitStack() as held:
        # In one order, or two writers of the same parts would wait for each other.
        for table in sorted(contents):
            held.enter_context(turn_at(partition.folder(lake / table)))
        record = held.enter_context(_opened(lake, partition.run, partition.iteration, shared=True))
        _append(path, record, lines(ANNOUNCED), durable=any(one != NO_FILE for one in contents.values()))
        yield
        _append(path, record, lines(SETTLED), durable=False)
        for table in (table for table, one in contents.items() if one == NO_FILE):
            # Not before: who makes the folder anew takes its turn there, not here.
            _remove_empty(partition.folder(lake / table), lake / table)


def remove_empty_folders(lake: Path, table: str, partition: Partition) -> None:
    """Remove the folder of a part, and those that it lies in, while they are empty and nobody has his turn there."""
    folder = partition.folder(lake / table)
    with if_free(folder, os.O_RDONLY | os.O_DIRECTORY) as is_free:
        if is_free:
            _remove_empty(folder, lake / table)


def begin(lake: Path, partition: Partition) -> None:
    """Begin the record of an iteration, where there is none: with the parts of versions that kept none, as they are.

    Raises:
        OutputError: it cannot be written.
    """
    with _opened(lake, partition.run, partition.iteration, shared=True):
        pass


def check(lake: Path, table: Table, partitions: Iterable[Partition]) -> Mapping[str, set[str]]:
    """Compare parts with their record; a file that is as it was when this process last compared it is not read again.

    Returns:
        Column → runs of which some part lacked it, as an earlier version computed it: there it is NULL.

    Raises:
        BadInputError: a part is not the one that was written there; it names table, run, iteration and rank.
    """
    wrong = []
    missing: dict[str, set[str]] = {}
    packs: set[tuple[str, int, Pack]] = set()
    records: dict[tuple[str, int], Record] = {}
    for one in partitions:
        place = (one.run, one.iteration)
        # Of thousands of parts nearly all are as this says; the rest is looked at one by one.
        record = records.get(place) or records.setdefault(place, recorded(lake, *place))
        held = record.held((table.name, one.rank))
        if not isinstance(held, Pack) and _is_settled_as(held, own_path(lake, table.name, one)):
            _add_missing(missing, one.run, held)
            continue
        pack = pack_of(lake, table.name, one)
        if pack is not None:
            if (one.run, one.iteration, pack) in packs:
                continue
            packs.add((one.run, one.iteration, pack))
        try:
            if not is_as_recorded(lake, table.name, one):
                wrong.append(one)
        except OSError as error:
            fault, remedy = fault_and_remedy(error)
            path = file_of(lake, table.name, one)
            raise BadInputError(path, f"{fault} ({error.strerror})", remedy) from error
        contents = recorded(lake, one.run, one.iteration).contents.get((table.name, one.rank), ())
        _add_missing(missing, one.run, contents if pack is None else [pack])
    if wrong:
        raise mismatch(lake, table.name, wrong)
    return missing


def _is_settled_as(held: tuple[Content, ...], path: str) -> bool:
    """Whether the file of a part is the only one that it may have."""
    try:
        return len(held) == 1 and _digest_in(path, *_state(path)) == held[0].digest
    except (OSError, _ChangedError):
        return False


def _add_missing(missing: dict[str, set[str]], run: str, held: Iterable[Content | Pack]) -> None:
    for name in (name for one in held for name in one.missing):
        missing.setdefault(name, set()).add(run)


def tell_missing(table: Table, missing: Mapping[str, set[str]], asked: Collection[str]) -> None:
    """Log, once a process, which of the columns that are asked an earlier version did not have.

    Args:
        missing: what :func:`check` gave.
    """
    names = [name for name in missing if name in asked]
    if names:
        runs = sorted({run for name in names for run in missing[name]})
        _tell(
            f"table {table.name}: an earlier version computed run {', '.join(runs)}, without {', '.join(names)}, which "
            "are NULL there; run traceviz analyze on its traces again to have them"
        )


@lru_cache(maxsize=1024)
def _tell(line: str) -> None:
    _log.warning("traceviz: %s", printable(line))


def mismatch(lake: Path, table: str, wrong: list[Partition]) -> BadInputError:
    """The error about parts of a table that are not as they were written."""
    first = wrong[0]
    path = file_of(lake, table, first)
    others = f"; {len(wrong) - 1} more parts of this table are not either" if len(wrong) > 1 else ""
    fault, remedy = "the file is damaged, or is not the one that was written there", ANALYSE_AGAIN
    if pack_of(lake, table, first) is not None:
        fault, remedy = "its packed file is damaged, is gone, or is not the one that was written there", PACK_AGAIN
    elif not is_listed(lake, table, first):
        fault, remedy = "no file was written there", f"{ANALYSE_AGAIN}; where it has none, {SET_ASIDE}"
    return BadInputError(path, f"table {table}, {first.in_words}: {fault}{others}", remedy)


def gone_parts(lake: Path, table: Table, run: str | None = None, iteration: int | None = None) -> list[Partition]:
    """Parts of a table, or of these iterations of it, that are recorded and not there."""
    found = find_parts(lake, table, run, iteration)
    there = {one for parts in found for one in parts.partitions}
    lost = [one for one in found if one.packed and is_pack_lost(lake, table.name, one.run, one.iteration)]
    places = recorded_iterations(lake) if run is None or iteration is None else [(run, iteration)]
    places = [place for place in places if run in (None, place[0]) and iteration in (None, place[1])]
    gone = [
        place
        for run, iteration in places
        for (name, rank), contents in recorded(lake, run, iteration).contents.items()
        if name == table.name and NO_FILE not in contents and (place := Partition(run, iteration, rank)) not in there
    ]
    # A writer may have come between the two looks.
    gone = [
        place
        for place in gone
        if NO_FILE not in recorded(lake, place.run, place.iteration).contents.get((table.name, place.rank), (NO_FILE,))
        and not (place.folder(lake / table.name) / FILE_NAME).is_file()
    ]
    lost = [one for one in lost if recorded(lake, one.run, one.iteration).packs.get(table.name) == one.pack]
    return [*gone, *(Partition(one.run, one.iteration, rank) for one in lost for rank in one.packed)]


def is_pack_lost(lake: Path, table: str, run: str, iteration: int) -> bool:
    """Whether somebody deleted the packed file of a table of an iteration."""
    pack = recorded(lake, run, iteration).packs.get(table)
    return pack is not None and not pack.path(lake, run, iteration).is_file()


def refuse_gone(lake: Path, table: Table, run: str, iteration: int) -> None:
    """Refuse a table of an iteration whose file somebody deleted: without it nobody knows what it held.

    Tables by rank are not refused: who reads them names the ranks that are gone.

    Raises:
        BadInputError: the file is recorded and not there.
    """
    if "rank" not in table.partitioned_by and (gone := gone_parts(lake, table, run, iteration)):
        fault = f"table {table.name}, {gone[0].in_words}: somebody deleted the file"
        raise BadInputError(gone[0].folder(lake / table.name) / FILE_NAME, fault, ANALYSE_AGAIN)


def is_as_recorded(
    lake: Path, table: str, partition: Partition, *, read_again: bool = False, may_be_gone: bool = True
) -> bool:
    """Whether a part is the one that was written there, or is gone; of a version that kept no record, any file is.

    Args:
        read_again: whether also a file that this process has read is read.

    Raises:
        OSError: it cannot be read.
    """
    digest_in = _digest_in.__wrapped__ if read_again else _digest_in
    compared = None
    while True:
        record = recorded(lake, partition.run, partition.iteration)
        pack = _pack_in(record, lake, table, partition)
        wanted = record.digests((table, partition.rank)) if pack is None else (pack.digest,)
        path = (
            own_path(lake, table, partition)
            if pack is None
            else str(pack.path(lake, partition.run, partition.iteration))
        )
        state = None
        try:
            state = _state(path)
            if not wanted:
                right = not record.is_complete and _is_of_earlier_version(path, *state)
            else:
                right = digest_in(path, *state) in wanted
        except (FileNotFoundError, NotADirectoryError):
            # A part that is gone is named by those who count them; what is packed has nobody else to miss it.
            right = may_be_gone and pack is None
        except _ChangedError:
            continue
        # A writer may have come between the two looks: only what stays the same is wrong.
        if right or compared == (wanted, state):
            return right
        compared = (wanted, state)


def content_of(lake: Path, table: str, partition: Partition) -> Content | None:
    """What a part holds, as far as it is recorded; where its last writer was killed, its file shows which."""
    part, record = (table, partition.rank), recorded(lake, partition.run, partition.iteration)
    pack = _pack_in(record, lake, table, partition)
    if pack is not None:
        sources = sources_of(lake, partition.run, partition.iteration, pack)
        return None if sources is None else sources.contents.get(part, (None,))[-1]
    contents = record.contents.get(part, ())
    if len(contents) > 1:
        contents = _of_file(contents, partition.folder(lake / table) / FILE_NAME) or contents
    return contents[-1] if contents else None


def pack_of(lake: Path, table: str, partition: Partition) -> Pack | None:
    """The packed file that holds a part; None where it has a file of its own, or none."""
    return _pack_in(recorded(lake, partition.run, partition.iteration), lake, table, partition)


def _pack_in(record: Record, lake: Path, table: str, partition: Partition) -> Pack | None:
    held = record.held((table, partition.rank)) if partition.rank is not None else ()
    if isinstance(held, Pack):
        return held
    # Announced, and not settled: until its own file is the new one, that which is packed counts.
    is_packed = AS_PACKED in held and not _of_file(held, partition.folder(lake / table) / FILE_NAME)
    return record.packs[table] if is_packed else None


def sources_of(lake: Path, run: str, iteration: int, pack: Pack) -> Record | None:
    """What each part of a packed file was when it was packed; None where the file that says so is damaged or gone.

    Raises:
        BadInputError: it is of a newer version.
    """
    path = packed_folder(lake, run, iteration) / pack.sources
    if digest_in_place(path) != pack.sources:
        return None
    return _lines_of(path, run, iteration)


def file_of(lake: Path, table: str, partition: Partition) -> Path:
    """The file that holds a part, or will hold it once it is written."""
    pack = pack_of(lake, table, partition)
    own = own_path(lake, table, partition)
    return Path(own) if pack is None else pack.path(lake, partition.run, partition.iteration)


def own_path(lake: Path, table: str, partition: Partition) -> str:
    """The file of a part by itself; of thousands, a Path each would take as long as all the rest."""
    return f"{lake}/{table}/{partition.below}/{FILE_NAME}"


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a table in one iteration.

    Attributes:
        own: those with a file of their own.
        pack: the file that holds the rest, if there is one.
        packed: their ranks, in order.
        others: ranks of which what the packed file has does not count.
    """

    run: str
    iteration: int
    own: tuple[Partition, ...]
    pack: Pack | None = None
    packed: Sequence[int] = ()
    others: tuple[int, ...] = ()

    @property
    def partitions(self) -> Iterator[Partition]:
        """All parts, in no order."""
        yield from self.own
        yield from (Partition(self.run, self.iteration, rank) for rank in self.packed)

    @property
    def one_a_file(self) -> tuple[Partition, ...]:
        """A part of each file."""
        return (*self.own, *(Partition(self.run, self.iteration, rank) for rank in self.packed[:1]))

    def files(self, lake: Path, table: str) -> list[Path]:
        """The files that hold them, the packed one last."""
        files = [Path(own_path(lake, table, one)) for one in self.own]
        pack = self.pack if self.packed else None
        return files if pack is None else [*files, pack.path(lake, self.run, self.iteration)]


def find_parts(
    lake: Path, table: Table, run: str | None = None, iteration: int | None = None, rank: int | None = None
) -> list[Parts]:
    """The parts of a table, iteration by iteration, in no order: every reader goes by this list.

    Raises:
        BadInputError: a record is of a newer version, or the line of a packed file is damaged.
    """
    while True:
        packs = _packs(lake, table, run, iteration)
        found = [
            _parts_beside(lake, table.name, place, pack, recorded(lake, *place), rank) for place, pack in packs.items()
        ]
        files = find_files(lake / table.name, table, run, iteration, rank, without=packs)
        for (name, number), own in groupby(files, key=lambda one: (one.run, one.iteration)):
            found.append(Parts(name, number, tuple(own)))
        # What was packed between the two looks may have lost its own files since.
        if _packs(lake, table, run, iteration) == packs:
            return found


def find_packed(lake: Path) -> dict[str, list[Parts]]:
    """As :func:`find_parts`, of the iterations with packed files alone: table → parts."""
    found: dict[str, list[Parts]] = {}
    for place in packed_iterations(lake):
        record = recorded(lake, *place)
        for name, pack in record.packs.items():
            found.setdefault(name, []).append(_parts_beside(lake, name, place, pack, record))
    return found


def find_partitions(
    lake: Path, table: Table, run: str | None = None, iteration: int | None = None, rank: int | None = None
) -> Iterator[Partition]:
    """The parts of a table one by one, as :func:`find_parts`."""
    return (one for parts in find_parts(lake, table, run, iteration, rank) for one in parts.partitions)


def packed_iterations(lake: Path, run: str | None = None, iteration: int | None = None) -> Iterator[tuple[str, int]]:
    """Run and iteration of those whose record names packed files.

    Raises:
        BadInputError: the record of a packed iteration is damaged or gone, so that nobody knows what it had.
    """
    wanted = None if run is None else escape(run), None if iteration is None else str(iteration)
    for name, folder in values_in(f"{lake}/{PACKED_FOLDER}", "run", wanted[0]):
        for number, below in values_in(folder, "iteration", wanted[1]):
            if not os.path.isdir(below):  # noqa: PTH112 - as for Partition.below
                continue
            record = recorded(lake, name, int(number))
            if record.lost_packs or record is NOTHING:
                fault = "is damaged or gone, and with it the names of the packed files of this iteration"
                raise BadInputError(_path(lake, name, int(number)), fault, FORGET_PACKS)
            if record.packs:
                yield name, int(number)


def _packs(lake: Path, table: Table, run: str | None, iteration: int | None) -> dict[tuple[str, int], Pack]:
    """Run and iteration → the packed file of a table."""
    if "rank" not in table.partitioned_by:
        return {}
    packs = {place: recorded(lake, *place).packs.get(table.name) for place in packed_iterations(lake, run, iteration)}
    return {place: pack for place, pack in packs.items() if pack is not None}


def _parts_beside(
    lake: Path, table: str, place: tuple[str, int], pack: Pack, record: Record, rank: int | None = None
) -> Parts:
    """The parts of a table in an iteration that has a packed file of it."""
    named = [Partition(*place, one) for name, one in record.contents if name == table and rank in (None, one)]
    apart = [one for one in named if pack_of(lake, table, one) is None]
    own = tuple(one for one in apart if (one.folder(lake / table) / FILE_NAME).is_file())
    others = {one.rank for one in apart if one.rank is not None and one.rank in pack}
    ranks: Sequence[int] = (rank,) if rank is not None and rank in pack else ()
    if rank is None:
        # Of a thousand ranks in each of many iterations, nothing that one may spare is made.
        ranks = pack.ranks[0] if len(pack.ranks) == 1 else tuple(pack.each_rank())
    packed = tuple(one for one in ranks if one not in others) if others else ranks
    return Parts(*place, own, pack, packed, tuple(sorted(others)))


def _of_file(contents: Iterable[Content], path: Path) -> tuple[Content, ...]:
    """Those of the contents that a part may have that its file has, or the lack of one."""
    found = digest_in_place(path) or GONE
    return tuple(one for one in contents if one.digest == found)


def is_listed(lake: Path, table: str, partition: Partition) -> bool:
    """Whether the record shows a part's digest."""
    return content_of(lake, table, partition) is not None


def digest_in_place(path: Path) -> str | None:
    """The digest of a file, which a process reads once as long as it stays as it is; None where it is gone.

    Raises:
        OSError: it cannot be read.
    """
    while True:
        try:
            return _digest_in(str(path), *_state(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except _ChangedError:
            continue


def recorded(lake: Path, run: str, iteration: int) -> Record:
    """What is recorded of an iteration; nothing where there is no file.

    Raises:
        BadInputError: a newer version wrote it.
    """
    try:
        return _lines_of(f"{lake}/{FOLDER}/{_place(run, iteration)}", run, iteration)
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING


def _lines_of(path: str | Path, run: str, iteration: int) -> Record:
    while True:
        try:
            record = _record_in(str(path), _place(run, iteration), *_state(path))
        except _ChangedError:
            continue
        if record.is_newer:
            raise BadInputError(Path(path), "was written by a newer version of traceviz_dag", "update traceviz_dag")
        return record


def settle(lake: Path, run: str, iteration: int) -> None:
    """Bring the record of an iteration into its shortest form: a line per part, in order.

    What killed writers left open is decided by the file that is there. While others write, nothing is done: what they
    leave is settled the next time.
    """
    path = _path(lake, run, iteration)
    with suppress(OSError), if_free(path, os.O_RDWR | os.O_NOFOLLOW) as is_free:
        if is_free:
            former = path.read_bytes()
            record = parsed(_place(run, iteration), former)
            # A line that this version does not know, or knows to be lost, would be gone for good.
            if not (record.is_newer or (record.lost_packs and packed_folder(lake, run, iteration).exists())):
                _write_shortest(lake, run, iteration, record, former)


@contextmanager
def exclusively(lake: Path, run: str, iteration: int) -> Iterator[None]:
    """Nobody writes a part of an iteration meanwhile, or settles its record."""
    with _opened(lake, run, iteration, shared=False):
        yield


def write_packs(lake: Path, run: str, iteration: int, packs: Iterable[Pack], former: Record) -> None:
    """Name packed files in the record of an iteration, in one step: what else was recorded since wins over them.

    Args:
        packs: whose files, and those of their sources, are on the disk.
        former: the record of which they were made.

    Raises:
        OutputError: it cannot be written; then nothing is packed that was not before.
    """
    with exclusively(lake, run, iteration):
        record = recorded(lake, run, iteration)
        contents, now = dict(record.contents), dict(record.packs)
        for pack in packs:
            now[pack.table] = pack
            for part in ((pack.table, rank) for rank in pack.each_rank()):
                if _is_same(record.held(part), former.held(part)):
                    contents.pop(part, None)
                else:
                    contents.setdefault(part, (NO_FILE,))
        _write_shortest(lake, run, iteration, replace(record, contents=contents, packs=now), b"")


def _is_same(now: tuple[Content, ...] | Pack, then: tuple[Content, ...] | Pack) -> bool:
    if isinstance(now, Pack) and isinstance(then, Pack):
        return now.digest == then.digest
    return now == then


def forget_packs(lake: Path, run: str, iteration: int) -> None:
    """Bring the record of an iteration whose packed files are lost into a state in which their ranks are not there."""
    with _opened(lake, run, iteration, shared=False):
        record = parsed(_place(run, iteration), _path(lake, run, iteration).read_bytes())
        _write_shortest(lake, run, iteration, replace(record, packs={}), b"")


def recorded_iterations(lake: Path) -> list[tuple[str, int]]:
    """Run and iteration of each record."""
    return iterations_below(lake / FOLDER)


def iterations_below(folder: Path) -> list[tuple[str, int]]:
    """Run and iteration of what lies in ``run=…/iteration=N``, in order."""
    return sorted(
        (run, int(number))
        for run, of_run in values_in(str(folder), "run")
        for number, _ in values_in(of_run, "iteration")
    )


def changed_since(lake: Path, time_ns: int) -> list[tuple[int, str, int]]:
    """When the record of an iteration changed last (ns since the epoch), run and iteration, of those that changed
    after that time; the oldest change first."""
    found = []
    for run, iteration in recorded_iterations(lake):
        with suppress(FileNotFoundError):
            changed = _path(lake, run, iteration).stat().st_mtime_ns
            found += [(changed, run, iteration)] if changed > time_ns else []
    return sorted(found)


class _ChangedError(Exception):
    """A file changed while it was read."""


@lru_cache(maxsize=_REMEMBERED)
def _place(run: str, iteration: int) -> str:
    return Partition(run, iteration).below


def _path(lake: Path, run: str, iteration: int) -> Path:
    return lake / FOLDER / _place(run, iteration)


def _state(path: str | Path) -> tuple[int, int, int]:
    # Of thousands of parts, a Path each would take as long as all the rest.
    status = os.stat(path)  # noqa: PTH116
    return status.st_size, status.st_mtime_ns, status.st_ino


@lru_cache(maxsize=_REMEMBERED)
def _digest_in(path: str, *state: int) -> str:
    digest = digest_of(Path(path))
    if _state(path) != state:
        raise _ChangedError
    return digest


@lru_cache(maxsize=_REMEMBERED)
def _is_of_earlier_version(path: str, *state: int) -> bool:
    """Whether a file was written by a version that kept no record; a damaged one is left to its reader."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except DAMAGED:
        return True
    if _state(path) != state:
        raise _ChangedError
    return SCHEMA_VERSION_KEY not in metadata


@lru_cache(maxsize=1024)
def _record_in(path: str, place: str, *state: int) -> Record:
    data = Path(path).read_bytes()
    if _state(path) != state:
        raise _ChangedError
    return parsed(place, data)


def _append(path: Path, descriptor: int, data: bytes, durable: bool) -> None:
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if durable:
            os.fdatasync(descriptor)
    except OSError as error:
        raise unwritable(path, error) from error


def _write_shortest(lake: Path, run: str, iteration: int, record: Record, former: bytes) -> None:
    """Write a record with a line per part, unless those are what it was."""
    path, place = _path(lake, run, iteration), _place(run, iteration)
    settled = {part: _decided(lake, run, iteration, part, contents) for part, contents in record.contents.items()}
    apart = Counter(name for name, rank in settled if settled[name, rank] and rank in record.packs.get(name, ()))
    packs = {name: pack for name, pack in record.packs.items() if apart[name] < sum(map(len, pack.ranks))}
    held, lines = [line_of_pack(place, pack) for _, pack in sorted(packs.items())], []
    for part in in_order(settled):
        # That a part is gone is worth a line where a packed file has it.
        if settled[part] != (NO_FILE,) or part[1] in packs.get(part[0], ()):
            words = (SETTLED, *(ANNOUNCED for _ in settled[part][1:]))
            lines += [line_of(place, word, part, one) for word, one in zip(words, settled[part], strict=False)]
    if not (lines or held):
        # First: of packed files without a record nobody knows whether they count.
        with if_free(packed_folder(lake, run, iteration), os.O_RDONLY | os.O_DIRECTORY) as is_free:
            if is_free:
                remove_others(lake, run, iteration, NOTHING)
        path.unlink()
        with suppress(OSError):
            path.parent.rmdir()
        return
    first = [begun(place, len(held))] if record.is_complete else []
    data = b"".join([*first, *held, *lines])
    if data != former:
        write_atomically(path, data)


def _decided(lake: Path, run: str, iteration: int, part: Part, contents: tuple[Content, ...]) -> tuple[Content, ...]:
    """Which of the contents that a part may have it has, by its file; nothing where that is what a packed file has."""
    if len(contents) == 1:
        return contents
    found = _of_file(contents, Partition(run, iteration, part[1]).folder(lake / part[0]) / FILE_NAME)
    # Of writers of the same bytes the last one counts.
    return found[-1:] or (() if AS_PACKED in contents else contents)


def remove_unnamed(lake: Path, run: str, iteration: int) -> None:
    """As :func:`remove_others`; nothing while somebody packs, or where the record is damaged or gone."""
    with _unnamed(lake, run, iteration) as record:
        if record is not None:
            remove_others(lake, run, iteration, record)


def remove_left_over(lake: Path, run: str, iteration: int, files: Collection[Path]) -> None:
    """As :func:`remove_unnamed`, of these files below its packed ones alone; one that cannot be removed stays."""
    folder = packed_folder(lake, run, iteration)
    with _unnamed(lake, run, iteration) as record:
        for path in {*files} - _named(lake, run, iteration, record) if record is not None else ():
            with suppress(OSError):
                path.unlink(missing_ok=True)
                _remove_empty(path.parent, folder)
        if record is not None:
            _remove_empty(folder, lake)


@contextmanager
def _unnamed(lake: Path, run: str, iteration: int) -> Iterator[Record | None]:
    """What an iteration's record names, while the block keeps others from packing; None where nobody can say so now."""
    with if_free(packed_folder(lake, run, iteration), os.O_RDONLY | os.O_DIRECTORY) as is_free:
        # Not before: a packing that ended between the two looks would lose its files.
        record = recorded(lake, run, iteration) if is_free else NOTHING
        yield None if record.lost_packs or record is NOTHING else record


def is_being_packed(folder: Path) -> bool:
    """Whether somebody packs an iteration, by the folder of its packed files, or has removed that since."""
    with if_free(folder, os.O_RDONLY | os.O_DIRECTORY) as is_free:
        return not is_free


def remove_others(lake: Path, run: str, iteration: int, record: Record) -> int:
    """Remove what lies beside the packed files of an iteration that its record names: what was packed before, and what
    a killed packing left. By whoever has his turn at the folder; returns how many."""
    folder = packed_folder(lake, run, iteration)
    others = {*folder.iterdir()} - _named(lake, run, iteration, record)
    for path in others:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    _remove_empty(folder, lake)
    return len(others)


def _named(lake: Path, run: str, iteration: int, record: Record) -> set[Path]:
    """The packed files that a record names, and the lists of their sources."""
    folder, packs = packed_folder(lake, run, iteration), record.packs.values()
    return {path for pack in packs for path in (pack.path(lake, run, iteration), folder / pack.sources)}


@contextmanager
def turn_at(folder: Path) -> Iterator[None]:
    """The folder of a part, locked; nobody removes it meanwhile."""
    while True:
        try:
            make_folder(folder)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unwritable(folder, error) from error
        try:
            with locked(folder, descriptor):
                if _is_at(descriptor, folder):
                    yield
                    return
        finally:
            os.close(descriptor)


@contextmanager
def _opened(lake: Path, run: str, iteration: int, shared: bool) -> Iterator[int]:
    """The record of an iteration, open for appending; nobody settles it meanwhile.

    Args:
        shared: together with others that append.
    """
    path = _path(lake, run, iteration)
    while True:
        try:
            make_folder(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            if os.fstat(descriptor).st_size == 0:
                with locked(path, descriptor):
                    if _is_at(descriptor, path) and os.fstat(descriptor).st_size == 0:
                        _append(path, descriptor, _beginning(lake, run, iteration), durable=True)
                        sync_folder(path.parent)
            with locked(path, descriptor, shared):
                if _is_at(descriptor, path):
                    yield descriptor
                    return
        finally:
            os.close(descriptor)


def _beginning(lake: Path, run: str, iteration: int) -> bytes:
    """The first lines of a record: the parts that a version without one left."""
    place = _place(run, iteration)
    lines = []
    for table in all_tables().values():
        for partition in find_files(lake / table.name, table, run, iteration):
            part = partition.folder(lake / table.name) / FILE_NAME
            with suppress(FileNotFoundError):
                if _is_of_earlier_version(str(part), *_state(part)):
                    lines.append(line_of(place, SETTLED, (table.name, partition.rank), Content(digest_of(part))))
    # The last one: where it is, none before it is missing.
    return b"".join([*lines, begun(place)])


@contextmanager
def if_free(path: Path, flags: int) -> Iterator[bool]:
    """Whether nobody holds the lock of a file or folder that is there; the block has it then."""
    try:
        descriptor = os.open(path, flags)
    except OSError:
        yield False
        return
    try:
        is_locked = False
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = _is_at(descriptor, path)
        yield is_locked
    finally:
        os.close(descriptor)


def _remove_empty(folder: Path, stop: Path) -> None:
    while folder != stop:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether what is open is still what the path names."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    opened = os.fstat(descriptor)
    return (opened.st_dev, opened.st_ino) == (found.st_dev, found.st_ino)
