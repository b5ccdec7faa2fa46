"""Delay costs: waits are charged to their first cause, and add up exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.causes.small_steps import small_steps
from traceviz_dag.analyze.causes.delay_costs import DELAYS, Delay, delay_costs, delay_costs_table
from traceviz_dag.analyze.causes.kernel_edges import KernelEdges
from traceviz_dag.analyze.causes.rank_kernels import PHASES, RankKernels
from traceviz_dag.analyze.causes.rank_work import HostWaits, rank_work
from traceviz_dag.analyze.causes.step_work import Members, StepWork, step_work
from traceviz_dag.read.events import MISSING

NOTHING = np.empty(0, np.int64)
TRANSFER = 3


def chain(before: Sequence[int], after: Sequence[int], hosts: Sequence[int] = (), lacks: bool = False) -> StepWork:
    """Ranks of which each computes, receives from the next one, computes, and sends to the one before.

    Args:
        before, after: how long each rank computes. hosts: how late each launches its first kernel.
        lacks: whether the first message lacks a member.
    """
    ranks = len(before)
    late = hosts or [0] * ranks
    works, rows, arrived = [], [], {}
    for place in reversed(range(ranks)):
        now, kernels = late[place], []
        kernels.append((now, now + before[place], False))
        now += before[place]
        if place + 1 < ranks:
            sent = arrived[place + 1]
            kernels.append((now, max(now, sent) + TRANSFER, True))
            rows.append((place, 1, place))
            now = kernels[-1][1]
        kernels.append((now, now + after[place], False))
        now += after[place]
        if place:
            arrived[place] = now
            kernels.append([now, None, True])
            rows.append((place, len(kernels) - 1, place - 1))
        works.append(kernels)
    works.reverse()
    for place in range(1, ranks):
        works[place][-1][1] = works[place - 1][1][1]
    members = Members(*np.array(rows, np.int64).reshape(-1, 3).T)
    if lacks:
        members = Members(members.rank, members.kernel, members.meeting, np.arange(ranks - 1) == ranks - 2)
    return step_work(range(ranks), [of_rank(place, each) for place, each in enumerate(works)], members)


def of_rank(place: int, kernels: Sequence[Sequence[int]]):
    start, end, communicates = (np.array(column) for column in zip(*kernels, strict=True))
    count, zero, none = len(start), np.zeros(len(start), np.int64), np.full(len(start), MISSING)
    no = np.zeros(count, dtype=bool)
    launch = np.where(np.arange(count) == 0, start, MISSING)
    table = RankKernels(
        np.arange(count), start, end, zero, zero, launch, launch, zero, communicates, ~communicates,
        np.where(communicates, 0, -1), np.full(count, -1), zero + PHASES.index("forward"), zero, zero, none, zero,
        np.full(count, -1), zero, no, zero, zero, no, none, none, no, no, 0,
        ("pp",), (),
    )  # fmt: skip
    edges = KernelEdges(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    waits = HostWaits(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    return rank_work(table, edges, np.flatnonzero(communicates), waits, (0, int(end.max())))


def costs_of(step: StepWork) -> dict[tuple[int | None, str], tuple[int, int]]:
    rows = delay_costs_table(step, step.times(), [0] * len(step.ranks), MISSING).to_pylist()
    return {(row["rank"], row["cause"]): (row["direct_ns"], row["passed_on_ns"]) for row in rows}


def test_where_stage_2_delays_1_which_delays_0_all_of_it_lands_on_2():
    step = chain([50, 50, 90], [10, 0, 0])
    # Rank 1 waits 40 for rank 2, and rank 0, which computes as long as rank 1, waits 40 and the transfer for rank 1.
    assert costs_of(step) == {(2, "computation"): (40, 40), (1, "communication"): (TRANSFER, 0)}
    assert delay_costs(step, step.times()).waited_ns.tolist() == [40 + TRANSFER, 40, 0]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(0, 100), st.integers(1, 1_000))
def test_along_a_chain_of_any_length_the_last_is_charged_for_all_who_wait(ranks, work, excess):
    step = chain([work] * (ranks - 1) + [work + excess], [0] * ranks)
    found = costs_of(step)
    assert found.pop((ranks - 1, "computation")) == (excess, (ranks - 2) * excess)
    assert set(found) <= {(rank, "communication") for rank in range(1, ranks - 1)}
    transfers = sum(range(1, ranks - 1)) * TRANSFER
    assert sum(map(sum, found.values())) == transfers


def test_a_wait_is_shared_over_what_took_longer_in_proportion_and_by_kind():
    # Rank 1 arrives 60 late: its host launches 20 late, and it computes 40 longer.
    assert costs_of(chain([10, 50], [0, 0], hosts=[0, 20])) == {(1, "computation"): (40, 0), (1, "host"): (20, 0)}
    # Rank 0 waits 33 for rank 1, which computed 10 less, waited 40 longer, and took a transfer of 3.
    assert costs_of(chain([50, 30, 70], [0, 10, 0])) == {(2, "computation"): (40, 31), (1, "communication"): (2, 0)}


def test_who_was_waited_for_in_a_message_that_lacks_members_is_nobody_known():
    step = chain([50, 50, 90], [10, 0, 0], lacks=True)
    assert costs_of(step) == {(None, "unknown"): (0, 40), (1, "communication"): (TRANSFER, 0)}
    assert delay_costs(step, step.times()).waited_ns.tolist() == [40 + TRANSFER, 0, 0]


def waits_one_by_one(step: StepWork) -> list[int]:
    """How long each rank waits, kernel by kernel."""
    ends = step.replay(step.times())
    members, result = step.members, [0] * len(step.ranks)
    arrival = {}
    for rank, kernel in zip(members.rank.tolist(), members.kernel.tolist(), strict=True):
        work = step.works[rank]
        at = int(np.searchsorted(work.joined, kernel))
        arrival[rank, kernel] = int(ends[step.base[rank] + work.arrivals + at])
    ready: dict[int, int] = {}
    keys = list(zip(members.rank.tolist(), members.kernel.tolist(), strict=True))
    for key, meeting in zip(keys, members.meeting.tolist(), strict=True):
        ready[meeting] = max(ready.get(meeting, arrival[key]), arrival[key])
    latest: dict[tuple[int, int], int] = {}
    for key, meeting in zip(keys, members.meeting.tolist(), strict=True):
        latest[key] = max(latest.get(key, ready[meeting]), ready[meeting])
    for key, time in latest.items():
        result[key[0]] += time - arrival[key]
    return result


@settings(max_examples=200, deadline=None)
@given(small_steps())
def test_costs_add_up_to_the_waits_of_any_step(step):
    costs = delay_costs(step, step.times())
    assert costs.waited_ns.tolist() == waits_one_by_one(step)
    assert (costs.direct_ns + costs.passed_on_ns).sum() == costs.waited_ns.sum()
    assert (costs.direct_ns >= 0).all() and (costs.passed_on_ns >= 0).all()
    assert not costs.direct_ns[:, DELAYS.index(Delay.UNKNOWN)].any()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.data())
def test_costs_add_up_along_chains_of_uneven_ranks(ranks, data):
    lengths = st.lists(st.integers(0, 50), min_size=ranks, max_size=ranks)
    step = chain(data.draw(lengths), data.draw(lengths), data.draw(lengths))
    costs = delay_costs(step, step.times())
    assert (costs.direct_ns + costs.passed_on_ns).sum() == costs.waited_ns.sum() == sum(waits_one_by_one(step))
