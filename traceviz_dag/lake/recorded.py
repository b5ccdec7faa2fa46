"""The lake's record of its parts: what was written is compared with it before it is read.

DuckDB and Arrow do not notice a flipped bit in a Parquet file, nor a file that was copied to another place. So each
iteration has a file of lines, ``lake/.recorded/run=…/iteration=N``, that says which digest each of its parts has. A
writer announces a digest before the part appears under its name and settles it afterwards. Killed in between, it leaves
two digests that the part may have, and both are right: the former file, or the new one. :func:`settle` shows which.

A line holds a checksum over its place and itself, a word, the table, the rank and the digest, of a part that was
converted from an earlier version the digest that it had and the columns that it lacked, and what the part was made of;
the last line of a part counts. Lines are appended in one write, so writers need no lock among themselves; those of one
part take turns.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow.parquet as pq
import xxhash

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.conversion import DAMAGED
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.partitions import (
    ANALYSE_AGAIN,
    FILE_NAME,
    SCHEMA_VERSION_KEY,
    SET_ASIDE,
    Partition,
    fault_and_remedy,
    find_partitions,
    values_in,
)
from traceviz_dag.printable import printable
from traceviz_dag.system.whole_files import locked, make_folder, sync_folder, unwritable, write_atomically
from traceviz_dag.tables import Table, all_tables

_log = logging.getLogger(__name__)

FOLDER = ".recorded"
"""In the lake's folder: no table has this name."""

GONE = "-"
"""Instead of a digest: there is no file."""

_ANNOUNCED, _SETTLED, _BEGUN = "announced", "settled", "begun"
_NO_PART = ("", None)
_LEAST_WORDS = 4
_REMEMBERED = 1 << 16

Part = tuple[str, int | None]
"""Table and rank; the rank is None in tables that hold a whole iteration."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a part holds.

    Attributes:
        digest: that of its file.
        former: where it was converted, the digest that it had before.
        missing: columns that the version which computed it did not have; they are NULL.
        made: of what it was made, a word; empty where the writer did not say. It decides whether the part is stale.
    """

    digest: str
    former: str = GONE
    missing: tuple[str, ...] = ()
    made: str = ""

    @property
    def computed(self) -> str:
        """The digest of the file as it was computed, whatever version converted it since."""
        return self.digest if self.former == GONE else self.former


_GONE = Content(GONE)


@dataclass(frozen=True, slots=True)
class Record:
    """What is recorded of one iteration.

    Attributes:
        contents: part → what it may hold; more than one only where its last writer was killed.
        is_complete: whether it covers every part of the iteration. Where not, the iteration was written by a version
            that kept no record, or the record is damaged.
        damaged_lines: lines that are not as they were written.
    """

    contents: Mapping[Part, tuple[Content, ...]]
    is_complete: bool
    damaged_lines: int = 0

    def digests(self, part: Part) -> tuple[str, ...]:
        """The digests that a part may have; ``GONE`` represents none. Nothing where it is not recorded."""
        return tuple(content.digest for content in self.contents.get(part, ()))


_NOTHING = Record({}, is_complete=False)


@contextmanager
def change_of(lake: Path, table: str, partition: Partition, content: Content = _GONE) -> Iterator[None]:
    """Record a part that the block writes or deletes; writers of the same part take turns.

    Args:
        lake: the folder of all tables.
        content: of the new file; by default it is deleted.

    Raises:
        OutputError: the record cannot be written; the part stays as it is.
    """
    folder = partition.folder(lake / table)
    path = _path(lake, partition.run, partition.iteration)
    with _turn_at(folder), _shared(lake, partition.run, partition.iteration) as record:
        part = (table, partition.rank)
        announced = _line(path, _ANNOUNCED, part, content)
        _append(path, record, announced, durable=content != _GONE)
        yield
        _append(path, record, _line(path, _SETTLED, part, content), durable=False)
        if content == _GONE:
            # Not before: who makes the folder anew takes its turn there, not here.
            _remove_empty(folder, lake / table)


def remove_empty_folders(lake: Path, table: str, partition: Partition) -> None:
    """Remove the folder of a part, and those that it lies in, while they are empty and nobody has his turn there."""
    folder = partition.folder(lake / table)
    with _if_free(folder, os.O_RDONLY | os.O_DIRECTORY) as is_free:
        if is_free:
            _remove_empty(folder, lake / table)


