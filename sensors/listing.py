"""The one place where watched folders are read: local folders and any fsspec URL, listed without opening a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import xxhash

from traceviz_dag.errors import StoreError
from traceviz_dag.printable import is_object_url, without_surrogates
from traceviz_dag.read.formats import all_suffixes, folder_marks, suffix_inside
from traceviz_dag.read.memory.files import is_snapshot_name
from traceviz_dag.read.object_views import MOST_OBJECTS
from traceviz_dag.read.topology_file import is_topology_name
from traceviz_dag.system.objects import Bucket

_SKIPPED_FOLDERS = frozenset({"truth", "chakra", "__pycache__"})
_TEMPORARY_ENDS = (
    ".tmp",
    ".temp",
    ".part",
    ".partial",
    ".filepart",
    ".crdownload",
    ".incomplete",
    ".writing",
    "-journal",
    "-wal",
    "~",
)
_TAG_SHIFT = 4
_LEADS_NOWHERE = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG})
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


Entry = tuple[str, bool, int, int]
"""One name in a folder as a listing shows it: name, whether it is a folder, size in bytes, time of change in ns (0
where the store shows none). A plain tuple: there may be a million of them a tick."""


@dataclass(frozen=True, slots=True)
class FolderLook:
    """How a folder with traces, or with a topology text file, looks at one moment.

    Attributes:
        folder: its path or URL.
        digest: changes whenever a name, a size or a time of change in it does, or in a folder in it that is one trace.
        traces: files that are traces by their names, and folders that are one trace each.
        being_written: a temporary file of a writer is there.
        newest_ns: the last time of change of its files; 0 where the store shows none.
        changed_ns: the folder's own time of change (a name came or went); 0 where there is none.
        is_leaf: it has no folders that are looked into, and none that is a trace.
    """

    folder: str
    digest: str
    traces: int
    being_written: bool
    newest_ns: int
    changed_ns: int
    is_leaf: bool


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A folder that could not be listed: nothing is known of it, which is not that it is empty."""

    folder: str
    reason: str


class Folders(Protocol):
    """What the walk needs of a place that holds folders."""

    def entries(self, folder: str) -> Sequence[Entry]:
        """The names in a folder.

        Raises:
            OSError: it cannot be listed.
        """

    def changed_ns(self, folder: str) -> int:
        """The folder's own time of change; 0 where there is none.

        Raises:
            OSError: it is gone or out of reach.
        """

    def has_file(self, folder: str, name: str) -> bool:
        """Whether a file of that name is in a folder; not where the folder is out of reach."""


class LocalFolders:
    """Folders of the local file system, network mounts included."""

    def entries(self, folder: str) -> Sequence[Entry]:
        """The names in a folder; left out are one that goes while it is listed, links that lead nowhere or in a circle,
        and links to a folder that they are in."""
        found = []
        with os.scandir(folder) as listing:
            for entry in listing:
                try:
                    status = entry.stat()
                    if entry.is_dir():
                        if not (entry.is_symlink() and _leads_back(entry.path)):
                            found.append((entry.name, True, status.st_size, status.st_mtime_ns))
                        continue
                    found.append((entry.name, False, status.st_size, status.st_mtime_ns))
                except OSError as error:
                    if error.errno not in _LEADS_NOWHERE:
                        raise
        return found

    def changed_ns(self, folder: str) -> int:
        """The folder's own time of change."""
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - thousands of folders a tick

    def has_file(self, folder: str, name: str) -> bool:
        """Whether a file of that name is in a folder."""
        return os.path.isfile(f"{folder}/{name}")  # noqa: PTH113 - thousands of folders a tick


class RemoteFolders:
    """Folders behind an fsspec URL. A listing costs a call, and folders have no time of change."""

    def __init__(self, url: str) -> None:
        """Connect to the store of a URL."""
        self.store = store_of(url)

    def entries(self, folder: str) -> Sequence[Entry]:
        """The names in a folder, asked of the store anew."""
        self.store.invalidate_cache()
        rows = self.store.ls(folder, detail=True)
        own = folder.rstrip("/").rpartition("/")[2]
        return [
            (name, row["type"] == "directory", int(row.get("size") or 0), _remote_time(row))
            for row in rows
            if (name := row["name"].rstrip("/").rpartition("/")[2]) and not _is_itself(row["name"], folder, own)
        ]

    def changed_ns(self, folder: str) -> int:
        """Always 0: object stores have no folders that change."""
        return 0

    def has_file(self, folder: str, name: str) -> bool:
        """Whether a file of that name is in a folder."""
        return bool(self.store.isfile(f"{folder}/{name}"))


