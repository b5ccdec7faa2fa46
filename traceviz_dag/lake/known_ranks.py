"""Ranks that an iteration had when it was registered earlier and whose files are gone: which stay, and which go."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import IterationInputs, RankInput, registered_if_any
from traceviz_dag.lake.lake import Lake
from traceviz_dag.tables import all_tables


def with_vanished_ranks(home: Path, inputs: IterationInputs) -> IterationInputs:
    """The list with the registered ranks, besides, whose files are gone: traces get archived.

    Such a rank does not stay where its tables may be of another recording than the rest: another rank's file changed,
    its content is found under another rank, or several files claim the rank now.

    Args:
        inputs: with digests.
    """
    known = _registered(home, inputs)
    gone = [] if known is None else [entry for entry in known.ranks if not Path(entry.path).exists()]
    if known is None or not gone:
        return inputs
    before = {entry.rank: entry.digest for entry in known.ranks}
    if any(before.get(entry.rank, entry.digest) != entry.digest for entry in inputs.ranks):
        return inputs
    found = {entry.rank for entry in inputs.ranks} | set(inputs.disputed)
    # A file that holds several ranks is the same content under each of them; its parts tell them apart.
    contents = {(entry.digest, entry.part) for entry in inputs.ranks}
    kept = [entry for entry in gone if entry.rank not in found and (entry.digest, entry.part) not in contents]
    return replace(inputs, ranks=tuple(sorted((*inputs.ranks, *kept), key=lambda entry: entry.rank)))


def known_beside(home: Path, inputs: IterationInputs, found: Collection[str]) -> list[RankInput]:
    """Registered ranks of the iteration whose files are there and are not among those found.

    Args:
        found: paths.
    """
    known = _registered(home, inputs)
    return [
        entry
        for entry in (known.ranks if known is not None else ())
        if entry.path not in found and Path(entry.path).exists()
    ]


def drop_unlisted_ranks(lake: Lake, inputs: IterationInputs) -> list[int]:
    """Delete the tables of ranks that the iteration does not have any more; returns those ranks.

    Call it before the list is registered: what a kill in between leaves is then done again.
    """
    listed = {entry.rank for entry in inputs.files}
    dropped: set[int] = set()
    for table in all_tables().values():
        if "rank" not in table.partitioned_by:
            continue
        for part in lake.partitions(table.name, inputs.run, inputs.iteration):
            if part.rank is not None and part.rank not in listed:
                lake.delete(table.name, run=inputs.run, iteration=inputs.iteration, rank=part.rank)
                dropped.add(part.rank)
    return sorted(dropped)


def _registered(home: Path, inputs: IterationInputs) -> IterationInputs | None:
    """What is registered of the iteration, of the same folder; a damaged list is about to be replaced."""
    try:
        known = registered_if_any(home, inputs.key)
    except BadInputError:
        return None
    return known if known is not None and known.folder == inputs.folder else None
