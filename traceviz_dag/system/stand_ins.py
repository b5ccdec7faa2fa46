"""Local paths for objects of a store, so that whatever takes a path of a trace takes one at ``s3://…``.

PyTorch's traces are read as streams: a small file stands in for each, with its address, size and tag, and
``open_stream`` opens the object itself. What is no stream (Nsight Systems exports and snapshots of GPU memory, which
others open by name or descriptor, and small text files) is fetched whole.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from traceviz_dag.errors import BadInputError
from traceviz_dag.printable import OBJECTS_FOLDER, SCHEME, named
from traceviz_dag.system.json_bytes import decoded
from traceviz_dag.system.objects import Bucket, Found, ObjectStream
from traceviz_dag.system.whole_files import whole_file, write_atomically

_MARK = b"stands in for an object\n"
_BLOCK_BYTES = 1 << 23


class StandIn(msgspec.Struct, frozen=True):
    """What a file that stands in for an object says of it.

    Attributes:
        size: of the object, bytes. tag: its ETag: together they say whether it is the same.
    """

    size: int
    tag: str


def stand_in(path: Path) -> StandIn | None:
    """What a path stands in for; None for a file of its own.

    Raises:
        OSError: it cannot be read.
    """
    if OBJECTS_FOLDER not in path.parts or not path.is_file():
        return None
    with path.open("rb") as file:
        if file.read(len(_MARK)) != _MARK:
            return None
        try:
            return decoded(file.read(), StandIn)
        except msgspec.DecodeError:
            raise BadInputError(path, "its entry in the home is damaged", f"delete {OBJECTS_FOLDER} there") from None


def open_object(path: Path, one: StandIn) -> ObjectStream:
    """The object that a path stands in for, as a stream."""
    name, _, key = named(path).removeprefix(SCHEME).partition("/")
    bucket = Bucket(f"{SCHEME}{name}")  # A key may hold what an address that somebody gives may not.
    return ObjectStream(one.size, lambda start, end: bucket.part(key, start, end, one.tag))


def write_stand_in(path: Path, found: Found) -> None:
    """Let a path stand in for an object."""
    write_atomically(path, _MARK + msgspec.json.encode(StandIn(found.size, found.tag)))
    os.utime(path, ns=(found.changed_ns, found.changed_ns))


def fetch_whole(path: Path, bucket: Bucket, found: Found) -> None:
    """Fetch an object to a path, block by block; the file appears once it is whole."""
    with whole_file(path) as file:
        for start in range(0, found.size, _BLOCK_BYTES):
            file.write(bucket.part(found.key, start, min(start + _BLOCK_BYTES, found.size), found.tag))
    os.utime(path, ns=(found.changed_ns, found.changed_ns))