class ObjectFolders:
    """Folders at ``s3://``: prefixes of keys, as one listing of all that is below the first one asked for shows them.

    A walk costs a request per 1,000 objects, and is refused beyond ``MOST_OBJECTS``.
    """

    def __init__(self) -> None:
        """Ask nothing yet."""
        self._base = ""
        self._in: dict[str, dict[str, Entry]] = {}

    def entries(self, folder: str) -> Sequence[Entry]:
        """The names in a folder, as they were when it, or one above it, was first asked for."""
        place = folder.rstrip("/")
        if not self._base or not f"{place}/".startswith(f"{self._base}/"):
            self._list(place)
        return tuple(self._in.get(place, {}).values())

    def changed_ns(self, folder: str) -> int:
        """Always 0: prefixes have no time of change."""
        return 0

    def has_file(self, folder: str, name: str) -> bool:
        """Whether a file of that name is in a folder."""
        return any(entry[0] == name and not entry[1] for entry in self.entries(folder))

    def _list(self, place: str) -> None:
        try:
            bucket = Bucket(place)
            found = bucket.below(bucket.key, MOST_OBJECTS)
        except StoreError as error:
            raise OSError(str(error)) from None
        self._base, self._in = place, {}
        for one in found:
            folder, _, name = bucket.url(one.key).rpartition("/")
            self._in.setdefault(folder, {})[name] = (name, False, one.size, one.changed_ns)
            while folder != place:
                folder, _, name = folder.rpartition("/")
                known = self._in.setdefault(folder, {})
                if name in known:
                    break
                known[name] = (name, True, 0, 0)


def _leads_back(link: str) -> bool:
    """Whether a link leads to a folder on the way to it, as the path is spelt: following it never ends."""
    target = os.path.realpath(link)
    return any(os.path.realpath(above) == target for above in Path(link).parents)


def is_url(root: str) -> bool:
    """Whether a root is an fsspec URL and no local path."""
    return "://" in root


def open_folders(root: str) -> Folders:
    """The place that a root lies in."""
    if is_object_url(root):
        return ObjectFolders()
    return RemoteFolders(root) if is_url(root) else LocalFolders()


def walk(
    folders: Folders, root: str, rests: Callable[[str, int], bool] = lambda _folder, _changed: False, after: str = ""
) -> Iterator[FolderLook | Unreadable]:
    """Look at every folder below a root that holds traces, in the order of their names.

    Hidden folders, ``truth`` and ``chakra`` are passed over, as discovery does.

    Args:
        rests: given a folder and its own time of change, whether it need not be listed this time.
        after: the folder that an earlier walk looked at last; the walk goes on behind it.
    """
    stopped_at = _parts(after)
    pending = [root.rstrip("/") or "/"]
    while pending:
        folder = pending.pop()
        if _comes_before(folder, stopped_at):
            continue
        if without_surrogates(folder) != folder:
            yield Unreadable(without_surrogates(folder), "its path is not UTF-8: rename it")
            continue
        try:
            changed_ns = folders.changed_ns(folder)
            if rests(folder, changed_ns):
                continue
            entries = folders.entries(folder)
            below, traces = _folders_in(folders, folder, entries, rests)
        except OSError as error:
            yield Unreadable(folder, error.strerror or str(error))
            continue
        pending += [_child(folder, name) for name in reversed(below)]
        look = _look(folder, entries, traces, changed_ns, is_leaf=not below and not traces)
        if look is not None and folder != after:
            yield look


def look_at(folders: Folders, folder: str) -> FolderLook | None:
    """How one folder looks now; None where it holds nothing that could be a trace.

    Raises:
        OSError: it cannot be listed.
    """
    changed_ns, entries = folders.changed_ns(folder), folders.entries(folder)
    below, traces = _folders_in(folders, folder, entries)
    return _look(folder, entries, traces, changed_ns, is_leaf=not below and not traces)


def traces_in_folders(folders: Folders, folder: str) -> dict[str, Sequence[Entry]]:
    """Name → files of each folder in a folder that is one trace.

    Raises:
        OSError: it cannot be listed.
    """
    return _folders_in(folders, folder, folders.entries(folder))[1]


