"""Which files make up each registered iteration: the list that discovery writes and the assets read.

One small JSON file an iteration, under HOME/inputs/. It names the files, how they looked (size, times of change) and
what they held (a digest), so that a file is read again only when it looks different; it stays in the home and is no
table.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec
import xxhash

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.digests import digest_of, stamp_of
from traceviz_dag.lake.partition_keys import iteration_key, parse_iteration_key
from traceviz_dag.lake.partitions import check_run, escape
from traceviz_dag.printable import printable
from traceviz_dag.system.json_bytes import decoded
from traceviz_dag.system.whole_files import write_atomically

FOLDER = "inputs"

_READERS = 4

_FIRST_ENTRY_BYTES = 2**15
"""Within these a list names its folder and its first file, however long their paths are (4,096 bytes at most)."""

Looked = TypeVar("Looked", "RankInput", "SnapshotInput")


@dataclass(frozen=True, slots=True)
class RankInput:
    """One rank's trace file.

    Attributes:
        name: path relative to the run's folder, the name that tables and messages use.
        step: the ProfilerStep that is the iteration, where the file holds several; None takes the whole file.
        part: process and GPU that are the rank, in a file that holds several ranks; empty takes the whole file.
        size_bytes, changed_ns, renewed_ns: as ``stamp_of`` gave them when the file was registered.
        digest: of the file's bytes when it looked like that; empty where nobody computed it.
        format: name of its trace format; never empty in a list that was read by ``registered``.
        refusal: why it is not taken for the rank that it claims to be: it is of another job; empty where it is taken.
        counted_by: what counts iterations from 0 where nothing bears their numbers, in words; empty where one does.
    """

    rank: int
    path: str
    name: str
    step: int | None
    size_bytes: int
    changed_ns: int
    digest: str = ""
    part: str = ""
    refusal: str = ""
    format: str = ""
    counted_by: str = ""
    renewed_ns: int = 0

    @property
    def version(self) -> str:
        """Changes whenever the file's content does, or what its refusal says; the data version of the raw trace.

        Without a digest it changes whenever the file looks different.
        """
        version = self.digest or f"{self.size_bytes}-{self.changed_ns}"
        return f"{version}-{xxhash.xxh3_64_hexdigest(self.refusal.encode())}" if self.refusal else version

    @property
    def look(self) -> tuple[str, int, int, int]:
        """Path, size and times of change: what shows at once that a file is as it was."""
        return (self.path, self.size_bytes, self.changed_ns, self.renewed_ns)


@dataclass(frozen=True, slots=True)
class SnapshotInput:
    """One rank's snapshot of GPU memory; size, times of change and digest as of a trace."""

    rank: int
    path: str
    name: str
    size_bytes: int
    changed_ns: int
    digest: str = ""
    renewed_ns: int = 0

    @property
    def version(self) -> str:
        """Changes whenever the file's content does; without a digest whenever it looks different."""
        return self.digest or f"{self.size_bytes}-{self.changed_ns}"

    @property
    def look(self) -> tuple[str, int, int, int]:
        """Path, size and times of change: what shows at once that a file is as it was."""
        return (self.path, self.size_bytes, self.changed_ns, self.renewed_ns)


@dataclass(frozen=True, slots=True)
class IterationInputs:
    """The files of one iteration.

    Attributes:
        problems: one line per file that discovery found and could not place.
        warnings: one line per file that contradicts its own path, and per snapshot of GPU memory that is left out.
        disputed: ranks that several files claim, so that none of them is taken.
        snapshots: snapshots of GPU memory beside the traces, one per rank.
    """

    run: str
    iteration: int
    folder: str
    ranks: tuple[RankInput, ...]
    topology_file: str | None = None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    disputed: tuple[int, ...] = ()
    snapshots: tuple[SnapshotInput, ...] = ()

    @property
    def files(self) -> tuple[RankInput | SnapshotInput, ...]:
        """Traces and snapshots."""
        return (*self.ranks, *self.snapshots)

    @property
    def snapshots_version(self) -> str:
        """Changes whenever one of the snapshots does; empty without any."""
        words = [f"{one.rank}:{one.version}" for one in self.snapshots]
        return xxhash.xxh3_64_hexdigest(" ".join(words).encode()) if words else ""

    @property
    def key(self) -> str:
        """The partition key of the iteration."""
        return iteration_key(self.run, self.iteration)

    def rank(self, rank: int) -> RankInput | None:
        """The input of a rank; None for a rank that this iteration does not have."""
        return next((entry for entry in self.ranks if entry.rank == rank), None)


