"""The causes of an iteration's step time, from its ranks' tables: graph, critical path, and what edits would gain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.advice.advice_table import advice_items, advice_table, refused_advice
from traceviz_dag.analyze.advice.placement import placed
from traceviz_dag.analyze.advice.search import Advisor
from traceviz_dag.analyze.causes.causes_tables import (
    path_edges,
    path_items,
    path_segments,
    refused_what_if,
    what_if_table,
)
from traceviz_dag.analyze.causes.chained import Steady
from traceviz_dag.analyze.causes.critical_imbalance import critical_imbalance
from traceviz_dag.analyze.causes.critical_path import critical_path
from traceviz_dag.analyze.causes.delay_costs import delay_costs_table
from traceviz_dag.analyze.causes.efficiencies import efficiencies_table, refused_efficiencies
from traceviz_dag.analyze.causes.inferred_waits import done_before, lacks_launches
from traceviz_dag.analyze.causes.kernel_edges import KernelEdges, as_launched, kernel_edges, of_all_replays
from traceviz_dag.analyze.causes.rank_kernels import KERNEL_COLUMNS, RankKernels, kernels_of_step, rank_kernels
from traceviz_dag.analyze.causes.rank_work import HostWaits, RankWork, rank_work
from traceviz_dag.analyze.causes.recorded_waits import host_waits, stream_waits, with_wait_at_the_end
from traceviz_dag.analyze.causes.reordered import Change
from traceviz_dag.analyze.causes.side_streams import side_streams
from traceviz_dag.analyze.causes.step_work import Members, StepWork, step_work
from traceviz_dag.analyze.causes.wait_calls import StreamWaits
from traceviz_dag.analyze.causes.what_if import Suspects, WhatIf
from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.arrays import NONE, Int64, Shared, distinct, number_groups
from traceviz_dag.classify.topology.tables import ordinals_of
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.engines import IMPORTED_ONCE
from traceviz_dag.pipeline.shards import RANKS_OF_A_CHUNK
from traceviz_dag.read.events import MISSING
from traceviz_dag.system.processes import spread_in_order, stand_back
from traceviz_dag.tables import CAUSES_TABLES, TABLES
from traceviz_dag.tables.rows import of_ranks
from traceviz_dag.vocabulary import ALL_DIMENSIONS, CPU_DEVICE

_MESSAGE = 1 << 48
"""Numbers of messages begin here, those of collectives are below."""

_AT_ONCE = 16
"""Ranks that a process holds before it sends them: few, as each may have 50,000 kernels."""

_MOST_SENT = 4_000_000
"""Kernels of a step that is copied to other processes: 120 bytes of each are sent to each, and replaying takes more."""

_MODULE_COLUMNS = ("kernel_id", "module")


class RankTables(Protocol):
    """Tables of an iteration's ranks."""

    def kernels(self, rank: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of one rank's kernels."""

    def synchronizations(self, rank: int) -> pa.Table:
        """One rank's synchronisations; no rows where its trace has none."""


class Source(RankTables, Protocol):
    """An iteration's tables."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that are counted."""

    @property
    def topology(self) -> Topology:
        """The job's topology."""

    def hidden_waits(self, rank: int) -> Sequence[int]:
        """``synchronization_id`` of one rank's waits for its GPU that neither Megatron nor its data loader makes."""

    def pauses(self, rank: int) -> Mapping[int, int]:
        """``kernel_id`` → how long one rank's host is known to have paused before its launch, ns."""

    def windows(self, *more: str) -> pa.Table:
        """The table ``overlap`` of the ranks that are counted, with a column ``rank`` and others."""


class StoredSource(Source, Protocol):
    """The same with the tables that are made across ranks."""

    def table(self, name: str) -> pa.Table:
        """One of its tables."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Processes in which more ranks than a chunk are read, and the tables of their step are made.

    Attributes:
        tables: those of the ranks, to be sent there. workers: how many processes.
        begun: step → its ranks, as they come, which were begun before communications were matched.
    """

    tables: RankTables
    workers: int
    begun: dict[int, Iterator[list[_Read]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankedStep:
    """One training step of an iteration, ready to be replayed.

    Attributes:
        number: of the ProfilerStep; ``MISSING`` without one.
        step: its graph. stages: stage of each of its ranks, ``MISSING`` where unknown.
        tight: its graph with all waits that may be where launches are not on record; None where they are.
        loose: its graph without meetings of which several groups may be the members; None where there are none.
        unread: ranks of the job that were not read, where few were read, or no complete model.
    """

    number: int
    step: StepWork
    stages: tuple[int, ...]
    tight: StepWork | None = None
    loose: StepWork | None = None
    unread: int = 0

    def what_if(self) -> WhatIf:
        """Predictions for it."""
        return WhatIf(self.step, self.stages, self.tight, self.loose, unread=self.unread)


def causes_tables(
    source: Source,
    collectives: pa.Table,
    messages: pa.Table,
    suspects: Suspects | None = None,
    kept: list[WhatIf] | None = None,
    nodes: Mapping[int, int] | None = None,
    side_by_side: SideBySide | None = None,
) -> Mapping[str, pa.Table]:
    """Compute the tables of an iteration's causes.

    Args:
        collectives, messages: its tables of that name.
        suspects: what by other tables is slow, or may be.
        kept: gets the replay of a step that is the only one; several would need too much memory.
        nodes: rank → its node; none unknown.
        side_by_side: where ranks are read and tables are made; None: in this process.

    Returns:
        Table name → rows, for each of ``CAUSES_TABLES``; where nothing can be said, ``what_if`` says why.
    """
    parts: dict[str, list[pa.Table]] = {name: [] for name in CAUSES_TABLES}
    steps, replica_of = _steps(source.windows()), ordinals_of(source.topology.replicas.closure)
    for number, ranked in _each_step(source, steps, collectives, messages, side_by_side):
        if isinstance(ranked, NoEvidenceError):
            parts["what_if"].append(refused_what_if(str(ranked), number))
            parts["efficiencies"].append(refused_efficiencies(str(ranked), number))
            parts["advice"].append(refused_advice(str(ranked), number))
            continue
        what_if = ranked.what_if()
        if kept is not None and len(steps) == 1:
            kept.append(what_if)
        replicas = tuple(replica_of.get(rank, MISSING) for rank in ranked.step.ranks)
        # What takes longest begins first.
        ways: list[_Way] = [
            partial(_what_ifs, suspects=suspects),
            partial(_advice, topology=source.topology, nodes=nodes or {}),
            partial(_path, tables=source if side_by_side is None else side_by_side.tables),
            partial(_factors, replicas=replicas, world=source.topology.world_size),
        ]
        for found in _each_way(ways, what_if, number, side_by_side):
            for name, table in found.items():
                parts[name].append(table)
    return {
        name: pa.concat_tables([TABLES[name].schema.empty_table(), *tables]).unify_dictionaries()
        for name, tables in parts.items()
    }


@contextmanager
def side_by_side(source: Source, tables: RankTables, workers: int) -> Iterator[SideBySide | None]:
    """Processes that read the ranks of the first step from now on, whatever this process does; None for one alone.

    What matching tells of their communications is not known yet: a rank of which it changes any is read once more.

    Args:
        tables: of the ranks, to be sent there.
    """
    if workers <= 1:
        yield None
        return
    number, windows = next(iter(_steps(source.windows()).items()), (MISSING, {}))
    there = [rank for rank in source.ranks if rank in windows]
    if len(there) <= RANKS_OF_A_CHUNK:
        yield SideBySide(tables, workers)
        return
    # One without ranks is back as soon as the others are handed out.
    items = [([], None), *((chunk, None) for chunk in _chunks(there))]
    with closing(spread_in_order(_read, items, workers, IMPORTED_ONCE, (tables, number))) as chunks:
        next(chunks)
        yield SideBySide(tables, workers, {number: chunks})


_Way = Callable[[WhatIf, int], Mapping[str, pa.Table]]
"""Some tables of a step, by its replay and its number."""


def _each_way(
    ways: Sequence[_Way], what_if: WhatIf, number: int, side_by_side: SideBySide | None
) -> Iterator[Mapping[str, pa.Table]]:
    kernels = sum(len(work.kernels) for work in what_if.step.works)
    if side_by_side is None or len(what_if.step.ranks) <= RANKS_OF_A_CHUNK or kernels > _MOST_SENT:
        return (way(what_if, number) for way in ways)
    return spread_in_order(_taken, ways, side_by_side.workers, IMPORTED_ONCE, (what_if, number))


def _taken(way: _Way, what_if: WhatIf, number: int) -> Mapping[str, pa.Table]:
    return way(what_if, number)


def _what_ifs(what_if: WhatIf, number: int, suspects: Suspects | None) -> Mapping[str, pa.Table]:
    return {"what_if": what_if_table(*what_if.standard_and_refused(suspects), number)}


def _path(what_if: WhatIf, number: int, tables: RankTables) -> Mapping[str, pa.Table]:
    step, times, stages = what_if.step, what_if.times, what_if.edits.stages
    path = critical_path(step, times)
    modules = partial(tables.kernels, columns=_MODULE_COLUMNS)
    return {
        "path_edges": path_edges(step, number),
        "path_segments": path_segments(step, path, stages, number, modules),
        "path_items": path_items(step, times, path, stages, number),
        "critical_imbalance": critical_imbalance(step, times, path, number),
        "delay_costs": delay_costs_table(step, times, stages, number),
    }


def _factors(what_if: WhatIf, number: int, replicas: Sequence[int], world: int | None) -> Mapping[str, pa.Table]:
    return {"efficiencies": efficiencies_table(what_if, replicas, world, number)}


def _advice(what_if: WhatIf, number: int, topology: Topology, nodes: Mapping[int, int]) -> Mapping[str, pa.Table]:
    """The tables of advice of one step; snapshots of memory are not looked at."""
    try:
        if (why := what_if.unseen(what_if.reorder(Change()))) is not None:
            return {"advice": refused_advice(why, number)}
        advisor = Advisor(what_if.items, what_if, {}, placed=placed(topology, nodes, [what_if]))
        items = advice_items(advisor, number, lambda: what_if.free_items)
        return {"advice": advice_table(advisor, number), "advice_items": items}
    except NoEvidenceError as error:
        return {"advice": refused_advice(str(error), number)}


def ranked_steps(source: Source, collectives: pa.Table, messages: pa.Table) -> Iterator[RankedStep]:
    """The steps of an iteration, one after the other.

    Raises:
        NoEvidenceError: no rank has kernels of a GPU in a step, or some work waits for itself.
    """
    for _, ranked in _each_step(source, _steps(source.windows()), collectives, messages):
        if isinstance(ranked, NoEvidenceError):
            raise ranked
        yield ranked


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """Training steps of several iterations that follow one another, and the iteration of each.

    Attributes:
        steady: their replay. ranked, sources: per step.
    """

    steady: Steady
    ranked: tuple[RankedStep, ...]
    sources: tuple[StoredSource, ...]

    @property
    def numbers(self) -> tuple[int, int]:
        """The first and the last step."""
        return self.ranked[0].number, self.ranked[-1].number

    def path_segments(self) -> pa.Table:
        """The critical path of the steady periods, as the table ``path_segments`` has that of a step."""
        path, ranks, parts = self.steady.work.steady_path(self.steady.times), len(self.ranked[0].stages), []
        for place, (ranked, source) in enumerate(zip(self.ranked, self.sources, strict=True)):
            modules = partial(source.kernels, columns=_MODULE_COLUMNS)
            mine = path.only(path.rank // ranks == place, less=place * ranks)
            parts.append(path_segments(ranked.step, mine, ranked.stages, ranked.number, modules))
        return pa.concat_tables(parts).unify_dictionaries()


def steady_steps(sources: Sequence[StoredSource]) -> SteadySteps:
    """The steps of iterations as one chain.

    Args:
        sources: in the order of iterations.

    Raises:
        NoEvidenceError: a step cannot be replayed, or the steps cannot be joined; see ``chained``.
    """
    found = [
        (ranked, source)
        for source in sources
        for ranked in ranked_steps(source, source.table("collectives"), source.table("messages"))
    ]
    ranked, of = zip(*found, strict=True) if found else ((), ())
    return SteadySteps(Steady([one.what_if() for one in ranked], [one.number for one in ranked]), ranked, of)


def replayable_steps(source: Source, collectives: pa.Table, messages: pa.Table) -> Iterator[RankedStep]:
    """The same, without the steps that cannot be replayed."""
    for _, ranked in _each_step(source, _steps(source.windows()), collectives, messages):
        if not isinstance(ranked, NoEvidenceError):
            yield ranked


def _each_step(
    source: Source,
    steps: Mapping[int, Mapping[int, tuple[int, int]]],
    collectives: pa.Table,
    messages: pa.Table,
    side_by_side: SideBySide | None = None,
) -> Iterator[tuple[int, RankedStep | NoEvidenceError]]:
    """The number of each step, and the step or why it cannot be replayed."""
    for number, windows in steps.items():
        ranked: RankedStep | NoEvidenceError
        try:
            ranked = _ranked_step(source, windows, collectives, messages, number, side_by_side)
        except NoEvidenceError as error:
            ranked = error
        yield number, ranked


@dataclass(frozen=True, slots=True)
class _Read:
    """One rank in a step, as far as its own tables show it.

    Attributes:
        on_cpu: whether the trace has no GPU. unlaunched: see ``lacks_launches``.
        called: what is recorded of waits between streams. edges: of these all, as far as the rank's own launches show
            them. held: the calls in which the host waited.
    """

    rank: int
    kernels: RankKernels
    on_cpu: bool
    unlaunched: bool
    called: StreamWaits
    edges: KernelEdges
    held: HostWaits


def _read(item: tuple[Sequence[int], pa.Table | None], tables: RankTables, number: int) -> list[_Read]:
    """The ranks of a chunk that have kernels in a step.

    Args:
        item: ranks; and rows of ``collectives``, of which those of these ranks count; None: nothing is matched yet.
    """
    ranks, collectives = item
    if collectives is None:
        # All else waits for who matches meanwhile.
        stand_back()
    found, known = [], {} if collectives is None else _known_dimensions(collectives)
    # One table after the other: those of all ranks together are larger than all that is made of them.
    for rank in ranks:
        table = kernels_of_step(tables.kernels(rank, KERNEL_COLUMNS), number)
        if not table.num_rows:
            continue
        on_cpu = CPU_DEVICE in pc.unique(table["device"].cast(pa.string())).to_pylist()
        mine, recorded = rank_kernels(_with_dimensions(table, known.get(rank))), tables.synchronizations(rank)
        called = stream_waits(mine, recorded, number)
        held = host_waits(mine, recorded)
        sides = side_streams(mine)
        edges = kernel_edges(mine, sides, called)
        found.append(_Read(rank, mine, on_cpu, lacks_launches(mine, sides), called, edges, held))
    return found


def _read_ranks(
    source: Source, ranks: Sequence[int], collectives: pa.Table, number: int, side_by_side: SideBySide | None
) -> Iterator[_Read]:
    """The same of all ranks, in their order."""
    # A part that is filtered out is sent alone, one that is cut out with all rows.
    items = [(chunk, of_ranks(collectives, chunk)) for chunk in _chunks(ranks)]
    if side_by_side is None or len(ranks) <= RANKS_OF_A_CHUNK:
        return chain.from_iterable(_read(item, source, number) for item in items)
    arguments = (side_by_side.tables, number)
    return chain.from_iterable(spread_in_order(_read, items, side_by_side.workers, IMPORTED_ONCE, arguments))


def _chunks(ranks: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ranks[first : first + _AT_ONCE] for first in range(0, len(ranks), _AT_ONCE))


def _begun(chunks: Iterable[list[_Read]], collectives: pa.Table) -> Iterator[_Read]:
    """The ranks that were read before anything was matched of whose communications matching says nothing else."""
    known = _known_dimensions(collectives)
    return (one for one in chain.from_iterable(chunks) if _has_dimensions(one.kernels, known.get(one.rank)))


def _ranked_step(
    source: Source,
    windows: Mapping[int, tuple[int, int]],
    collectives: pa.Table,
    messages: pa.Table,
    number: int,
    side_by_side: SideBySide | None = None,
) -> RankedStep:
    read: dict[int, _Read] = {}
    shared, known = Shared(), collectives.select(["rank", "kernel_id", "dimension"])
    begun = side_by_side.begun.pop(number, ()) if side_by_side is not None else ()
    for one in _begun(begun, known):
        read[one.rank] = replace(one, kernels=shared.of(one.kernels))
    left = [rank for rank in source.ranks if rank in windows and rank not in read]
    for one in _read_ranks(source, left, known, number, side_by_side):
        read[one.rank] = replace(one, kernels=shared.of(one.kernels))
    placed = dict(sorted(read.items()))
    if not placed:
        raise NoEvidenceError("no rank has kernels in this step")
    if all(one.on_cpu for one in placed.values()):
        raise NoEvidenceError("the traces have no GPU, so nothing shows what waited for what")
    kernels = [one.kernels for one in placed.values()]
    of = list(placed), kernels
    members = _members(*of, collectives, messages)
    open_ = pc.any(pc.and_(pc.is_null(collectives["communication"]), pc.is_valid(collectives["may_meet"]))).as_py()
    fewer = _members(*of, collectives, messages, may_meet=False) if open_ else members
    if len(fewer.rank) == len(members.rank):
        fewer = members
    works, tight, loose = [], [], []
    done = _least_done(kernels) if any(one.unlaunched for one in placed.values()) else {}
    shown = of_all_replays(kernels, [one.edges for one in placed.values()])
    for place, ((rank, one), edges) in enumerate(zip(placed.items(), shown, strict=True)):
        mine = one.kernels
        joined = distinct(members.kernel[members.of(place)])
        of_host = one.held, windows[rank], source.pauses(rank), source.hidden_waits(rank)
        works.append(shared.of(_work(mine, edges, joined, *of_host)))
        if fewer is not members:
            loose.append(_work(mine, edges, distinct(fewer.kernel[fewer.of(place)]), *of_host))
        tight.append(works[-1])
        if one.unlaunched:
            tied = kernel_edges(mine, side_streams(mine), one.called, done[mine.program])
            tight[-1] = _work(as_launched(mine, tied), tied, joined, *of_host)
    found = (source.topology.stage_of(rank)[0] for rank in placed)
    stages = tuple(MISSING if stage is None else stage for stage in found)
    return RankedStep(
        number,
        step_work(list(placed), works, members),
        stages,
        step_work(list(placed), tight, members) if done else None,
        None if fewer is members else step_work(list(placed), loose, fewer),
        _unread(source.topology, set(placed)),
    )


def _unread(topology: Topology, read: set[int]) -> int:
    """Ranks of the job that were not read, where few were, or no complete model; else replicas are taken as alike."""
    replicas = topology.replicas.closure
    # Where the groups of experts are unknown, so is which ranks make a complete model; pipelines may be known.
    every = {rank for group in (*replicas, *topology.pipelines) for rank in group}
    whole = not replicas or any(read.issuperset(replica) for replica in replicas)
    most = 2 * len(read) > len(every) and whole
    return 0 if most else len(every - read)


def _known_dimensions(collectives: pa.Table) -> dict[int, pa.Table]:
    """Rank → ``kernel_id`` of its communications and the ``dimension`` that their members show together."""
    rank = collectives["rank"].to_numpy(zero_copy_only=False)
    order = np.argsort(rank, kind="stable")
    table = pa.table({"kernel_id": collectives["kernel_id"], "dimension": collectives["dimension"].cast(pa.string())})
    table = table.take(pa.array(order)).combine_chunks()
    each, begins = np.unique(rank[order], return_index=True)
    lengths = np.diff(begins, append=len(order))
    parts = zip(each.tolist(), begins.tolist(), lengths.tolist(), strict=True)
    return {one: table.slice(begin, length) for one, begin, length in parts}


def _has_dimensions(kernels: RankKernels, known: pa.Table | None) -> bool:
    """Whether one rank's communications have the dimensions that their members show together; see there."""
    if known is None:
        return True
    code, words = codes(known, "dimension")
    own = np.array([*(words.index(one) if one in words else MISSING for one in kernels.dimensions), MISSING])
    place = kernels.places(optional_integers(known, "kernel_id"))
    return not ((place != NONE) & (code != NONE) & (own[kernels.dimension[place]] != code)).any()


def _with_dimensions(kernels: pa.Table, known: pa.Table | None) -> pa.Table:
    """One rank's kernels, each communication with the dimension that its members show together.

    Args:
        known: of ``_known_dimensions``; None for a rank without any.
    """
    if known is None:
        return kernels
    place = pc.index_in(kernels["kernel_id"], value_set=known["kernel_id"].cast(kernels["kernel_id"].type))
    own = kernels["dimension"].cast(pa.string())
    told = pc.coalesce(known["dimension"].take(place), own)
    if told.equals(own):
        return kernels
    at = kernels.column_names.index("dimension")
    return kernels.set_column(at, "dimension", told.dictionary_encode())


def _work(
    kernels: RankKernels,
    edges: KernelEdges,
    joined: Int64,
    held: HostWaits,
    window: tuple[int, int],
    pauses: Mapping[int, int],
    hidden: Sequence[int],
) -> RankWork:
    """The work of one rank, with the wait of its host at the end of the step where that is plain; see ``rank_work``."""
    return rank_work(kernels, edges, joined, with_wait_at_the_end(kernels, held, window), window, pauses, hidden)


def _least_done(ranks: Iterable[RankKernels]) -> dict[bytes, Int64]:
    """Program → ``done_before``, the least of all ranks that ran it, for they wait for the same."""
    result: dict[bytes, Int64] = {}
    for kernels in ranks:
        done = done_before(kernels)
        result[kernels.program] = np.minimum(result.get(kernels.program, done), done)
    return result


def _steps(overlap: pa.Table) -> dict[int, dict[int, tuple[int, int]]]:
    """Step → rank → its window on the host; without a ProfilerStep, from the first kernel to the last."""
    rows = overlap.filter(pc.equal(overlap["dimension"].cast(pa.string()), ALL_DIMENSIONS))
    names = rows["window_name"].cast(pa.string())
    steps = rows.filter(pc.equal(names, "step"))
    rows = steps if steps.num_rows else rows.filter(pc.equal(names, "kernels"))
    result: dict[int, dict[int, tuple[int, int]]] = {}
    columns = [optional_integers(rows, name).tolist() for name in ("step", "rank", "window_start_ns", "window_end_ns")]
    for step, rank, start, end in sorted(zip(*columns, strict=True)):
        low, high = result.setdefault(step, {}).get(rank, (start, end))
        result[step][rank] = min(low, start), max(high, end)
    return result


def _members(
    ranks: Sequence[int],
    placed: Sequence[RankKernels],
    collectives: pa.Table,
    messages: pa.Table,
    *,
    may_meet: bool = True,
) -> Members:
    """Who meets whom: members of matched collectives, and both ends of each message.

    Args:
        may_meet: also those that are not matched, and all that they may have met.
    """
    sides = [
        np.stack([optional_integers(messages, f"{side}_rank"), optional_integers(messages, f"{side}_kernel_id")])
        for side in ("sender", "receiver")
    ]
    buffered, rooted = (
        np.asarray(pc.fill_null(table[name], False), dtype=bool)
        for table, name in ((messages, "buffered"), (collectives, "ahead"))
    )
    rank, kernel, communication, at_most, members, found = (
        optional_integers(collectives, name)
        for name in ("rank", "kernel_id", "communication", "may_meet", "members", "members_found")
    )
    # Where several groups explain its ends, it waits for all that it may have met: no gain is larger by that.
    communication = np.where((communication == MISSING) & may_meet, at_most, communication)
    carrying = np.unique(np.concatenate(sides, axis=1), axis=1)
    width = int(max(kernel.max(initial=0), carrying[1].max(initial=0))) + 1
    alone = (communication != MISSING) & ~np.isin(rank * width + kernel, carrying[0] * width + carrying[1])
    by_itself = np.concatenate([_only_ahead(sides, buffered), np.stack([rank, kernel])[:, alone & rooted]], axis=1)
    count, own = messages.num_rows, by_itself.shape[1]
    meeting = np.concatenate(
        [communication[alone], *(_MESSAGE + np.arange(count),) * 2, _MESSAGE + count + np.arange(own)]
    )
    sending = np.zeros(2 * count + own, dtype=bool)
    # Of a group whose members are not known, some may be missing.
    lacks = np.concatenate([((found < members) | (members == MISSING) & (at_most == MISSING))[alone], sending])
    of_one = np.concatenate([(members == 1)[alone], sending[own:], np.ones(own, dtype=bool)])
    ahead = np.concatenate([rooted[alone], buffered, sending[count:]])
    role = np.repeat([0, 1, 2, 0], [int(alone.sum()), count, count, own])
    rank, kernel = np.concatenate([np.stack([rank, kernel])[:, alone], *sides, by_itself], axis=1)
    place, spot = _places(ranks, placed, rank, kernel)
    there = place >= 0
    place, spot, meeting = place[there], spot[there], meeting[there]
    lacks, of_one, ahead, role = lacks[there], of_one[there], ahead[there], role[there]
    # A meeting of one is none: its peers are of another step, or were not read. A group of one has no peers.
    number = number_groups(meeting)[1]
    whole = (np.bincount(number, minlength=1)[number] > 1) | of_one
    place, spot, meeting, lacks, ahead, role = (each[whole] for each in (place, spot, meeting, lacks, ahead, role))
    if not len(meeting):
        return Members(place, spot, meeting)
    first, number = number_groups(meeting)
    return Members(place, spot, number.astype(np.int64), lacks[first], ahead if ahead.any() else None, role)


def _only_ahead(sides: Sequence[Int64], buffered: npt.NDArray[np.bool_]) -> Int64:
    """Rank and kernel of what carries buffered sends and waits for nobody, as two rows.

    Args:
        sides: the same of each message's sender and receiver. buffered: of each message.
    """
    ahead = np.unique(sides[0][:, buffered], axis=1)
    waiting = np.concatenate([sides[0][:, ~buffered], sides[1]], axis=1)
    width = int(max(side.max(initial=0) for side in sides)) + 1
    return np.asarray(ahead[:, ~np.isin(ahead[0] * width + ahead[1], waiting[0] * width + waiting[1])], dtype=np.int64)


def _places(ranks: Sequence[int], placed: Sequence[RankKernels], rank: Int64, kernel: Int64) -> tuple[Int64, Int64]:
    """Place of each rank, and of each kernel in its rank; ``NONE`` where it is not of this step."""
    place, spot = np.full(len(rank), NONE), np.full(len(rank), NONE)
    order = np.argsort(rank, kind="stable")
    ends = np.searchsorted(rank[order], np.array(ranks, np.int64), side="right")
    begins = np.searchsorted(rank[order], np.array(ranks, np.int64))
    for number, (kernels, low, high) in enumerate(zip(placed, begins.tolist(), ends.tolist(), strict=True)):
        mine = order[low:high]
        found = kernels.places(kernel[mine])
        place[mine[found >= 0]], spot[mine[found >= 0]] = number, found[found >= 0]
    return place, spot
