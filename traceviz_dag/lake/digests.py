"""Digests and looks of files: what says whether a file holds the same bytes as before.

A folder of Parquet files, an export of Nsight Systems, counts as one file.
"""

from __future__ import annotations

from pathlib import Path

import xxhash

from traceviz_dag.system.stand_ins import stand_in

_BLOCK_BYTES = 1 << 20


def digest_of(path: Path) -> str:
    """XXH3-128 of a file's bytes, hexadecimal; of a folder's Parquet files, with their names, in the names' order.

    Of an object of a store, that of its size and tag: they say whether it is the same, and nothing is fetched.
    """
    digest = xxhash.xxh3_128()
    if (one := stand_in(path)) is not None:
        digest.update(f"object {one.size} {one.tag}".encode())
        return digest.hexdigest()
    for file in _files(path):
        if file is not path:
            digest.update(file.name.encode())
        with file.open("rb") as opened:
            while block := opened.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def stamp_of(path: Path) -> tuple[int, int, int]:
    """(bytes, time of change, time of the inode's change, ns) of a file or object; of a folder, those of its Parquet
    files together.

    Whoever replaces a file can set its time of change to the former one, as ``cp -p`` does, but not its inode's.

    Raises:
        FileNotFoundError: it is gone.
    """
    found = [file.stat() for file in _files(path)]
    if (one := stand_in(path)) is not None:
        # The store's time; when its entry here was made differs from machine to machine.
        return one.size, found[0].st_mtime_ns, found[0].st_mtime_ns
    changed, renewed = ((one.st_mtime_ns for one in found), (one.st_ctime_ns for one in found))
    return sum(one.st_size for one in found), max(changed, default=0), max(renewed, default=0)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    # A FIFO among them is refused by the reader; here it would only be waited for.
    return sorted(file for file in path.glob("*.parquet") if file.is_file())
