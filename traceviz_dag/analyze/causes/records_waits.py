"""Waits that records do not name, inferred from when operations start.

A class of waits is taken to be there if in at least 99.5 % of its instances no operation started before what it is said
to have waited for had ended:

- a kind of message at one stage waits for the computation that began before it on its rank (an exchange that sends a
  gradient and receives an activation starts after the backward step, not after the forward step before that);
- operations of one kind and rank, which no communication ties to others, wait for all data-parallel ranks of a stage,
  if that also explains most of the time that usually passes before them.

The measures of Lin et al. know no such waits. The critical path and edits do: a wait would otherwise count as time that
passes by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from traceviz_dag.analyze.causes.graph import graph_of
from traceviz_dag.analyze.causes.inferred_waits import HOLDS_IN, SLACK_NS
from traceviz_dag.analyze.causes.records_path import replayed_ends
from traceviz_dag.analyze.causes.records_work import MESSAGES, Edges, RecordsWork
from traceviz_dag.arrays import Bool, Int64, number_groups, places_of_each
from traceviz_dag.read.records.pipeline_records import OPERATIONS, Operation

_WORTH_NS = 1_000_000
"""A time that usually passes before an operation is worth explaining from here on."""


def with_inferred_waits(work: RecordsWork, barriers: bool = True) -> RecordsWork:
    """The work with the waits that hold; its lags are what these leave unexplained.

    Args:
        barriers: with those for all ranks of a stage; without them no rank waits for another but in a join.
    """
    ends = replayed_ends(work, work.own_ns)
    waiting, waited_for, waits = [work.waiting], [work.waited_for], [work.waits]
    for later, earlier in _exchanges(work, ends):
        join = work.join[later]
        waiting.append(np.where(join >= 0, len(work) + join, later))
        waited_for.append(earlier)
        waits.append(later)
    opened, nodes = [ends], work.graph.nodes
    for operations, steps, sources, source_steps in _barriers(work, ends) if barriers else ():
        ready = np.full(int(source_steps.max()) + 1, np.iinfo(np.int64).min)
        np.maximum.at(ready, source_steps, ends[sources])
        opened.append(ready)
        waiting += [nodes + source_steps, operations]
        waited_for += [sources, nodes + steps]
        waits += [sources, operations]
        nodes += len(ready)
    edges = [np.concatenate(each) for each in (waiting, waited_for, waits)]
    return replace(
        work,
        graph=graph_of(nodes, edges[0], edges[1]),
        waiting=edges[0],
        waited_for=edges[1],
        waits=edges[2],
        lag_ns=_lags(work, edges, np.concatenate(opened)),
    )


def _lags(work: RecordsWork, edges: list[Int64], ends: Int64) -> Int64:
    """Per edge, from the end of the latest that its operation waited for to its start; 0 at the edges of joins."""
    waiting, waited_for, waits = edges
    own = waiting == np.where(work.join[waits] >= 0, len(work) + work.join[waits], waits)
    arrival = np.full(len(work), np.iinfo(np.int64).min)
    np.maximum.at(arrival, waits[own], ends[waited_for[own]])
    return np.where(own, work.start_ns[waits] - arrival[waits], 0)


def _exchanges(work: RecordsWork, ends: Int64) -> Iterator[Edges]:
    """Messages, and the computation that began before each on its rank."""
    computation = _is(work, Operation.FORWARD, Operation.BACKWARD)
    place = np.maximum.accumulate(np.where(computation, np.arange(len(work)), -1))
    queue = number_groups(work.step, work.data_parallel_rank, work.stage)[1]
    message = np.flatnonzero(_is(work, *MESSAGES) & (place >= 0))
    message = message[queue[place[message]] == queue[message]]
    _, kind = number_groups(work.operation[message], work.stage[message])
    for number in range(int(kind.max(initial=-1)) + 1):
        later = message[kind == number]
        earlier = place[later]
        if _holds(work, work.start_ns[later], ends[earlier]):
            yield later, earlier


def _barriers(work: RecordsWork, ends: Int64) -> Iterator[tuple[Int64, Int64, Int64, Int64]]:
    """Operations that wait for a stage, their steps; what that stage's ranks did before, and the steps of that."""
    direct = np.flatnonzero((work.waited_for < len(work)) & (work.waiting < len(work)))
    direct = direct[np.argsort(ends[work.waited_for[direct]], kind="stable")]
    last = np.full(len(work), -1)
    last[work.waiting[direct]] = work.waited_for[direct]
    alone = np.flatnonzero((work.join < 0) & (work.microbatch < 0) & (last >= 0))
    alone = alone[work.join[last[alone]] < 0]
    step = number_groups(work.step)[1]
    for kind in np.unique(work.operation[alone]).tolist():
        mine = alone[work.operation[alone] == kind]
        of_stage = {stage: mine[work.stage[mine] == stage] for stage in np.unique(work.stage[mine]).tolist()}
        ready = {}
        for stage, sources in of_stage.items():
            ready[stage] = np.full(int(step.max()) + 1, np.iinfo(np.int64).min)
            np.maximum.at(ready[stage], step[sources], ends[last[sources]])
        waiting: dict[int, list[Int64]] = defaultdict(list)
        for operations in (mine[places] for places in places_of_each(work.rank[mine])):
            found = _explained(work, operations, {stage: each[step[operations]] for stage, each in ready.items()}, last)
            if found is not None:
                waiting[found].append(operations)
        for stage, parts in waiting.items():
            operations = np.concatenate(parts)
            yield operations, step[operations], last[of_stage[stage]], step[of_stage[stage]]


def _explained(work: RecordsWork, operations: Int64, ready: Mapping[int, Int64], last: Int64) -> int | None:
    """The stage that some operations of a rank wait for; None where none explains most of what passes before them."""
    start = work.start_ns[operations]
    unexplained = float(np.median(start - (work.start_ns + work.own_ns)[last[operations]]))
    best, stage = unexplained / 2, None
    for number, ends in ready.items():
        left = float(np.median(start - ends))
        if unexplained > _WORTH_NS and left < best and _holds(work, start, ends):
            best, stage = left, number
    return stage


def _holds(work: RecordsWork, start: Int64, ends: Int64) -> bool:
    """Whether a class of waits holds, to within twice what waits that are certain seem to be cut short by."""
    certain = work.lag_ns[(work.waited_for < len(work)) & (work.waiting < len(work))]
    off = max(SLACK_NS, -2 * float(np.quantile(certain, 1 - HOLDS_IN))) if len(certain) else SLACK_NS
    return bool((start >= ends - off).mean() >= HOLDS_IN)


def _is(work: RecordsWork, *kinds: Operation) -> Bool:
    return np.isin(work.operation, [OPERATIONS.index(kind) for kind in kinds])
