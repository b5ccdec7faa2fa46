"""A home at ``s3://``: its tables are published there, and read in a folder of this machine that is a home itself.

Below the prefix lie ``parts/DIGEST`` (files of the lake, records and lists of inputs, each under the digest of its
bytes) and ``manifest.json``, which names the record of each iteration. A manifest is written on the condition that
it is the one that was read: that write is the commit, for all iterations at once. What a kill leaves are parts that no
manifest names. Nothing is listed but by :meth:`Published.faults` and :meth:`Published.clean`.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TypeVar

import msgspec
import xxhash

from traceviz_dag.errors import StoreError, UsageError
from traceviz_dag.lake.inputs import IterationInputs, register, registered_if_any
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key, parse_iteration_key
from traceviz_dag.lake.partitions import FILE_NAME, Partition
from traceviz_dag.lake.record_lines import NO_FILE, SETTLED, Content, Part, begun, in_order, line_of, parsed
from traceviz_dag.lake.recorded import change_of, content_of, recorded, recorded_iterations
from traceviz_dag.lake.verify import Cleaned, Fault, LeftOver
from traceviz_dag.printable import OBJECTS_FOLDER
from traceviz_dag.system.json_bytes import decoded
from traceviz_dag.system.objects import Bucket, Found, ReplacedError
from traceviz_dag.system.whole_files import write_atomically, write_together

STATE = "published.json"
"""In the folder of this machine: what of it was published, or fetched."""

_FORMAT = 1
_MOST_PARTS = 10_000_000
_TRIES = 100
_AT_ONCE = 8
_LONGEST_PAUSE_SECONDS = 0.5
_DAMAGED = "analyse its traces again into another --state"
_LEFT_OVER = "traceviz lake clean removes it once nobody can be about to name it"
_FOREIGN = "move it away; no query needs it"
_NO_MANIFEST = (
    "it is gone, or the first publishing did not come to its end, and parts are there",
    "restore it where the bucket keeps versions, or run traceviz analyze, which publishes it anew",
)
_DIGEST = re.compile("[0-9a-f]{32}")
_RECORDS = "published"
"""In the folder of this machine: the records that it knows, which show what changed here since. In the bucket they may
be deleted once others replaced them."""

Contents = Mapping[Part, Content]
T = TypeVar("T")


class Entry(msgspec.Struct, frozen=True):
    """An iteration: digests of its record, and of its list of inputs (empty where it has none)."""

    record: str
    inputs: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """Which iterations a home has: key → entry."""

    iterations: dict[str, Entry] = {}
    format: int = _FORMAT


class _State(msgspec.Struct, frozen=True):
    """What a folder holds of which home."""

    url: str
    iterations: dict[str, Entry] = {}


class LostError(StoreError):
    """A part that the manifest names is gone or damaged."""


class Published:
    """A home in a bucket, and the folder that holds what of it is read or computed here.

    Args:
        url: of the home. folder: a home on this machine; it is of one address alone.

    Raises:
        UsageError: the folder is of another address. StoreError: the bucket does not honour conditions, or cannot be
            asked.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._bucket = Bucket(url)
        self._prefix = f"{self._bucket.key}/" if self._bucket.key else ""
        self._lake = Lake(folder)
        self._state_file, self._records = folder / STATE, folder / _RECORDS
        self._objects = msgspec.json.encode(f"{folder}/{OBJECTS_FOLDER}/")[:-1]
        state = _state_in(folder)
        self.url = self._bucket.url(self._bucket.key)
        if state is not None and state.url != self.url and not (folder / "lake").exists():
            state = None  # Nothing came from there: the address may have been misspelt.
        if state is not None and state.url != self.url:
            raise UsageError(f"--state {folder} is of {state.url}: name another folder for {self.url}")
        if state is None and (folder / "lake").exists():
            raise UsageError(f"--state {folder} is a home of its own: name another folder for {self.url}")
        self._known = dict(state.iterations) if state is not None else {}
        self._is_proven = False
        self._sent: dict[str, bytes | Path] = {}
        self._lost: set[str] = set()

    def fetch(
        self, wanted: Callable[[str, int], bool] = lambda _run, _iteration: True, *, to_compute: bool = False
    ) -> int:
        """Bring the iterations of the home that are wanted here; what was computed here and not published stays.

        Args:
            to_compute: an iteration that lost parts, or that the home has no longer, is published whole if it is here
                in the end.

        Returns:
            How many iterations the home has.

        Raises:
            LostError: a part is gone or damaged, and nothing is to be computed.
        """
        manifest, _ = self._manifest()
        if to_compute:
            self._known = {key: entry for key, entry in self._known.items() if key in manifest.iterations}
        self._keep_state()  # Ended here, the folder still says whose it is.
        for key, entry in sorted(manifest.iterations.items()):
            place = parse_iteration_key(key)
            here = self._here(*place)
            if wanted(*place) and (self._known.get(key) != entry or not here):
                try:
                    self._take(key, entry, here)
                except LostError:
                    if not to_compute:
                        raise
                    self._lost.add(key)
                    self._known.pop(key, None)
        self._keep_state()
        return len(manifest.iterations)

    def publish(self) -> list[str]:
        """Publish what was computed here; both sides' ranks stay where somebody else published meanwhile.

        Returns:
            Keys of the iterations that somebody else changed, too: tables across their ranks are of before.
        """
        if not any(self._is_new(*place) for place in recorded_iterations(self._lake.tables_folder)):
            return []
        self.prove()
        # Each part that this commit names is written by it: one that lay there may be removed meanwhile as left over.
        self._sent.clear()
        for _ in range(_TRIES):
            manifest, tag = self._manifest()
            after, both = self._merged(manifest)
            if after == manifest.iterations:
                break
            try:
                data = msgspec.json.format(msgspec.json.encode(Manifest(after)))
                self._bucket.put(f"{self._prefix}manifest.json", data, replaces=tag)
            except ReplacedError:
                time.sleep(random.uniform(0, _LONGEST_PAUSE_SECONDS))
                continue
            break
        else:
            raise StoreError(self.url, f"others were faster {_TRIES} times", "run it again")
        self._send_again()
        for key, entry in after.items():
            run, iteration = parse_iteration_key(key)
            if key not in both and self._known.get(key) != entry:
                record = _encoded(run, iteration, self._contents(run, iteration))
                if xxhash.xxh3_128_hexdigest(record) == entry.record:
                    write_atomically(self._records / entry.record, record)
                    self._known[key] = entry
        for key in both:
            self._take(key, after[key], self._here(*parse_iteration_key(key)))
        self._keep_state()
        return both

    def faults(self) -> Iterator[Fault]:
        """What in the bucket is not as the manifest says, and what it does not name; every part is read."""
        wanted, there, all_known = self._parts()
        if not wanted and any(map(self._is_part, there)):
            yield Fault(self._path(f"{self._prefix}manifest.json"), *_NO_MANIFEST)
        for key in sorted(there.keys() | wanted.keys()):
            if not self._is_part(key):
                yield Fault(self._path(key), "is no part of a home", _FOREIGN)
            elif key not in wanted:
                if all_known:
                    yield Fault(self._path(key), "no manifest names it", _LEFT_OVER, is_left_over=True)
            elif key not in there:
                yield Fault(self._path(key), f"is gone, and {wanted[key]} needs it", _DAMAGED)
            elif xxhash.xxh3_128_hexdigest((self._bucket.get(key) or (b"", ""))[0]) != key.rpartition("/")[2]:
                yield Fault(self._path(key), f"is damaged, and {wanted[key]} needs it", _DAMAGED)

    def clean(self, before_ns: int) -> Cleaned:
        """Remove the parts that the manifest does not name and that were written before a time, ns since 1970.

        Raises:
            LostError: the manifest or a record is lost, so that nobody knows which parts it names; none is removed.
        """
        wanted, there, all_known = self._parts()
        strays = [one for key, one in there.items() if key not in wanted and self._is_part(key)]
        if strays and not wanted:
            raise LostError(self._bucket.url(f"{self._prefix}manifest.json"), *_NO_MANIFEST)
        if strays and not all_known:
            fault = "a record is lost, and nobody knows which parts it names, so none is removed"
            raise LostError(self.url, fault, "traceviz lake verify names it")

        def is_removed(one: Found) -> bool:
            # Asked anew: a writer that goes on after a kill writes the same part again.
            now = self._bucket.find(one.key) if one.second_ns < before_ns else None
            if now is None or now.second_ns >= before_ns:
                return False
            self._bucket.delete(one.key)
            return True

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            removed = list(compress(strays, pool.map(is_removed, strays)))
        left = tuple(LeftOver(self._path(one.key), one.size, one.second_ns) for one in removed)
        return Cleaned(left, len(strays) - len(left))

    def prove(self) -> None:
        """Show, once for a home, that the bucket honours conditions: without them, writers lose each other's rows.

        Raises:
            StoreError: it does not.
        """
        if self._is_proven:
            return
        key, proven = f"{self._prefix}traceviz.json", msgspec.json.encode({"format": _FORMAT})
        found = self._bucket.get(key)
        if found is not None and found[0] == proven:
            self._is_proven = True
            return
        self._bucket.put(key, b"{}", always=True)
        for condition in (None, '"0123456789abcdef"'):
            try:
                self._bucket.put(key, b"[]", replaces=condition)
            except ReplacedError:
                continue
            told = "If-None-Match" if condition is None else "If-Match"
            fault = f"the bucket ignores {told}, so that writers would lose each other's rows"
            raise StoreError(self.url, fault, "choose another store, or a home on a file system")
        # Another one that proves the same at the same time wrote the same.
        self._bucket.put(key, proven, always=True)
        self._is_proven = True

    def _parts(self) -> tuple[dict[str, str], dict[str, Found], bool]:
        """Keys of the parts that the manifest names, each with an iteration that needs it; those that are there; and
        whether there is a manifest and every record could be read: which parts a lost one names, nobody knows."""
        manifest, _ = self._manifest()
        below, all_known = f"{self._prefix}parts/", bool(manifest.iterations)
        wanted: dict[str, str] = {}
        for key, entry in manifest.iterations.items():
            digests = [digest for digest in (entry.record, entry.inputs) if digest]
            try:
                digests += [one.digest for one in self._record(key, entry.record).values()]
            except LostError:
                all_known = False
            wanted |= {f"{below}{digest}": key for digest in digests}
        there = {one.key: one for one in self._bucket.below(below.rstrip("/"), _MOST_PARTS)}
        return wanted, there, all_known

    def _is_part(self, key: str) -> bool:
        """Whether a key is that of a part; whatever else lies there, traces or another home, is somebody else's."""
        return _DIGEST.fullmatch(key.removeprefix(f"{self._prefix}parts/")) is not None

    def _path(self, key: str) -> Path:
        """What messages show as the object's address."""
        return self._lake.home / OBJECTS_FOLDER / self._bucket.name / key

    def _is_new(self, run: str, iteration: int) -> bool:
        return self._here(run, iteration) not in (None, self._known.get(iteration_key(run, iteration)))

    def _manifest(self) -> tuple[Manifest, str | None]:
        found = self._bucket.get(f"{self._prefix}manifest.json")
        if found is None:
            return Manifest(), None
        try:
            manifest = decoded(found[0], Manifest)
        except msgspec.DecodeError:
            raise StoreError(self.url, "its manifest is damaged", "restore an earlier version of it") from None
        if manifest.format != _FORMAT:
            raise StoreError(self.url, "a newer version of traceviz_dag wrote it", "update traceviz_dag")
        return manifest, found[1]

    def _merged(self, manifest: Manifest) -> tuple[dict[str, Entry], list[str]]:
        """What the manifest says with what is new here, whose parts are uploaded; and what changed on both sides."""
        after, both = dict(manifest.iterations), []
        for run, iteration in recorded_iterations(self._lake.tables_folder):
            key = iteration_key(run, iteration)
            here, known, theirs = self._here(run, iteration), self._known.get(key), after.get(key)
            if here in (None, known) or (here == theirs and key not in self._lost):
                continue
            ours, before, there = self._contents(run, iteration), self._of(key, known), self._of(key, theirs)
            contents = merged(before, ours, there)
            inputs = self._merged_inputs(key, known, theirs)
            new = {part: one for part, one in contents.items() if one != there.get(part) or key in self._lost}
            self._upload(run, iteration, new, ours)
            record = _encoded(run, iteration, contents)
            after[key] = Entry(self._put(record), self._put(inputs) if inputs else "")
            if theirs != known and key not in self._lost:
                both.append(key)
        return after, both

    def _upload(self, run: str, iteration: int, contents: Contents, ours: Contents) -> None:
        def upload(part: Part) -> None:
            path = self._file(run, iteration, part)
            if self._put(path.read_bytes(), path) != ours[part].digest:
                raise StoreError(
                    str(path), "is damaged, or was written anew", "run it again; traceviz lake verify says"
                )

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(upload, [part for part, one in contents.items() if ours.get(part) == one]))

    def _put(self, data: bytes, file: Path | None = None) -> str:
        digest = xxhash.xxh3_128_hexdigest(data)
        if digest not in self._sent:
            self._bucket.put(f"{self._prefix}parts/{digest}", data, always=True)
            self._sent[digest] = file or data
        return digest

    def _send_again(self) -> None:
        """Put again what was removed as left over before it was named: of a machine that slept meanwhile, say."""

        def send(digest: str) -> None:
            key, data = f"{self._prefix}parts/{digest}", self._sent[digest]
            if self._bucket.find(key) is None:
                self._bucket.put(key, data.read_bytes() if isinstance(data, Path) else data, always=True)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(send, self._sent))

    def _get(self, key: str, digest: str) -> bytes:
        found = self._bucket.get(f"{self._prefix}parts/{digest}")
        if found is None or xxhash.xxh3_128_hexdigest(found[0]) != digest:
            fault = "is gone" if found is None else "is damaged"
            raise LostError(self._bucket.url(f"{self._prefix}parts/{digest}"), f"{fault}, and {key} needs it", _DAMAGED)
        return found[0]

    def _take(self, key: str, entry: Entry, here: Entry | None) -> None:
        """Bring an iteration here as an entry has it, with what was computed here since it was known."""
        run, iteration = parse_iteration_key(key)
        known = self._known.get(key) if here is not None else None
        ours = self._contents(run, iteration)
        contents = merged(self._of(key, known), self._of(key, entry), ours)

        # Tables without rows have the same bytes in all ranks.
        wanted: dict[str, list[Part]] = {}
        for part, one in contents.items():
            if ours.get(part) != one:
                wanted.setdefault(one.digest, []).append(part)

        def write(digest: str) -> None:
            data, lake = self._get(key, digest), self._lake.tables_folder
            for part in wanted[digest]:
                change = partial(change_of, lake, Partition(run, iteration, part[1]), {part[0]: contents[part]})
                write_together({self._file(run, iteration, part): data}, change)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(write, wanted))
        for table, rank in ours.keys() - contents.keys():
            self._lake.delete(table, run=run, iteration=iteration, rank=rank)
        inputs = self._merged_inputs(key, known, entry)
        if inputs:
            register(self._lake.home, self._heard(inputs))
        self._known[key] = entry

    def _merged_inputs(self, key: str, known: Entry | None, theirs: Entry | None) -> bytes:
        """The list of an iteration's inputs: of ranks that both sides list, as it is here."""
        ours = registered_if_any(self._lake.home, key)
        here = self._told(ours)
        there = self._unless_lost(key, self._get, theirs.inputs, b"") if theirs is not None and theirs.inputs else b""
        before = known.inputs if known is not None else ""
        if ours is None or xxhash.xxh3_128_hexdigest(here) == before:
            return there or here
        if not there or (theirs is not None and theirs.inputs == before):
            return here
        other = self._heard(there)
        ranks = {one.rank: one for one in (*other.ranks, *ours.ranks)}
        snapshots = {one.rank: one for one in (*other.snapshots, *ours.snapshots)}
        every = replace(
            ours,
            ranks=tuple(ranks[rank] for rank in sorted(ranks)),
            snapshots=tuple(snapshots[rank] for rank in sorted(snapshots)),
        )
        return self._told(every)

    def _told(self, inputs: IterationInputs | None) -> bytes:
        """A list of inputs for other machines: stand-ins by their objects' addresses."""
        return msgspec.json.encode(inputs).replace(self._objects, b'"s3://') if inputs is not None else b""

    def _heard(self, data: bytes) -> IterationInputs:
        """A list of inputs of another machine, each object by what stands in for it here, or would."""
        return decoded(data.replace(b'"s3://', self._objects), IterationInputs)

    def _here(self, run: str, iteration: int) -> Entry | None:
        """The entry of what is here; None where nothing is."""
        contents = self._contents(run, iteration)
        inputs = self._told(registered_if_any(self._lake.home, iteration_key(run, iteration)))
        record = _encoded(run, iteration, contents)
        digests = [xxhash.xxh3_128_hexdigest(data) if data else "" for data in (record, inputs)]
        return Entry(*digests) if contents else None

    def _contents(self, run: str, iteration: int) -> Contents:
        """What the record here says of an iteration."""
        lake = self._lake.tables_folder
        record = recorded(lake, run, iteration)
        if record.packs:
            fault = f"run {run}, iteration {iteration} is packed, which a home at s3:// cannot be"
            raise UsageError(f"{self._lake.home}: {fault}: analyse it into another --state")
        found = {part: content_of(lake, part[0], Partition(run, iteration, part[1])) for part in record.contents}
        return {part: one for part, one in found.items() if one is not None and one != NO_FILE}

    def _of(self, key: str, entry: Entry | None) -> Contents:
        return self._unless_lost(key, self._record, entry.record, {}) if entry is not None else {}

    def _unless_lost(self, key: str, read: Callable[[str, str], T], digest: str, otherwise: T) -> T:
        try:
            return read(key, digest)
        except LostError:
            if key not in self._lost:
                raise
            return otherwise

    def _record_bytes(self, key: str, digest: str) -> bytes:
        kept = self._records / digest
        with suppress(FileNotFoundError):
            data = kept.read_bytes()
            if xxhash.xxh3_128_hexdigest(data) == digest:
                return data
        data = self._get(key, digest)
        write_atomically(kept, data)
        return data

    def _record(self, key: str, digest: str) -> Contents:
        place = Partition(*parse_iteration_key(key)).below
        record = parsed(place, self._record_bytes(key, digest))
        if record.damaged_lines or record.is_newer:
            raise StoreError(self.url, f"the record of {key} is damaged, or of a newer version", "update traceviz_dag")
        return {part: contents[-1] for part, contents in record.contents.items()}

    def _file(self, run: str, iteration: int, part: Part) -> Path:
        return Partition(run, iteration, part[1]).folder(self._lake.tables_folder / part[0]) / FILE_NAME

    def _keep_state(self) -> None:
        write_atomically(self._state_file, msgspec.json.encode(_State(self.url, self._known)))
        records = {entry.record for entry in self._known.values()}
        for path in self._records.glob("[!.]*"):
            if path.name not in records:
                path.unlink(missing_ok=True)


def merged(before: Contents, first: Contents, second: Contents) -> dict[Part, Content]:
    """Two sides of what was one: what a side changed is as it has it, and what both changed as ``first`` has it."""
    found = {}
    for part in {**before, **first, **second}:
        was, one, other = before.get(part), first.get(part), second.get(part)
        chosen = other if one == was else one
        if chosen is not None:
            found[part] = chosen
    return found


def published_at(folder: Path) -> Published | None:
    """The home in a bucket that a folder of this machine is of; None for a home of its own."""
    state = _state_in(folder)
    return Published(state.url, folder) if state is not None else None


def _state_in(folder: Path) -> _State | None:
    try:
        return decoded((folder / STATE).read_bytes(), _State)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        raise UsageError(f"{folder / STATE} is damaged: name another --state") from None


def _encoded(run: str, iteration: int, contents: Contents) -> bytes:
    place = Partition(run, iteration).below
    return begun(place) + b"".join(line_of(place, SETTLED, part, contents[part]) for part in in_order(contents))
