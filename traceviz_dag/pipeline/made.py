"""Of what a part of the lake is made, in a word that the lake records beside its digest."""

from __future__ import annotations

import xxhash

CODE_VERSION = "40"
"""Raise it when the same trace and rules give other values in the same columns: everything is then computed again."""


def made_word(**of: str) -> str:
    """What a part is made of → its version, as a word of bounded length."""
    return ",".join(f"{name}={xxhash.xxh3_64_hexdigest(version.encode())}" for name, version in of.items())


def rank_word(trace_version: str, topology_version: str, rules_digest: str, peaks_digest: str) -> str:
    """Of what the tables of a rank are made."""
    of = {"trace": trace_version, "topology": topology_version, "rules": rules_digest, "peaks": peaks_digest}
    return made_word(**of, code=CODE_VERSION)
