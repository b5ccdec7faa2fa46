"""The communications of an iteration matched and charged: in this process, or in shards over several for many ranks.

In shards no worker holds more than a shard, or one rank. Ranks are read in chunks, which leave their communications in
a scratch file, in the order of their labels: a shard reads the rows of its labels. What shards ask of the kernels goes
the same way back: a file per shard, in the order of ranks, of which each chunk of ranks reads its part.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.causes.causes_tables import messages_table
from traceviz_dag.analyze.matching.communication_groups import CommunicationGroup, GroupedRows
from traceviz_dag.analyze.matching.communications import (
    COMMUNICATION_COLUMNS,
    gather_communications,
    optional_integers,
    select_communications,
)
from traceviz_dag.analyze.waits.collectives import collectives_table, device_of_ranks
from traceviz_dag.analyze.waits.shards import (
    Shard,
    match_and_solve,
    match_shards,
    plan,
    survey,
)
from traceviz_dag.analyze.waits.waits import BESIDE_COLUMNS, answer, ask, charge, charge_waits
from traceviz_dag.arrays import Int64
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.pipeline.engines import Engine, default_workers
from traceviz_dag.read.stated_bounds import RANKS_IN_ONE_PIECE
from traceviz_dag.system.arrow_files import Range, read_arrow, write_arrow
from traceviz_dag.system.processes import WorkerDiedError, spread
from traceviz_dag.system.whole_files import scratch_folder, unwritable
from traceviz_dag.tables.rows import of_ranks

ROWS_OF_A_SHARD = 500_000
RANKS_OF_A_CHUNK = 64

_RANK_SHIFT = 32
"""A row's number is its rank and, in so many bits, its place in the rank."""


