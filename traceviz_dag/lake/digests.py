"""Digests of files: what says whether a file holds the same bytes as before."""

from __future__ import annotations

from pathlib import Path

import xxhash

_BLOCK_BYTES = 1 << 20


def digest_of(path: Path) -> str:
    """XXH3-128 of a file's bytes, hexadecimal."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