def register(home: Path, inputs: IterationInputs) -> bool:
    """Write the list of one iteration; returns whether it differs from what was there.

    Raises:
        UsageError: no run can have this name.
    """
    check_run(inputs.run)
    path = _path(home, inputs.key)
    encoded = _with_checksum(msgspec.json.format(msgspec.json.encode(inputs)))
    if path.is_file() and path.read_bytes() == encoded:
        return False
    write_atomically(path, encoded)
    return True


def registered(home: Path, key: str) -> IterationInputs:
    """The list of one iteration.

    Raises:
        BadInputError: the iteration was never registered in this home, or its list is damaged.
    """
    path = _path(home, key)
    if path.exists() and not path.is_file():
        raise BadInputError(path, "no file", "move it away and run traceviz analyze again")
    try:
        data = path.read_bytes()
        if not _is_whole(data):
            raise BadInputError(path, "is damaged (its checksum differs)", "delete it and run traceviz analyze again")
        found = decoded(data, IterationInputs)
        if found.key != key:
            fault = f"is the list of {printable(found.key)}, in the place of another"
            raise BadInputError(path, fault, "delete it and run traceviz analyze again")
        return _with_formats(found)
    except FileNotFoundError:
        raise BadInputError(path, f"iteration {key} is not registered", "run traceviz analyze on its folder") from None
    except msgspec.DecodeError as error:
        raise BadInputError(path, f"is damaged ({error})", "delete it and run traceviz analyze again") from None


def registered_if_any(home: Path, key: str) -> IterationInputs | None:
    """The list of one iteration; None where it was never registered.

    Raises:
        BadInputError: its list is damaged.
    """
    return registered(home, key) if _path(home, key).is_file() else None


def _with_checksum(data: bytes) -> bytes:
    """A list with its checksum as the last key: JSON has no means to notice a digit that changed."""
    return data.removesuffix(b"\n}") + b',\n  "checksum": "' + xxhash.xxh3_128_hexdigest(data).encode() + b'"\n}'


def _is_whole(data: bytes) -> bool:
    """Whether a list has its checksum; one of an earlier version has none."""
    stated = re.search(rb',\n  "checksum": "([0-9a-f]{32})"\n\}$', data)
    return stated is None or xxhash.xxh3_128_hexdigest(data[: stated.start()] + b"\n}").encode() == stated[1]


def forget(home: Path, key: str) -> None:
    """Drop the list of an iteration, if there is one; its files stay."""
    _path(home, key).unlink(missing_ok=True)


def with_digests(home: Path, inputs: Sequence[IterationInputs], *, read_again: bool = False) -> list[IterationInputs]:
    """The same lists with each file's digest.

    A file that looks as it did when it was registered keeps the digest that is there, unless it is to be read again;
    the others are read, each once, however many iterations it holds. A file that is gone by now stays without.
    """
    # Who only reads a home needs no threads.
    from concurrent.futures import ThreadPoolExecutor

    known = {
        entry.look: entry.digest
        for one in inputs
        if (before := _undamaged(home, one.key)) is not None
        for entry in before.files
        if entry.digest and not read_again
    }
    new = {entry.look for one in inputs for entry in one.files if entry.look not in known}
    with ThreadPoolExecutor(_READERS) as pool:
        known |= zip(new, pool.map(_digest_if_there, [path for path, *_ in new]), strict=True)
    return [
        replace(
            one,
            ranks=tuple(replace(entry, digest=known[entry.look]) for entry in one.ranks),
            snapshots=tuple(replace(entry, digest=known[entry.look]) for entry in one.snapshots),
        )
        for one in inputs
    ]


def as_they_look_now(inputs: IterationInputs) -> IterationInputs:
    """The same files with their size and time of change of this moment; a file that is gone keeps what it had."""

    def look_again(entry: Looked) -> Looked:
        try:
            size, changed, renewed = stamp_of(Path(entry.path))
        except FileNotFoundError:
            return entry
        return replace(entry, size_bytes=size, changed_ns=changed, renewed_ns=renewed)

    ranks, snapshots = tuple(map(look_again, inputs.ranks)), tuple(map(look_again, inputs.snapshots))
    return replace(inputs, ranks=ranks, snapshots=snapshots)


