"""Ranks whose GPU is slow: the same kernels take longer than on the peers of their stage. This needs no clock.

Ranks of one stage run the same kernels. A kernel name and operator in a phase of a step is one item of work (the name
alone, where only some ranks have rows of their host); it is compared where every rank of the stage ran it equally
often. Where the sizes of inputs were recorded, each size is an item, and two ranks that ran it are enough. A slow GPU
is slower in nearly all items; uneven data or experts in some.

Name and grid do not show how much a kernel has to do: persistent kernels run as many blocks as there are processors,
whatever their shapes. Sizes show it, the messages within layers, or grids that are not those of products. Ranks for
which these differ have more or less to do, and items without sizes count as slow only beyond that.

A rank whose memory is slow is slower in the kernels that are bound by it, and not in products and attention; one whose
core clock is low, the other way round. One may be slow in a single kernel. One that
computes by another algorithm runs kernels that no peer runs, instead of as many that all peers run; one that runs
all that its peers run, and other kernels besides, does extra work. Optimizer and gradient norm are left out of that:
the shards of a distributed optimizer cut parameters into more pieces on some ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.medians import lower_median
from traceviz_dag.analyze.slow_words import LEAST_ITEMS, MEMORY_SLOWER, SLOWER, SLOWER_THAN_FEW
from traceviz_dag.analyze.work_evidence import (
    OF_LAYERS,
    WorkEvidence,
    bound_by_memory,
    is_attention,
    plain_codes,
    sizes_of,
)
from traceviz_dag.arrays import Bool, Float64, Int64, number_groups, places_of_each
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import CLASS_SPEEDS, RANK_SPEEDS
from traceviz_dag.vocabulary import Phase

SPREADS = 5.0
"""And by how many median absolute deviations of the stage's ranks."""

_HALF = 0.5
"""Share of the items in which a rank is slower that is slow for a part of the step."""

_LEAST_PART = 0.01
"""How much longer it takes for all items together where it is slow in one phase alone."""

_ONE_NUMBER_NS = 5_000
"""A kernel of an optimizer that usually takes less works on single numbers, as many on shards of any size."""

_FEW_PEERS = 3

_EXTRA = 0.005
"""Time of kernels that no peer runs so often, to that of the same kernels, from which a rank does extra work."""


_ONE_KERNEL_SLOWER, _ONE_KERNEL_PART = 1.2, 0.01
"""How much longer one kernel takes where it alone is slow, and how much that is of all computation."""

PRODUCTS, ATTENTION, MEMORY_BOUND = "products", "attention", "memory_bound"
"""Classes of work, by the names of kernels."""


class _Item(NamedTuple):
    """An item of work: the ranks that ran it, whether each is slower, its time, the usual time for as many kernels."""

    ranks: Int64
    slower: Bool
    own: Float64
    usual: Float64

    @classmethod
    def of(cls, ranks: Int64, kernels: Int64, time: Float64) -> _Item:
        """One that ranks ran so many kernels of, which took so long together."""
        each = time / kernels
        median = _median_of_others(each)
        spread = float(np.median(np.abs(each - np.median(each)))) if len(each) > _FEW_PEERS else 0.0
        least = SLOWER if len(each) > _FEW_PEERS else SLOWER_THAN_FEW
        slower = (each > (1 + least) * median) & (each - median > SPREADS * spread)
        return cls(ranks, slower, time, median * kernels)


@dataclass
class _Sums:
    """What is counted of some items, per rank: how many, in how many the rank is slower, its time, the usual time."""

    items: npt.NDArray[np.int64]
    slower: npt.NDArray[np.int64]
    own: npt.NDArray[np.float64]
    usual: npt.NDArray[np.float64]

    @classmethod
    def none(cls, ranks: int) -> _Sums:
        return cls(np.zeros(ranks, np.int64), np.zeros(ranks, np.int64), np.zeros(ranks), np.zeros(ranks))

    def add(self, item: _Item) -> None:
        """Count an item that some ranks ran."""
        self.items[item.ranks] += 1
        self.slower[item.ranks] += item.slower
        self.own[item.ranks] += item.own
        self.usual[item.ranks] += item.usual

    @classmethod
    def together(cls, parts: Sequence[_Sums]) -> _Sums:
        """The sums of several, of which there is one at least."""
        return cls(*(sum(getattr(part, name) for part in parts) for name in ("items", "slower", "own", "usual")))

    @property
    def share(self) -> npt.NDArray[np.float64]:
        """Share of the items in which each rank is slower."""
        return np.asarray(self.slower / np.maximum(self.items, 1))

    @property
    def ratio(self) -> npt.NDArray[np.float64]:
        """Each rank's time to the usual time; 1 without items."""
        return np.where(self.items > 0, self.own / np.maximum(self.usual, 1.0), 1.0)


