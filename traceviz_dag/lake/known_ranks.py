"""What was registered earlier: ranks of an iteration whose files are gone, and iterations with the same traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import (
    IterationInputs,
    RankInput,
    registered_if_any,
    registered_of_name,
    registered_with_first,
)
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.marking import mark_stale, unmark
from traceviz_dag.lake.queries import trace_files
from traceviz_dag.lake.stale import Stale
from traceviz_dag.tables import MEMORY_TABLES, all_tables
from traceviz_dag.vocabulary import StaleCause, StaleStage


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
    # A file that holds several ranks is the same content under each of them; its parts distinguish them.
    contents = {(entry.digest, entry.part) for entry in inputs.ranks}
    kept = [entry for entry in gone if entry.rank not in found and (entry.digest, entry.part) not in contents]
    return replace(inputs, ranks=tuple(sorted((*inputs.ranks, *kept), key=lambda entry: entry.rank)))


def known_beside(home: Path, inputs: IterationInputs, found: Collection[str]) -> list[RankInput]:
    """Registered ranks of the iteration whose files are there and are not among those found.

    Args:
        found: paths.
    """
    known = _registered(home, inputs)
    lists = [] if known is None else [known]
    if any(entry.part for entry in inputs.ranks):
        # Exports are of one job or not by what they hold, whichever iterations they hold.
        lists += [one for one in registered_of_name(home, inputs.run) if one.folder == inputs.folder]
    entries = {entry.path: entry for one in lists for entry in one.ranks}
    return [entry for path, entry in entries.items() if path not in found and Path(path).exists()]


@dataclass(frozen=True, slots=True)
class Twin:
    """Another iteration of the run, with the same traces.

    Attributes:
        of: key of the iteration that was asked about.
        key: that of the other one.
        gone: those of the two whose files are gone.
    """

    of: str
    key: str
    gone: frozenset[str]

    @property
    def is_renamed(self) -> bool:
        """Whether the folder of one became that of the other: it has the traces alone."""
        return len(self.gone) == 1

    @property
    def line(self) -> str:
        """That both are there, and why."""
        has, other_has = ("had" if key in self.gone else "has" for key in (self.of, self.key))
        how = (
            "a renamed folder" if self.is_renamed else "of both the files are gone" if self.gone else "a copied folder"
        )
        return (
            f"{self.of} {has} the traces that {self.key} {other_has}: {how}; both are kept and count as two iterations"
        )


def twin_of(home: Path, inputs: IterationInputs) -> Twin | None:
    """The iteration of the run that was registered with the same traces, by their digests; None where none was.

    Of several, one whose files are there comes first: what was copied from there was not renamed. One file that holds
    several iterations is no twin of itself: each takes a training step of its own.

    Args:
        inputs: with digests.
    """
    traces = _contents(inputs)
    if not traces:
        return None
    _, digest, _ = min(traces)
    same = [
        other
        for other in registered_with_first(home, inputs.run, digest)
        if other.key != inputs.key and _contents(other) == traces
    ]
    if not same:
        return None
    other = min(same, key=_are_gone)
    return Twin(inputs.key, other.key, frozenset(one.key for one in (inputs, other) if _are_gone(one)))


def _are_gone(inputs: IterationInputs) -> bool:
    return not any(Path(entry.path).exists() for entry in inputs.ranks)


def _contents(inputs: IterationInputs) -> set[tuple[int, str, str]]:
    """Rank, digest and part of each trace; nothing where one has no digest, or is one of several iterations."""
    is_told = all(entry.digest and entry.step is None for entry in inputs.ranks)
    return {(entry.rank, entry.digest, entry.part) for entry in inputs.ranks} if is_told else set()


def replaced_ranks(home: Path, inputs: IterationInputs) -> dict[tuple[str, str], list[int]]:
    """(former file, file now) → ranks of the iteration whose content differs from what was registered.

    Args:
        inputs: with digests.
    """
    known = _registered(home, inputs)
    before = {} if known is None else {entry.rank: entry for entry in known.ranks if entry.digest}
    changed: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for entry in inputs.ranks:
        was = before.get(entry.rank)
        if was is not None and entry.digest not in ("", was.digest):
            changed[was.name, entry.name].append(entry.rank)
    return dict(changed)


def set_aside_unlisted_ranks(lake: Lake, inputs: IterationInputs) -> list[int]:
    """Mark the tables of ranks that the iteration does not list any more; returns those ranks.

    They go once the ranks that it lists are whole: see :func:`drop_unlisted_ranks`. Call it before the list is
    registered: what a kill in between leaves is then done again. A rank that is listed again with its trace as it was
    loses its mark.
    """
    place = (inputs.run, inputs.iteration)
    unlisted = _unlisted(lake, inputs)
    stages = {name: StaleStage.MEMORY if name in MEMORY_TABLES else StaleStage.RANKS for name in unlisted}
    marks = {
        Stale(rank, stages[name], StaleCause.UNLISTED, _UNLISTED) for name, ranks in unlisted.items() for rank in ranks
    }
    again = {
        row.rank
        for row in lake.stale(*place)
        if row.cause == StaleCause.UNLISTED and row.rank is not None and _is_as_before(lake, inputs, row.rank)
    }
    for stage in (StaleStage.RANKS, StaleStage.MEMORY):
        unmark(lake, *place, stage, again)
    mark_stale(lake, *place, marks)
    return sorted({rank for ranks in unlisted.values() for rank in ranks})


def drop_unlisted_ranks(lake: Lake, inputs: IterationInputs) -> list[int]:
    """Delete the tables of ranks that the iteration does not list any more, where those that it lists are the whole
    job; returns those ranks."""
    unlisted = _unlisted(lake, inputs)
    if not unlisted:
        return []
    if not trace_files(lake, inputs.run, inputs.iteration).wanted <= {one.rank for one in inputs.ranks}:
        return []
    for name, ranks in unlisted.items():
        for rank in ranks:
            lake.delete(name, run=inputs.run, iteration=inputs.iteration, rank=rank)
    dropped = {rank for ranks in unlisted.values() for rank in ranks}
    for stage in (StaleStage.RANKS, StaleStage.MEMORY):
        unmark(lake, inputs.run, inputs.iteration, stage, dropped)
    return sorted(dropped)


_UNLISTED = "its trace is gone, and those of other ranks changed since, so it may be of another recording; put it back"


def _unlisted(lake: Lake, inputs: IterationInputs) -> dict[str, set[int]]:
    """Table → ranks with a partition that have no file in the list."""
    listed = {entry.rank for entry in inputs.files}
    found: dict[str, set[int]] = {}
    for table in all_tables().values():
        if "rank" in table.partitioned_by:
            parts = lake.partitions(table.name, inputs.run, inputs.iteration, with_stale=True)
            # A file that no writer put there is no rank of the iteration; whoever reads it gets an error.
            ranks = {
                part.rank
                for part in parts
                if part.rank is not None
                and part.rank not in listed
                and lake.content(table.name, run=part.run, iteration=part.iteration, rank=part.rank) is not None
            }
            found |= {table.name: ranks} if ranks else {}
    return found


def _is_as_before(lake: Lake, inputs: IterationInputs, rank: int) -> bool:
    entry = inputs.rank(rank)
    if entry is None or not lake.exists("traces", run=inputs.run, iteration=inputs.iteration, rank=rank):
        return False
    rows = lake.table("traces", inputs.run, inputs.iteration, rank).arrow(["digest"])
    return rows["digest"].to_pylist() == [entry.digest]


def _registered(home: Path, inputs: IterationInputs) -> IterationInputs | None:
    """What is registered of the iteration, of the same folder; a damaged list is about to be replaced."""
    try:
        known = registered_if_any(home, inputs.key)
    except BadInputError:
        return None
    return known if known is not None and known.folder == inputs.folder else None