class RankKernels(Protocol):
    """The kernels of an iteration, which can be sent to other processes."""

    def kernels(self, rank: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of one rank's kernels."""


class Source(Protocol):
    """An iteration as it is matched."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its ranks, ascending."""

    @property
    def topology(self) -> Topology:
        """The job's topology."""

    @property
    def hosts(self) -> Mapping[int, int]:
        """Rank → number of its host; empty where they are not known."""

    def kernels_in_turn(self, rank: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of one rank's kernels, for who asks rank after rank."""

    @property
    def stored_kernels(self) -> RankKernels:
        """The kernels, to be sent to other processes."""

    def nodes(self, devices: Mapping[int, str | None] | None = None) -> Mapping[int, int]:
        """Rank → number of its node, by hosts or these devices; empty where neither shows it."""

    @property
    def microbatches(self) -> pa.Table:
        """The forward and backward steps of the ranks."""


Spread = Callable[..., Iterator[tuple[int, Any]]]
"""As ``processes.spread``: work, items, workers and, by name, arguments."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How communications are matched in shards.

    Attributes:
        workers: processes side by side; None: as many as there are, where ``spread`` knows it.
        most_rows: of a shard, unless a group has more. chunk: ranks that are read one after the other.
        spread: where the work is done. scratch: where scratch files go, which workers see; None: with temporary files.
    """

    workers: int | None
    most_rows: int = ROWS_OF_A_SHARD
    chunk: int = RANKS_OF_A_CHUNK
    spread: Spread = spread
    scratch: Path | None = None


def sharding_of(ranks: int, home: Path, workers: int | None = None, engine: Engine | None = None) -> Sharding | None:
    """How so many ranks are matched: None for few, in this process.

    Args:
        home: a scratch folder is made there: kilobytes per communication, and all workers see it.
        workers: None: as many as fit. engine: where, if it keeps its workers; else in processes of this machine.

    Raises:
        UsageError: what the environment states is no number of ranks.
    """
    if ranks <= RANKS_IN_ONE_PIECE.stated():
        return None
    if engine is not None and engine.keeps_workers:
        return Sharding(workers, spread=engine.spread, scratch=home)
    return Sharding(workers or default_workers(), scratch=home)


class MatchedRanks(NamedTuple):
    """The tables ``collectives``, ``rank_clocks`` and ``messages``; rank → number of its node.

    Attributes:
        charged: gives ``collectives`` with its waits charged, for which all ranks are read once more.
    """

    collectives: pa.Table
    rank_clocks: pa.Table
    messages: pa.Table
    nodes: Mapping[int, int]
    charged: Callable[[], pa.Table]


def match_ranks(iteration: Source, sharding: Sharding | None = None) -> MatchedRanks:
    """Match the communications of an iteration and solve its clocks; in shards its waits are charged, too.

    Args:
        sharding: None: in this process.

    Raises:
        WorkerDiedError: a process died, twice. OutputError: a scratch file cannot be written.
    """
    if sharding is not None:
        with scratch_folder(sharding.scratch) as folder:
            return _match_in_shards(iteration, sharding, folder)
    rows = gather_communications(
        select_communications(iteration.kernels_in_turn(rank, COMMUNICATION_COLUMNS)) for rank in iteration.ranks
    )
    known = (iteration.topology, iteration.microbatches, iteration.ranks, iteration.hosts)
    matches, clocks = match_and_solve(rows, *known)
    nodes = iteration.nodes(device_of_ranks(rows.table))
    collectives = collectives_table(matches, clocks, nodes)
    beside = partial(iteration.kernels_in_turn, columns=BESIDE_COLUMNS)
    charged = partial(charge_waits, collectives, matches, clocks, beside)
    return MatchedRanks(collectives, clocks, messages_table(matches, clocks), nodes, charged)


def _match_in_shards(iteration: Source, sharding: Sharding, folder: Path) -> MatchedRanks:
    ranks, source = iteration.ranks, iteration.stored_kernels
    chunks = [ranks[first : first + sharding.chunk] for first in range(0, len(ranks), sharding.chunk)]
    shards = StoredShards(folder, source, chunks, iteration.microbatches, sharding)
    clocks, numbers = match_shards(shards, iteration.topology, ranks, iteration.hosts)
    firsts = np.array([chunk[0] for chunk in chunks], np.int64)
    asked = shards.each(_ask, clocks, folder, firsts)
    of_chunks = [[(own[place], late[place]) for own, late in asked] for place in range(len(chunks))]
    shards.run(_answer, list(enumerate(of_chunks)), folder, source)
    nodes = iteration.nodes(device_of_ranks(shards.labels))
    # Of a communication some of whose ranks are on nodes that nobody knows nothing is said, nor of any other then.
    known = nodes if nodes.keys() >= set(shards.labels["rank"].to_pylist()) else {}
    charged = shards.each(_charge, clocks, known, folder, firsts, asked, numbers)
    collectives = [
        _in_order(
            [read_arrow(folder / f"collectives_{at}.arrow", [one[place]]) for at, (one, _) in enumerate(charged)],
            "number",
        )
        for place in range(len(chunks))
    ]
    messages = _in_order([each for _, each in charged], "sender", "receiver")
    whole = pa.concat_tables(collectives).unify_dictionaries()
    return MatchedRanks(whole, clocks, messages, nodes, lambda: whole)


class StoredShards:
    """The shards of an iteration in scratch files: whoever works on one reads it, and writes it if it changed.

    Args:
        folder: an empty one. chunks: the ranks, ascending. microbatches: the table of that name of all ranks.
    """

    def __init__(
        self,
        folder: Path,
        source: RankKernels,
        chunks: Sequence[Sequence[int]],
        microbatches: pa.Table,
        sharding: Sharding,
    ) -> None:
        self._folder = folder
        self._sharding = sharding
        self._count = 0
        write_arrow(folder / "microbatches.arrow", microbatches)
        found = self.run(_survey, list(enumerate(chunks)), folder, source)
        self.labels = pa.concat_tables(found).unify_dictionaries()

    def share(self, grouped: GroupedRows, topology: Topology) -> None:
        """As ``Shards.share``."""
        shard = plan(self.labels, grouped, topology, self._sharding.most_rows)
        for place in range(self._count):
            (self._folder / f"shard_{place}").unlink()
        self._count = int(shard.max(initial=0)) + 1
        chunk, first, rows = (optional_integers(self.labels, name) for name in ("chunk", "first", "rows"))
        steps = self.labels.select(["rank", "step"])
        for place in range(self._count):
            mine = np.flatnonzero(shard == place)
            parts = (chunk[mine], first[mine], rows[mine], grouped.group[mine])
            _store(self._folder, place, _Planned(place, *parts, grouped.groups, topology, steps))

    def each(self, work: Callable[..., tuple[Shard, Any]], /, *given: Any) -> list[Any]:
        """As ``Shards.each``."""
        return self.run(_work_on, range(self._count), self._folder, work, given)

    def run(self, work: Callable[..., Any], items: Sequence[Any], *shared: Any) -> list[Any]:
        """The results of some work on each item, in their order.

        Raises:
            WorkerDiedError: a process died, twice.
        """
        results = [None] * len(items)
        for number, result in self._sharding.spread(work, items, self._sharding.workers, arguments=shared):
            if isinstance(result, WorkerDiedError):
                raise result
            results[number] = result
        return results


@dataclass(frozen=True, slots=True)
class _Planned:
    """A shard that nobody has read yet.

    Attributes:
        chunk, first, rows, group: of each of its labels, where its rows are, how many there are, and their group.
        groups: all; steps: rank and step of all labels.
    """

    place: int
    chunk: Int64
    first: Int64
    rows: Int64
    group: Int64
    groups: tuple[CommunicationGroup, ...]
    topology: Topology
    steps: pa.Table

    def read(self, folder: Path) -> Shard:
        """The shard, its rows in the order of the iteration."""
        parts, group = [], [np.empty(0, np.int64)]
        for chunk in np.unique(self.chunk).tolist():
            mine = np.flatnonzero(self.chunk == chunk)
            first, count = self.first[mine], self.rows[mine]
            ranges = zip(first.tolist(), (first + count).tolist(), strict=True)
            parts.append(read_arrow(folder / f"rows_{chunk}.arrow", ranges))
            group.append(np.repeat(self.group[mine], count))
        table = pa.concat_tables(parts).unify_dictionaries() if parts else None
        number = np.empty(0, np.int64) if table is None else table["number"].to_numpy()
        order = np.argsort(number)
        tables = [] if table is None else [table.take(pa.array(order)).select(list(COMMUNICATION_COLUMNS))]
        rows = gather_communications(tables, self.steps)
        # How many chunks of a model a pipeline has, all of its ranks show.
        ranks = {*rows.ranks}
        ranks.update(*(each for each in self.topology.pipelines if not ranks.isdisjoint(each)))
        steps = read_arrow(folder / "microbatches.arrow")
        steps = of_ranks(steps, ranks)
        grouped = GroupedRows(np.concatenate(group)[order], self.groups)
        return Shard(self.place, rows, number[order], grouped, self.topology, steps)


def _survey(item: tuple[int, Sequence[int]], folder: Path, source: RankKernels) -> pa.Table:
    """Store the communications of a chunk of ranks; their labels, and where the rows of each are."""
    place, ranks = item
    rows = gather_communications(select_communications(source.kernels(rank, COMMUNICATION_COLUMNS)) for rank in ranks)
    found, which = survey(rows)
    there, first = np.unique(rows.rank, return_index=True)
    number = (rows.rank << _RANK_SHIFT) + np.arange(len(rows)) - first[np.searchsorted(there, rows.rank)]
    order = pa.array(np.argsort(which, kind="stable"))
    write_arrow(folder / f"rows_{place}.arrow", rows.table.append_column("number", pa.array(number)).take(order))
    count = found["rows"].to_numpy()
    found = found.append_column("chunk", pa.array(np.full(len(count), place)))
    return found.append_column("first", pa.array((np.cumsum(count) - count).astype(np.int64)))


def _work_on(place: int, folder: Path, work: Callable[..., tuple[Shard, Any]], given: tuple[Any, ...]) -> Any:
    stored = pickle.loads((folder / f"shard_{place}").read_bytes())
    shard = stored.read(folder) if isinstance(stored, _Planned) else stored
    after, result = work(shard, *given)
    if after is not stored:
        _store(folder, place, after)
    return result


def _store(folder: Path, place: int, shard: Shard | _Planned) -> None:
    path = folder / f"shard_{place}"
    try:
        with path.open("wb") as file:
            pickle.dump(shard, file, pickle.HIGHEST_PROTOCOL)
    except OSError as error:
        raise unwritable(path, error) from error


Ranges = list[Range]
"""Of each chunk of ranks, its rows of a file."""


def _ranges(rank: Int64, firsts: Int64) -> Ranges:
    """The rows of each chunk among some that are in the order of ranks."""
    edges = [*np.searchsorted(rank, firsts[1:]).tolist(), len(rank)]
    return list(zip([0, *edges], edges, strict=False))


def _ask(shard: Shard, clocks: pa.Table, folder: Path, firsts: Int64) -> tuple[Shard, tuple[Ranges, Ranges]]:
    """Store what a shard asks of kernels, in the order of ranks."""
    asked = ask(shard.matches, clocks)
    own, late = asked.own(shard.matches), asked.charged(shard.matches)
    write_arrow(folder / f"own_{shard.place}.arrow", own)
    write_arrow(folder / f"late_{shard.place}.arrow", late)
    ranges = (_ranges(optional_integers(table, "rank"), firsts) for table in (own, late))
    return replace(shard, asked=asked), (next(ranges), next(ranges))


def _answer(item: tuple[int, Sequence[tuple[Range, Range]]], folder: Path, source: RankKernels) -> None:
    """Answer what all shards ask of a chunk of ranks; answers are stored in the order of shards."""
    place, asked = item
    own, late = (
        pa.concat_tables([read_arrow(folder / f"{name}_{at}.arrow", [one[which]]) for at, one in enumerate(asked)])
        for which, name in enumerate(("own", "late"))
    )
    of_own, of_late = answer(own, late, lambda rank: source.kernels(rank, BESIDE_COLUMNS))
    write_arrow(folder / f"of_own_{place}.arrow", of_own)
    write_arrow(folder / f"of_late_{place}.arrow", of_late)


def _charge(
    shard: Shard,
    clocks: pa.Table,
    nodes: Mapping[int, int],
    folder: Path,
    firsts: Int64,
    asked: Sequence[tuple[Ranges, Ranges]],
    numbers: Sequence[Int64],
) -> tuple[Shard, tuple[Ranges, pa.Table]]:
    """Store a shard's rows of ``collectives``; the rows of each chunk of ranks, and the shard's messages."""
    answers = []
    for which, name in enumerate(("of_own", "of_late")):
        # A chunk has the answers of the shards before this one first.
        counts = [[high - low for low, high in one[which]] for one in asked[: shard.place + 1]]
        ends = [sum(of_shards) for of_shards in zip(*counts, strict=True)]
        mine = [(end - count, end) for end, count in zip(ends, counts[-1], strict=True)]
        parts = [read_arrow(folder / f"{name}_{place}.arrow", [one]) for place, one in enumerate(mine)]
        answers.append(pa.concat_tables(parts).unify_dictionaries())
    matches, own = shard.matches, numbers[shard.place]
    assert shard.asked is not None, "answers are of what was asked"
    table = charge(collectives_table(matches, clocks, nodes), matches, shard.asked, answers[0], answers[1])
    table = _renumbered(_renumbered(table, "communication", own), "may_meet", own)
    table = table.append_column("number", pa.array(shard.number))
    write_arrow(folder / f"collectives_{shard.place}.arrow", table)
    messages = _renumbered(messages_table(matches, clocks), "communication", own)
    for name in ("sender", "receiver"):
        messages = messages.append_column(name, pa.array(shard.number[getattr(matches.messages, name)]))
    return shard, (_ranges(matches.rows.rank, firsts), messages)


def _renumbered(table: pa.Table, name: str, numbers: Int64) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, table.field(name), pa.array(numbers).take(table[name]).cast(table.field(name).type))


def _in_order(parts: Sequence[pa.Table], *by: str) -> pa.Table:
    """The rows of some tables in the order of these columns, without them."""
    whole = pa.concat_tables(parts).unify_dictionaries()
    order = np.lexsort([whole[name].to_numpy() for name in reversed(by)])
    return whole.take(pa.array(order)).drop_columns(list(by))
