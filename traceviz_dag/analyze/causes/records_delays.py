"""Delay costs of a job's recorded operations, over all its steps: see ``delay_costs``.

Members of a join arrive once all that they waited for has ended. The graph has no nodes for that, so that they are put
between here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traceviz_dag.analyze.causes.delay_costs import (
    DELAYS,
    Delay,
    DelayCosts,
    Replayed,
    charged,
    costs_table,
    parents,
    stations_of,
)
from traceviz_dag.analyze.causes.gains import MOST_RANKS
from traceviz_dag.analyze.causes.graph import graph_of
from traceviz_dag.analyze.causes.records_edits import SERVES, RecordsWhatIf
from traceviz_dag.analyze.causes.records_waits import with_inferred_waits
from traceviz_dag.analyze.causes.records_work import RecordsWork
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.records.pipeline_records import OPERATIONS, Operation

_KINDS = {Operation.GARBAGE_COLLECTION: Delay.HOST, **dict.fromkeys(SERVES, Delay.COMMUNICATION)}
"""What a rank does with its operations; the others compute."""


def records_costs(work: RecordsWork) -> tuple[list[dict[str, Any]], list[int]]:
    """What the waits of all steps cost, by rank and cause.

    Returns:
        Rows, the dearest first: ``rank``, ``data_parallel_rank``, ``stage``, ``cause``, ``cost_ns`` with its parts,
        ``cost_share``, and for the first ``MOST_RANKS`` ranks ``gain_ns``, what fixing the rank saves (``fix_rank``);
        and how long each step takes.

    Raises:
        NoEvidenceError: only one rank was recorded.
    """
    costs = records_delays(with_inferred_waits(work, barriers=False))
    places = work.places()
    rows = (
        costs_table(costs, [*places], [stage for _, stage in places.values()], MISSING).drop_columns("step").to_pylist()
    )
    rows.sort(key=lambda row: (-row["cost_ns"], row["rank"], row["cause"]))
    what_if = RecordsWhatIf(with_inferred_waits(work))
    chosen = list(dict.fromkeys(row["rank"] for row in rows))[:MOST_RANKS]
    told = what_if.predict([(), *([what_if.fix_rank(rank)] for rank in chosen)])
    gains = {rank: sum(step["gain_ns"] for step in steps) for rank, steps in zip(chosen, told[1:], strict=True)}
    total = sum(row["cost_ns"] for row in rows)
    for row in rows:
        row["data_parallel_rank"], row["gain_ns"] = places[row["rank"]][0], gains.get(row["rank"])
        row["cost_share"] = row["cost_ns"] / total
    return rows, [step["step_ns"] for step in told[0]]


def records_delays(work: RecordsWork) -> DelayCosts:
    """Charge the waits in joins of all steps; places are those of the ascending ranks.

    Args:
        work: in which no rank waits for another but in a join.

    What passes before an operation without being known is ``Delay.UNEXPLAINED``; so are waits that no join shows.
    """
    count, nodes = len(work), work.graph.nodes
    member = np.flatnonzero(work.join >= 0)
    arrival = np.full(count, -1, np.int64)
    arrival[member] = nodes + np.arange(len(member))
    joins = count + int(work.join.max(initial=-1)) + 1
    to_join = (work.waiting >= count) & (work.waiting < joins)
    waiting = np.concatenate([np.where(to_join, arrival[work.waits], work.waiting), count + work.join[member]])
    waited_for = np.concatenate([work.waited_for, arrival[member]])
    lags = np.concatenate([work.lag_ns, np.zeros(len(member), np.int64)])
    graph = graph_of(nodes + len(member), waiting, waited_for)
    durations = np.zeros(graph.nodes, np.int64)
    durations[:count] = work.own_ns
    ends = graph.ends(durations, lags)
    binding = graph.binding(ends, lags)
    parent = parents(waited_for, binding)
    pieces = np.zeros((graph.nodes, len(DELAYS)), np.int64)
    kind = np.array([DELAYS.index(_KINDS.get(each, Delay.COMPUTATION)) for each in OPERATIONS])[work.operation]
    pieces[np.arange(count), kind] = work.own_ns
    pieces[:, DELAYS.index(Delay.UNEXPLAINED)] += ends - durations - ends[parent]
    ranks, place = np.unique(work.rank, return_inverse=True)
    whose = np.full(graph.nodes, -1, np.int64)
    whose[:count], whose[arrival[member]] = place, place[member]
    return charged(
        stations_of(
            Replayed(graph.level, ends, waited_for, binding, parent),
            lambda some: whose[some],
            member,
            arrival[member],
            work.join[member, None],
            pieces,
            count,
        ),
        len(ranks),
    )