def begin(lake: Path, partition: Partition) -> None:
    """Begin the record of an iteration, where there is none: with the parts of versions that kept none, as they are.

    Raises:
        OutputError: it cannot be written.
    """
    with _shared(lake, partition.run, partition.iteration):
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
    for one in partitions:
        try:
            if not is_as_recorded(lake, table.name, one):
                wrong.append(one)
        except OSError as error:
            fault, remedy = fault_and_remedy(error)
            path = one.folder(lake / table.name) / FILE_NAME
            raise BadInputError(path, f"{fault} ({error.strerror})", remedy) from error
        for content in recorded(lake, one.run, one.iteration).contents.get((table.name, one.rank), ()):
            for name in content.missing:
                missing.setdefault(name, set()).add(one.run)
    if wrong:
        raise mismatch(lake, table.name, wrong)
    return missing


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
    path = first.folder(lake / table) / FILE_NAME
    others = f"; {len(wrong) - 1} more parts of this table are not either" if len(wrong) > 1 else ""
    fault, remedy = "the file is damaged, or is not the one that was written there", ANALYSE_AGAIN
    if not is_listed(lake, table, first):
        fault, remedy = "no file was written there", f"{ANALYSE_AGAIN}; where it has none, {SET_ASIDE}"
    return BadInputError(path, f"table {table}, {first.in_words}: {fault}{others}", remedy)


def gone_parts(lake: Path, table: Table, run: str | None = None, iteration: int | None = None) -> list[Partition]:
    """Parts of a table, or of one iteration of it, that are recorded and not there."""
    there = set(find_partitions(lake / table.name, table, run, iteration))
    places = recorded_iterations(lake) if run is None or iteration is None else [(run, iteration)]
    gone = [
        place
        for run, iteration in places
        for (name, rank), contents in recorded(lake, run, iteration).contents.items()
        if name == table.name and _GONE not in contents and (place := Partition(run, iteration, rank)) not in there
    ]
    # A writer may have come between the two looks.
    return [
        place
        for place in gone
        if _GONE not in recorded(lake, place.run, place.iteration).contents.get((table.name, place.rank), (_GONE,))
        and not (place.folder(lake / table.name) / FILE_NAME).is_file()
    ]


def refuse_gone(lake: Path, table: Table, run: str, iteration: int) -> None:
    """Refuse a table of an iteration whose file somebody deleted: without it nobody knows what it held.

    Tables by rank are not refused: who reads them names the ranks that are gone.

    Raises:
        BadInputError: the file is recorded and not there.
    """
    if "rank" not in table.partitioned_by and (gone := gone_parts(lake, table, run, iteration)):
        fault = f"table {table.name}, {gone[0].in_words}: somebody deleted the file"
        raise BadInputError(gone[0].folder(lake / table.name) / FILE_NAME, fault, ANALYSE_AGAIN)


def is_as_recorded(lake: Path, table: str, partition: Partition, read_again: bool = False) -> bool:
    """Whether a part is the one that was written there, or is gone; of a version that kept no record, any file is.

    Args:
        read_again: whether also a file that this process has read is read.

    Raises:
        OSError: it cannot be read.
    """
    digest_in = _digest_in.__wrapped__ if read_again else _digest_in
    path = f"{lake}/{table}/{partition.below}/{FILE_NAME}"
    compared = None
    while True:
        record = recorded(lake, partition.run, partition.iteration)
        wanted = record.digests((table, partition.rank))
        try:
            state = _state(path)
            if not wanted:
                right = not record.is_complete and _is_of_earlier_version(path, *state)
            else:
                right = digest_in(path, *state) in wanted
        except (FileNotFoundError, NotADirectoryError):
            return True
        except _ChangedError:
            continue
        # A writer may have come between the two looks: only what stays the same is wrong.
        if right or compared == (wanted, state):
            return right
        compared = (wanted, state)


def content_of(lake: Path, table: str, partition: Partition) -> Content | None:
    """What a part holds, as far as it is recorded; where its last writer was killed, its file shows which."""
    contents = recorded(lake, partition.run, partition.iteration).contents.get((table, partition.rank), (None,))
    if len(contents) > 1:
        found = digest_in_place(partition.folder(lake / table) / FILE_NAME) or GONE
        contents = tuple(one for one in contents if one is not None and one.digest == found) or contents
    return contents[-1]


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
    """What is recorded of an iteration; nothing where there is no file."""
    path = f"{lake}/{FOLDER}/{Partition(run, iteration).below}"
    while True:
        try:
            return _record_in(path, *_state(path))
        except (FileNotFoundError, NotADirectoryError):
            return _NOTHING
        except _ChangedError:
            continue


def settle(lake: Path, run: str, iteration: int) -> None:
    """Bring the record of an iteration into its shortest form: a line per part, in order.

    What killed writers left open is decided by the file that is there. While others write, nothing is done: what they
    leave is settled the next time.
    """
    path = _path(lake, run, iteration)
    with suppress(OSError), _if_free(path, os.O_RDWR | os.O_NOFOLLOW) as is_free:
        if is_free:
            _write_shortest(lake, run, iteration)