def all_registered(home: Path) -> Iterator[IterationInputs]:
    """The lists of all iterations, by key."""
    for path in sorted((home / FOLDER).glob("*.json")):
        yield registered(home, path.stem)


def registered_before(home: Path, seconds: float) -> Iterator[IterationInputs]:
    """The lists of all iterations, by key, that were not written since a time (seconds since the epoch)."""
    for path in sorted((home / FOLDER).glob("*.json")):
        if path.stat().st_mtime < seconds:
            yield registered(home, path.stem)


def registered_iterations(home: Path) -> dict[str, list[int]]:
    """Run → its registered iterations."""
    found: dict[str, list[int]] = {}
    for path in sorted((home / FOLDER).glob("*.json")):
        with suppress(UsageError):  # It is a file of somebody else.
            run, iteration = parse_iteration_key(path.stem)
            found.setdefault(run, []).append(iteration)
    return found


def folder_of_run(home: Path, run: str) -> Path | None:
    """The folder that a run was registered from; None for a run that this home does not know."""
    # Any of its iterations shows; a damaged list is reported by what needs it.
    for path in (home / FOLDER).glob(f"{glob.escape(escape(run))}@*.json"):
        with suppress(BadInputError):
            return Path(registered(home, path.stem).folder)
    return None


def registered_of_name(home: Path, run: str, *, longer: bool = False) -> Iterator[IterationInputs]:
    """The undamaged lists of all iterations of a run; with ``longer``, those of the runs called ``RUN-…``."""
    names = f"{glob.escape(escape(f'{run}-'))}*" if longer else glob.escape(escape(run))
    for path in sorted((home / FOLDER).glob(f"{names}@*.json")):
        with suppress(BadInputError):
            yield registered(home, path.stem)


def registered_with_first(home: Path, run: str, digest: str) -> Iterator[IterationInputs]:
    """The undamaged lists of a run whose first file has this digest; of the others the beginning alone is read."""
    for path in sorted((home / FOLDER).glob(f"{glob.escape(escape(run))}@*.json")):
        with suppress(BadInputError, FileNotFoundError):
            with path.open("rb") as file:
                head = file.read(_FIRST_ENTRY_BYTES)
            if digest.encode() in head:
                yield registered(home, path.stem)


def of_the_same_files(home: Path, inputs: IterationInputs) -> list[IterationInputs]:
    """The other iterations that lie in the files of one; none where these have no digests."""
    first = inputs.ranks[0] if inputs.ranks else None
    if first is None or first.step is None or not first.digest:
        return []
    return [one for one in registered_with_first(home, inputs.run, first.digest) if one.key != inputs.key]


def registered_of_run(home: Path, run: str, *, before: int, newest: int) -> list[IterationInputs]:
    """The run's registered iterations below a number, highest first, at most ``newest`` of them."""
    numbers = []
    for path in (home / FOLDER).glob(f"{glob.escape(escape(run))}@*.json"):
        _, number = parse_iteration_key(path.stem)
        if number < before:
            numbers.append(number)
    return [registered(home, iteration_key(run, number)) for number in sorted(numbers, reverse=True)[:newest]]


def _with_formats(inputs: IterationInputs) -> IterationInputs:
    """The same list with a format for each rank: registrations once had none, and knew two formats, of which the files
    of one alone had parts."""
    if all(entry.format for entry in inputs.ranks):
        return inputs
    named = (replace(entry, format=entry.format or ("nsys" if entry.part else "kineto")) for entry in inputs.ranks)
    return replace(inputs, ranks=tuple(named))


def _undamaged(home: Path, key: str) -> IterationInputs | None:
    """The list that is about to be replaced; a damaged one shows nothing."""
    try:
        return registered_if_any(home, key)
    except BadInputError:
        return None


def _digest_if_there(path: str) -> str:
    try:
        return digest_of(Path(path))
    except OSError:
        # It is gone, or cannot be read: reading it as a trace says what is wrong, and costs this rank alone.
        return ""


def _path(home: Path, key: str) -> Path:
    return home / FOLDER / f"{key}.json"