def _folders_in(
    folders: Folders,
    folder: str,
    entries: Sequence[Entry],
    rests: Callable[[str, int], bool] = lambda _folder, _changed: False,
) -> tuple[list[str], dict[str, Sequence[Entry]]]:
    """Names of the folders that are looked into; and name → files of those that are one trace.

    A folder at rest is not asked: it was registered for the traces in it, so it is none itself.
    """
    below: list[str] = []
    traces: dict[str, Sequence[Entry]] = {}
    for name in sorted(name for name, is_folder, _, _ in entries if is_folder and _is_watched(name)):
        path = _child(folder, name)
        if without_surrogates(path) != path:
            below.append(name)  # the walk says why
            continue
        try:
            at_rest = rests(path, folders.changed_ns(path))
            if not at_rest and any(folders.has_file(path, mark) for mark in folder_marks()):
                traces[name] = [entry for entry in folders.entries(path) if not entry[1]]
                continue
        except OSError:
            pass  # the walk says why, once it comes there
        below.append(name)
    return below, traces


def _look(
    folder: str,
    entries: Sequence[Entry],
    folder_traces: Mapping[str, Sequence[Entry]],
    changed_ns: int,
    *,
    is_leaf: bool,
) -> FolderLook | None:
    """What listings say of a folder and of the folders in it that are one trace; None without anything like a trace."""
    lines: list[str] = []
    snapshots: list[str] = []
    traces = newest_ns = 0
    being_written = False
    # One pass with few calls: a tick may see a million names.
    for name, is_folder, size_bytes, file_changed_ns in entries:
        if is_folder:
            continue
        if is_snapshot_name(name):
            snapshots.append(f"{name}\0{size_bytes}\0{file_changed_ns}")
            continue
        if is_trace_name(name) and not is_topology_name(name):
            traces += 1
        elif not is_topology_name(name):
            being_written = being_written or is_temporary_name(name)
            continue
        lines.append(f"{name}\0{size_bytes}\0{file_changed_ns}")
        newest_ns = max(newest_ns, file_changed_ns)
    for name, files in folder_traces.items():
        traces += 1
        lines += [f"{name}/{file}\0{size_bytes}\0{file_changed_ns}" for file, _, size_bytes, file_changed_ns in files]
        newest_ns = max(newest_ns, *(file_changed_ns for _, _, _, file_changed_ns in files))
    if not lines:
        return None
    # Snapshots count beside traces alone.
    lines += snapshots
    lines.sort()
    return FolderLook(
        folder=folder,
        digest=xxhash.xxh3_64_hexdigest("\n".join(lines).encode(errors="surrogateescape")),
        traces=traces,
        being_written=being_written,
        newest_ns=newest_ns,
        changed_ns=changed_ns,
        is_leaf=is_leaf,
    )


def is_trace_name(name: str) -> bool:
    """Whether a file may be a trace, by its name."""
    return name.lower().endswith(all_suffixes()) and not name.startswith(".")


def is_temporary_name(name: str) -> bool:
    """Whether a name is one that a writer gives a file which it will rename: torch's ``.tmp``, rsync's hidden one …"""
    lower = name.lower()
    given_away = lower.startswith(".") or lower.endswith(_TEMPORARY_ENDS)
    return given_away and suffix_inside().search(lower) is not None


def _child(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def _is_watched(name: str) -> bool:
    return not name.startswith(".") and name not in _SKIPPED_FOLDERS


def _parts(folder: str) -> tuple[str, ...]:
    return tuple(folder.split("/")) if folder else ()


def _comes_before(folder: str, stopped_at: tuple[str, ...]) -> bool:
    parts = _parts(folder)
    return parts < stopped_at[: len(parts)]


def _is_itself(path: str, folder: str, own: str) -> bool:
    """Some stores list the marker object of a folder as an entry of it."""
    return folder.rstrip("/").endswith(path.rstrip("/")) and path.rstrip("/").rpartition("/")[2] == own


def store_of(url: str) -> Any:
    """The fsspec file system that a URL names."""
    # Imported here: a start without remote roots need not pay for it.
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    store, _ = url_to_fs(url)
    return store


def _remote_time(row: dict[str, Any]) -> int:
    """A file's time of change as its store shows it, ns; where it shows none, a negative number made of its tag."""
    value = next((row[key] for key in _TIME_KEYS if row.get(key)), None)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    seconds = value.timestamp() if isinstance(value, datetime) else value
    if isinstance(seconds, int | float):
        return int(seconds * 1_000_000_000)
    tag = row.get("ETag") or row.get("etag") or row.get("md5Hash")
    return -(xxhash.xxh3_64_intdigest(str(tag).encode()) >> _TAG_SHIFT) if tag else 0
