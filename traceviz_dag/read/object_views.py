"""From ``s3://BUCKET/PREFIX`` to a local folder that looks like it: stand-ins, and files that are fetched whole."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath

from traceviz_dag.errors import BadInputError
from traceviz_dag.printable import OBJECTS_FOLDER, is_object_url
from traceviz_dag.read.formats import FALLBACK, all_suffixes, folder_marks, format_with_suffix
from traceviz_dag.read.memory.files import is_snapshot_name
from traceviz_dag.read.nsys.open import EXPORT_SUFFIXES
from traceviz_dag.read.topology_file import is_topology_name
from traceviz_dag.system.objects import Bucket, Found
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.stand_ins import fetch_whole, write_stand_in

MOST_OBJECTS = 100_000
"""So many objects are listed below a prefix, in 100 requests."""

_READERS = 8
_LONGEST_NAME = 255
_REPORT = ".nsys-rep"


def local_paths(paths: Sequence[Path], home: Path) -> list[Path]:
    """The same paths, each at ``s3://`` as the folder or file of a home that stands in for it.

    Raises:
        StoreError: a store cannot be asked. BadInputError: nothing is there.
    """
    return [local_view(str(path), home) if is_object_url(str(path)) else path for path in paths]


def local_view(url: str, home: Path) -> Path:
    """What stands in for all traces below a prefix, or for one object, as the store shows them now.

    What changed is laid anew; what is gone from the store goes here, too. Hidden keys are passed over.

    Raises:
        StoreError: the store cannot be asked. BadInputError: nothing is there, or a key cannot be a file's name.
    """
    bucket = Bucket(url)
    base = real_path(home) / OBJECTS_FOLDER / bucket.name
    view = base / bucket.key
    found = bucket.below(bucket.key, MOST_OBJECTS)
    alone = bucket.find(bucket.key) if bucket.key and not found else None
    if alone is not None:
        _lay(base, bucket, alone)
        return view
    if not found:
        raise BadInputError(view, "no objects below it", "check the address")
    keys = {one.key for one in found}
    wanted = [one for one in found if not _is_hidden(one.key, bucket.key) and is_taken(one.key, keys)]
    folders = {str(each) for one in wanted for each in PurePosixPath(one.key).parents}
    for one in wanted:
        _check_name(bucket, one.key)
        if one.key in folders:
            fault = "an object and a folder have one name"
            raise BadInputError(bucket.url(one.key), fault, "rename one, or name a narrower prefix")
    _remove_others(view, {base / one.key for one in wanted})
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(lambda one: _lay(base, bucket, one), wanted))
    view.mkdir(parents=True, exist_ok=True)
    return view


def is_taken(key: str, keys: Collection[str]) -> bool:
    """Whether an object belongs to traces by its name, and by those beside it."""
    name, folder = key.rpartition("/")[2], key.rpartition("/")[0]
    if name.endswith(".parquet"):
        return any(f"{folder}/{mark}" in keys for mark in folder_marks())
    if name.endswith(_REPORT) and any(key.removesuffix(_REPORT) + suffix in keys for suffix in EXPORT_SUFFIXES):
        return False  # The export beside it holds the same.
    return name.lower().endswith(all_suffixes()) or is_topology_name(name) or is_snapshot_name(name)


def _is_hidden(key: str, prefix: str) -> bool:
    return any(part.startswith(".") for part in key.removeprefix(prefix).strip("/").split("/"))


def _check_name(bucket: Bucket, key: str) -> None:
    parts = key.split("/")
    too_long = any(len(os.fsencode(part)) > _LONGEST_NAME for part in parts)
    if too_long or key != str(PurePosixPath(key)) or ".." in parts or "\0" in key:
        raise BadInputError(bucket.url(key), "no file can have such a name", "rename it, or name a narrower prefix")


def _lay(base: Path, bucket: Bucket, one: Found) -> None:
    path = base / one.key
    form = format_with_suffix(path.name)
    stream = form is not None and form.name == FALLBACK and not is_topology_name(path.name)
    with suppress(FileNotFoundError, NotADirectoryError):
        status = path.stat()
        if status.st_mtime_ns == one.changed_ns and (stream or status.st_size == one.size):
            return
    if stream:
        write_stand_in(path, one)
    else:
        fetch_whole(path, bucket, one)


def _remove_others(view: Path, wanted: Collection[Path]) -> None:
    """Remove the files of a view that stand in for nothing any more, but temporaries, which are hidden; and folders
    that have nothing left, whose names may be those of files now."""
    for place, _, names in os.walk(view, topdown=False):
        for name in names:
            path = Path(place, name)
            if path not in wanted and not name.startswith("."):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            Path(place).rmdir()