def slow_ranks(work: pa.Table) -> pa.Table:
    """Compare each rank's computation with that of the peers of its stage: the first table of :func:`speeds`, in which
    ``kind`` is not known yet."""
    return speeds(work)[0]


def speeds(work: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Compare each rank's computation with that of the peers of its stage, item by item.

    Args:
        work: a row per rank × item (``lake.summaries.computation_by_kernel``): rank, stage, step, phase, name, kernels,
            time_ns; operator, input_sizes, blocks, most_blocks and elements may be left out. Ranks without a stage are
            peers of each other.

    Returns:
        The table ``rank_speeds``, the slowest first, and the table ``class_speeds``.
    """
    work = _by_name_where_blind(_together_where_unmarked(work))
    rank, stage = optional_integers(work, "rank"), optional_integers(work, "stage")
    everyone, place = np.unique(rank, return_inverse=True)
    stage_of = np.zeros(len(everyone), dtype=np.int64)
    stage_of[place] = stage
    _, group = number_groups(stage_of)
    of_stage = np.bincount(group)[group]
    every, without_sizes = (_Sums.none(len(everyone)) for _ in range(2))
    by_class = {each: _Sums.none(len(everyone)) for each in (PRODUCTS, ATTENTION, MEMORY_BOUND)}
    by_name: defaultdict[int, _Sums] = defaultdict(lambda: _Sums.none(len(everyone)))
    time, kernels = optional_integers(work, "time_ns").astype(np.float64), optional_integers(work, "kernels")
    blocks, sized = _optional(work, "blocks") / np.maximum(kernels, 1), sizes_of(work)[0] >= 0
    phase, phases = codes(work, "phase")
    optimizer = phases.index(Phase.OPTIMIZER.value) if Phase.OPTIMIZER.value in phases else None
    by_phase = {each: _Sums.none(len(everyone)) for each, name in enumerate(phases) if name in OF_LAYERS}
    optimizes, of_one_number = _Sums.none(len(everyone)), _Sums.none(len(everyone))
    step = optional_integers(work, "step")
    by_step = {each: _Sums.none(len(everyone)) for each in np.unique(step).tolist()}
    code, names = codes(work, "name")
    of_memory, attends = bound_by_memory(code, names), is_attention(code, names)
    evidence = WorkEvidence(work, place, stage_of, of_memory)
    for rows in comparable(work, of_stage[place]):
        first = rows[0]
        item = _Item.of(place[rows], kernels[rows], time[rows])
        every.add(item)
        by_step[int(step[first])].add(item)
        if int(phase[first]) in by_phase:
            by_phase[int(phase[first])].add(item)
        if phase[first] == optimizer:
            optimizes.add(item)
            if np.median(time[rows] / kernels[rows]) < _ONE_NUMBER_NS:
                of_one_number.add(item)
        if not sized[first]:
            without_sizes.add(item)
        if sized[first] or (blocks[rows] == blocks[first]).all():
            by_class[MEMORY_BOUND if of_memory[first] else ATTENTION if attends[first] else PRODUCTS].add(item)
            # A grid does not show how much there is in a block: experts get more tokens.
            if sized[first]:
                by_name[int(code[first])].add(item)
        if not sized[first]:
            evidence.add_grids(rows)
    others = _other_kernels(work, place, of_stage)
    some = _slow_in(optimizes) & (of_one_number.share >= LEAST_ITEMS)
    for sums in by_phase.values():
        some |= _slow_in(sums)
    alone = _one_kernel(by_name, every, names)
    sums_of = _SumsOf(every, by_class, without_sizes, by_step)
    table = _table(everyone, stage_of, of_stage, sums_of, some, evidence, others, alone)
    return table, _classes(everyone, stage_of, by_class)


def of_equal_gpus(work: pa.Table, models: Mapping[int, str | None]) -> pa.Table:
    """The same rows, with a stage for each model of GPU of each stage: ranks of different models are no peers.

    Args:
        models: rank → name of its GPU; None where it is not known.
    """
    order = sorted({name or "" for name in models.values()})
    if len(order) < 2:
        return work
    model = [order.index(models.get(rank) or "") for rank in work["rank"].to_pylist()]
    stage = (optional_integers(work, "stage") + 1) * len(order) + np.array(model, np.int64)
    field = work.schema.field("stage")
    return work.set_column(work.column_names.index("stage"), field.name, pa.array(stage).cast(field.type))


def of_all_gpus(table: pa.Table, models: Mapping[int, str | None]) -> pa.Table:
    """A table of :func:`speeds` of what ``of_equal_gpus`` gave, with the stages of before."""
    count = len({name or "" for name in models.values()})
    if count < 2:
        return table
    stage = optional_integers(table, "stage") // count - 1
    field = table.schema.field("stage")
    restored = pa.array(stage, mask=stage < 0).cast(field.type)
    return table.set_column(table.column_names.index("stage"), field.name, restored)


def _one_kernel(by_name: dict[int, _Sums], every: _Sums, names: Sequence[str]) -> dict[int, tuple[str, float, float]]:
    """The ranks of which one kernel is much slower, by their place: its name, its time and the usual one."""
    found: dict[int, tuple[str, float, float]] = {}
    for code, sums in by_name.items():
        more = sums.own - sums.usual
        slow = (sums.items > 0) & (sums.share >= LEAST_ITEMS) & (sums.ratio >= _ONE_KERNEL_SLOWER)
        for place in np.flatnonzero(slow & (more >= _ONE_KERNEL_PART * every.usual)).tolist():
            if place not in found or more[place] > found[place][1] - found[place][2]:
                found[place] = names[code], float(sums.own[place]), float(sums.usual[place])
    return found


def _kind_of_one(kernel: tuple[str, float, float], place: int, arithmetic: _Sums, memory: _Sums) -> _Sums | None:
    """Of a rank's kernel that is much slower, the sums of its kind, where the others of its kind are slower, too; None
    where it alone is. Where communication disturbs each rank at other times, few kernels stand out."""
    name, own, usual = kernel
    kind = memory if bound_by_memory(np.zeros(1, np.int64), [name])[0] else arithmetic
    rest = float(kind.usual[place]) - usual
    is_slower = rest > 0 and float(kind.own[place]) - own >= (1 + SLOWER_THAN_FEW) * rest
    return kind if is_slower and arithmetic.items[place] and memory.items[place] else None


def _classes(ranks: npt.NDArray[np.int64], stage: npt.NDArray[np.int64], by_class: dict[str, _Sums]) -> pa.Table:
    """The table ``class_speeds``."""
    rows = [
        {
            **{"rank": rank, "stage": None if stage[place] < 0 else int(stage[place]), "work_class": name},
            **{"items": int(sums.items[place]), "slower_items": float(sums.share[place])},
            "ratio": float(sums.ratio[place]),
            "more_ns": round(sums.own[place] - sums.usual[place]),
        }
        for place, rank in enumerate(ranks.tolist())
        for name, sums in by_class.items()
        if sums.items[place]
    ]
    return pa.Table.from_pylist(rows, CLASS_SPEEDS.schema)


def _slow_in(sums: _Sums) -> Bool:
    """Mark ranks that are slow in the items of a phase."""
    return np.asarray((sums.share >= LEAST_ITEMS) & (sums.ratio >= 1 + SLOWER_THAN_FEW))


def comparable(work: pa.Table, ranks_of_stage: Int64, by_all: bool = False) -> Iterator[Int64]:
    """The rows of each item that all ranks of its stage, two or more, ran equally often, one row each; of one whose
    sizes are known, of two ranks or more, however often they ran it.

    Args:
        by_all: of items with sizes, too, only those that all ranks ran equally often.
    """
    columns = [optional_integers(work, "stage"), optional_integers(work, "step"), sizes_of(work)[0]]
    columns += [codes(work, name)[0].astype(np.int64) for name in ("phase", "name")]
    columns.append(plain_codes(work, "operator"))
    rank, kernels = optional_integers(work, "rank"), optional_integers(work, "kernels")
    if not len(kernels):
        return
    _, item = number_groups(*columns)
    for rows in places_of_each(item):
        same = len(rows) == ranks_of_stage[rows[0]] and (kernels[rows] == kernels[rows[0]]).all()
        # Operators that differ in a number alone are several rows of a rank.
        same = same and len(set(rank[rows].tolist())) == len(rows)
        if len(rows) > 1 and (same or (columns[2][rows[0]] >= 0 and not by_all)):
            yield rows


_OF_HOST = ("phase", "operator", "input_sizes")


def _together_where_unmarked(work: pa.Table) -> pa.Table:
    """The same, of all steps together in stages of which a rank has no marks of steps."""
    stage, rank, step = (optional_integers(work, name) for name in ("stage", "rank", "step"))
    unmarked = np.isin(rank, rank[step != MISSING], invert=True)
    if not unmarked.any() or unmarked.all():
        return work
    step = np.where(np.isin(stage, stage[unmarked]), MISSING, step)
    steps = pa.array(step, mask=step == MISSING).cast(work.schema.field("step").type)
    work = work.set_column(work.column_names.index("step"), "step", steps)
    summed = {"kernels": "sum", "time_ns": "sum", "blocks": "sum", "most_blocks": "max", "elements": "max"}
    summed = {name: how for name, how in summed.items() if name in work.column_names}
    keys = [name for name in work.column_names if name not in summed]
    totals = work.group_by(keys).aggregate(list(summed.items())).rename_columns([*keys, *summed])
    return totals.select(work.column_names).cast(work.schema)


def _by_name_where_blind(work: pa.Table) -> pa.Table:
    """The same; where only some ranks of a stage have operators (a trace lacks rows of its host), names alone identify
    the stage's kernels."""
    if not {*_OF_HOST, "blocks", "most_blocks", "elements"} <= set(work.column_names):
        return work
    stage, rank = optional_integers(work, "stage"), optional_integers(work, "rank")
    seeing = plain_codes(work, "operator") >= 0
    some = np.isin(stage, stage[seeing]) & np.isin(stage, stage[~np.isin(rank, rank[seeing])])
    if not some.any():
        return work
    keys = [name for name in ("rank", "stage", "step", "name") if name in work.column_names]
    summed = {"kernels": "sum", "time_ns": "sum", "blocks": "sum", "most_blocks": "max", "elements": "max"}
    of_stage = work.filter(pa.array(some)).group_by(keys).aggregate(list(summed.items()))
    of_stage = of_stage.rename_columns([*keys, *summed])
    columns = [
        of_stage[field.name].cast(field.type)
        if field.name in of_stage.column_names
        else pa.nulls(len(of_stage), field.type)
        for field in work.schema
    ]
    return pa.concat_tables([work.filter(pa.array(~some)), pa.table(columns, schema=work.schema)]).unify_dictionaries()


def _optional(work: pa.Table, name: str) -> Int64:
    """A column of integers; zeros where the table has none."""
    return optional_integers(work, name) if name in work.column_names else np.zeros(work.num_rows, np.int64)


@dataclass(frozen=True, slots=True)
class _Others:
    """Kernels that a rank runs and no peer, or less often: instead of as many of its peers', or besides all of these.

    Attributes:
        own: their time. usual: that of the peers' in their place, or of the same names. kernel: name of the longest.
        extra: whether all are besides.
    """

    own: float
    usual: float
    kernel: str
    extra: bool


def _other_kernels(work: pa.Table, place: npt.NDArray[np.int64], of_stage: npt.NDArray[np.int64]) -> dict[int, _Others]:
    """The ranks that run such kernels, by their place."""
    stage, step, kernels, time = (optional_integers(work, name) for name in ("stage", "step", "kernels", "time_ns"))
    (phase, phases), (name, names) = codes(work, "phase"), codes(work, "name")
    runs: defaultdict[tuple[int, ...], dict[int, dict[int, tuple[int, int]]]] = defaultdict(dict)
    for row, who in enumerate(place.tolist()):
        ran = runs[int(stage[row]), int(step[row]), int(phase[row])].setdefault(who, {})
        count, taken = ran.get(int(name[row]), (0, 0))
        ran[int(name[row])] = count + int(kernels[row]), taken + int(time[row])
    found: defaultdict[int, list[tuple[int, int, str, bool]]] = defaultdict(list)
    for (_, _, code), of_phase in runs.items():
        sharded = code >= 0 and phases[code] == Phase.OPTIMIZER
        kernels_of_any = set[int]().union(*of_phase.values())
        lowest = {each: sorted(_count(ran, each) for ran in of_phase.values())[:2] for each in kernels_of_any}
        for who, ran in of_phase.items():
            peers = [other for place, other in of_phase.items() if place != who]
            if not peers or len(of_phase) != of_stage[who]:
                continue
            # Nobody's kernel may be lost; that of one name with other shapes may be what is run instead. Where peers
            # differ among each other, as with dynamic context parallelism, only fewer than on all of them are.
            fewer = {each for each, counts in lowest.items() if _count(ran, each) == counts[0] < counts[1]}
            if fewer:
                own = [each for each in ran if not any(_count(peer, each) for peer in peers)]
                mine, theirs = {*own, *fewer}, fewer
                alike = {_counted(peer, theirs) for peer in peers} == {_counted(ran, mine)}
            else:
                # What has no phase may be the optimizer's: then only what nobody else runs is surely besides.
                most = ran if code >= 0 else dict.fromkeys(ran, _ONE)
                own = [each for each in ran if all(_count(peer, each) < _count(most, each) for peer in peers)]
                mine = theirs = set(own)
                alike = True
            if own and alike and (fewer or not sharded):
                usual = lower_median(_taken(peer, theirs) for peer in peers)
                longest = max(own, key=lambda each: ran[each][1])
                found[who].append((_taken(ran, mine), usual, names[longest], not fewer))
    return {
        who: _Others(
            sum(own for own, *_ in parts),
            sum(usual for _, usual, *_ in parts),
            max(parts)[2],
            all(extra for *_, extra in parts),
        )
        for who, parts in found.items()
    }


def _counted(ran: dict[int, tuple[int, int]], names: Iterable[int]) -> int:
    return sum(_count(ran, name) for name in names)


def _taken(ran: dict[int, tuple[int, int]], names: Iterable[int]) -> int:
    return sum(ran.get(name, _NEVER)[1] for name in names)


_NEVER, _ONE = (0, 0), (1, 0)


def _count(ran: dict[int, tuple[int, int]], name: int) -> int:
    return ran.get(name, _NEVER)[0]


def _median_of_others(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """For each value the median of all the others."""
    order = np.argsort(values, kind="stable")
    ordered, position = values[order], np.empty(len(values), dtype=np.int64)
    position[order] = np.arange(len(values))
    others = len(values) - 1
    low, high = (others - 1) // 2, others // 2
    return np.asarray((ordered[low + (low >= position)] + ordered[high + (high >= position)]) / 2)


class _SumsOf(NamedTuple):
    """What is counted of all items, by class, of those without sizes, and by step."""

    every: _Sums
    by_class: dict[str, _Sums]
    without_sizes: _Sums
    by_step: dict[int, _Sums]


def _table(
    ranks: npt.NDArray[np.int64],
    stage: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
    sums_of: _SumsOf,
    in_a_phase: Bool,
    evidence: WorkEvidence,
    others: dict[int, _Others],
    alone: dict[int, tuple[str, float, float]],
) -> pa.Table:
    every, by_class, without_sizes, by_step = sums_of
    products, memory = by_class[PRODUCTS], by_class[MEMORY_BOUND]
    arithmetic = _Sums.together([products, by_class[ATTENTION]])
    least = 1 + np.where(size > _FEW_PEERS, SLOWER, SLOWER_THAN_FEW)
    more_work, work_by = evidence.more_work(np.where(every.items > 0, every.ratio, np.nan))
    # Items of one size are the same work; the others are not, where a rank has more to do.
    beyond = np.where(2 * without_sizes.own >= every.own, np.maximum(more_work, 1.0), 1.0)
    slow = (every.share >= LEAST_ITEMS) & (every.ratio >= least * beyond)
    # Who is slow for a part of the step is so in fewer, or in those of one phase alone; that its work is as much as its
    # peers' must then be known.
    equal = np.array([by is not None for by in work_by], dtype=bool) & (more_work < 1 + SLOWER)
    slow |= equal & (every.share >= _HALF) & (every.ratio >= 1 + SLOWER_THAN_FEW)
    slow |= equal & in_a_phase & (every.ratio >= 1 + _LEAST_PART)
    # One that is slow in some steps is found where all of them together show it, too: its work is known of all alone.
    of_step = {
        number: (in_step.share >= LEAST_ITEMS) & (np.minimum(in_step.ratio, every.ratio) >= least * beyond) & ~slow
        for number, in_step in by_step.items()
    }
    slow = np.logical_or.reduce([slow, *of_step.values()])
    of_memory = (memory.share >= LEAST_ITEMS) & (memory.ratio >= MEMORY_SLOWER) & (arithmetic.items > 0)
    of_memory &= (arithmetic.ratio < least) & (more_work < 1 + SLOWER)
    # Packed sequences make attention longer alone, so products have to be slower themselves.
    of_clock = (products.share >= LEAST_ITEMS) & (products.ratio >= 1 + SLOWER_THAN_FEW) & (memory.items > 0)
    of_clock &= (arithmetic.share >= LEAST_ITEMS) & (memory.ratio < least) & equal
    alone = {place: kernel for place, kernel in alone.items() if equal[place] and size[place] >= _FEW_PEERS}
    kinds = {place: _kind_of_one(kernel, place, arithmetic, memory) for place, kernel in alone.items()}
    for place, kind in kinds.items():
        of_clock[place] |= kind is arithmetic and memory.ratio[place] < least[place]
        of_memory[place] |= kind is memory and arithmetic.ratio[place] < least[place]
    # What is of one bound may be slow enough to make all together slow, though nothing else is.
    slow &= ~of_memory & ~of_clock
    rows = []
    for place, rank in enumerate(ranks.tolist()):
        known = bool(every.items[place])
        row: dict[str, object] = {
            "rank": rank,
            "stage": None if stage[place] < 0 else int(stage[place]),
            "peers": int(size[place]) - 1,
            "items": int(every.items[place]),
            "slower_items": float(every.share[place]) if known else None,
            "ratio": float(every.ratio[place]) if known else None,
            "more_ns": round(every.own[place] - every.usual[place]) if known else None,
            "work": float(more_work[place]) if work_by[place] is not None else None,
            "work_by": work_by[place],
            "slow": bool(slow[place]) if known else None,
        }
        other = others.get(place)
        chosen: tuple[str, float, float] | None = None
        if slow[place]:
            steps = [number for number, marked in of_step.items() if marked[place]]
            counted = [by_step[number] for number in steps] or [every]
            chosen = "all", sum(each.own[place] for each in counted), sum(each.usual[place] for each in counted)
            row["slow_steps"] = steps or None
        elif other is not None and other.extra and other.own - other.usual >= _EXTRA * every.usual[place] > 0:
            chosen = "extra", every.own[place] + other.own - other.usual, every.usual[place]
            row["kernel"] = other.kernel
        elif other is not None and not other.extra and other.own >= least[place] * max(other.usual, 1.0):
            chosen = "algorithm", other.own, other.usual
            row["kernel"] = other.kernel
        elif of_memory[place]:
            chosen = "memory", memory.own[place], memory.usual[place]
        elif of_clock[place]:
            chosen = "arithmetic", arithmetic.own[place], arithmetic.usual[place]
        elif place in alone and kinds[place] is None:
            row["kernel"], own, usual = alone[place]
            chosen = "kernel", own, usual
        if chosen is not None:
            what, own, usual = chosen
            row |= {"slow_in": what, "slow_ratio": float(own / max(usual, 1.0)), "slow_more_ns": round(own - usual)}
        rows.append(row)
    names = [column.name for column in RANK_SPEEDS.columns]
    table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows], schema=RANK_SPEEDS.schema)
    return table.sort_by([("ratio", "descending"), ("rank", "ascending")])