def recorded_iterations(lake: Path) -> list[tuple[str, int]]:
    """Run and iteration of each record."""
    return sorted(
        (run, int(iteration))
        for run, folder in values_in(f"{lake}/{FOLDER}", "run")
        for iteration, _ in values_in(folder, "iteration")
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


def _path(lake: Path, run: str, iteration: int) -> Path:
    return Partition(run, iteration).folder(lake / FOLDER)


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
def _record_in(path: str, *state: int) -> Record:
    data = Path(path).read_bytes()
    if _state(path) != state:
        raise _ChangedError
    return _parsed(Path(path), data)


def _parsed(path: Path, data: bytes) -> Record:
    contents: dict[Part, tuple[Content, ...]] = {}
    complete, damaged = False, 0
    place = _place(path)
    for line in data.split(b"\n"):
        if not line:
            continue
        checksum, _, rest = line.partition(b" ")
        if checksum != _checksum(place, rest):
            damaged += 1
            continue
        word, table, rank, digest, *more = rest.decode().split(" ")
        former, missing, made = (*more, *(GONE, GONE, "")[len(more) :])
        content = Content(digest, former, tuple(missing.split(",")) if missing != GONE else (), made)
        part = (table, None if rank == GONE else int(rank))
        if word == _BEGUN:
            complete = True
        elif word == _SETTLED:
            contents[part] = (content,)
        else:
            contents[part] = tuple(dict.fromkeys((*contents.get(part, (_GONE,)), content)))
    return Record(contents, complete, damaged)


def _line(path: Path, word: str, part: Part, content: Content) -> bytes:
    table, rank = part
    words = [word, table or GONE, GONE if rank is None else str(rank), content.digest]
    words += [content.former, ",".join(content.missing) or GONE, content.made]
    while len(words) > _LEAST_WORDS and words[-1] in (GONE, ""):
        words.pop()
    rest = " ".join(words).encode()
    # The break comes first: what a full disk left of a line before does not touch this one.
    return b"\n" + _checksum(_place(path), rest) + b" " + rest


def _place(path: Path) -> bytes:
    return f"{path.parent.name}/{path.name} ".encode()


def _checksum(place: bytes, rest: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(place + rest).encode()


def _append(path: Path, descriptor: int, data: bytes, durable: bool) -> None:
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if durable:
            os.fdatasync(descriptor)
    except OSError as error:
        raise unwritable(path, error) from error


def _write_shortest(lake: Path, run: str, iteration: int) -> None:
    path = _path(lake, run, iteration)
    former = path.read_bytes()
    record = _parsed(path, former)
    lines = [_line(path, _BEGUN, _NO_PART, _GONE)] if record.is_complete else []
    holds_parts = False
    for part in sorted(record.contents, key=lambda part: (part[0], -1 if part[1] is None else part[1])):
        contents = record.contents[part]
        if len(contents) > 1:
            table, rank = part
            found = digest_in_place(Partition(run, iteration, rank).folder(lake / table) / FILE_NAME) or GONE
            # Of writers of the same bytes the last one counts.
            contents = tuple(content for content in contents if content.digest == found)[-1:] or contents
        if contents != (_GONE,):
            holds_parts = True
            lines.append(_line(path, _SETTLED, part, contents[0]))
            lines += [_line(path, _ANNOUNCED, part, content) for content in contents[1:]]
    if not holds_parts:
        path.unlink()
        with suppress(OSError):
            path.parent.rmdir()
    elif b"".join(lines) != former:
        write_atomically(path, b"".join(lines))


@contextmanager
def _turn_at(folder: Path) -> Iterator[None]:
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
def _shared(lake: Path, run: str, iteration: int) -> Iterator[int]:
    """The record of an iteration, open for appending; nobody settles it meanwhile."""
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
            with locked(path, descriptor, shared=True):
                if _is_at(descriptor, path):
                    yield descriptor
                    return
        finally:
            os.close(descriptor)


def _beginning(lake: Path, run: str, iteration: int) -> bytes:
    """The first lines of a record: the parts that a version without one left."""
    path = _path(lake, run, iteration)
    lines = []
    for table in all_tables().values():
        for partition in find_partitions(lake / table.name, table, run, iteration):
            part = partition.folder(lake / table.name) / FILE_NAME
            with suppress(FileNotFoundError):
                if _is_of_earlier_version(str(part), *_state(part)):
                    lines.append(_line(path, _SETTLED, (table.name, partition.rank), Content(digest_of(part))))
    # The last one: where it is, none before it is missing.
    return b"".join([*lines, _line(path, _BEGUN, _NO_PART, _GONE)])


@contextmanager
def _if_free(path: Path, flags: int) -> Iterator[bool]:
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
