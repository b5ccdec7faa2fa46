"""Sends and roots that NCCL buffers: they wait for nobody, and clocks, waits and gains do not take them to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.analyze.across_ranks import TINY, match_rows, part, simulated, topology, truth_kernels
from tests.sets import fast
from traceviz_dag.analyze.clocks.clocks import solve_clocks, solved_clocks
from traceviz_dag.analyze.waits.buffered_sends import buffered_sends
from traceviz_dag.analyze.waits.collectives import collectives_table
from traceviz_dag.analyze.waits.nodes import nodes_of_host_clocks
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.read.events import MISSING
from traceviz_dag.simulate import JobSettings
from traceviz_dag.simulate.files.identity import Clock
from traceviz_dag.simulate.settings import Faults

MS = 1_000_000
SLOW = Faults(slow_stage=2, slow_stage_factor=2.0)
TOGETHER = JobSettings(
    tp=2, pp=4, microbatches=8, node_size=2, clock_skew_ms=5.0, host_clocks=True, seed=5, faults=SLOW, **TINY
)
BUFFERED = replace(TOGETHER, buffered_sends=True)


def test_buffered_sends_of_a_pipeline_over_nodes_wait_for_nobody_and_their_clocks_are_solved():
    iteration, truth = simulated(BUFFERED)
    offsets = {row["rank"]: row["offset_ns"] for row in iteration.table("rank_clocks").to_pylist()}
    true = {rank: Clock.of(BUFFERED, rank).offset_ns for rank in offsets}
    assert all(abs(offsets[rank] - (true[rank] - true[0])) < 10_000 for rank in offsets)
    messages = iteration.table("messages").to_pylist()
    ahead = {(row["sender_rank"], row["sender_kernel_id"]) for row in messages if row["buffered"]}
    assert ahead
    kernels = iteration.table("collectives").to_pandas().set_index(["rank", "kernel_id"])
    by_themselves = kernels[kernels["ahead"].fillna(False).astype(bool)]
    assert "send_recv" in set(by_themselves["operation"]) <= {"send_recv", "broadcast"}
    assert (by_themselves["wait_aligned_ns"] == 0).all()
    known = truth_kernels(truth).set_index(["rank", "correlation"])["wait_ns"]
    for rank, rows in by_themselves.groupby("rank"):
        table = iteration.kernels(rank, ("kernel_id", "correlation")).to_pandas().set_index("kernel_id")
        ranks_kernels = rows.index.get_level_values("kernel_id")
        assert (known.loc[[(rank, one) for one in table.loc[ranks_kernels, "correlation"]]] == 0).all()


@pytest.mark.long
def test_where_both_ends_wait_nothing_is_taken_for_buffered():
    iteration, _ = simulated(TOGETHER)
    assert not any(row["buffered"] for row in iteration.table("messages").to_pylist())
    assert not any(row["ahead"] for row in iteration.table("collectives").to_pylist())


def _slow_links(iteration: StoredIteration) -> set[int | None]:
    """Whose links are slow, alone or as the one of a group that is known."""
    of_ranks = {row["rank"] for row in iteration.table("links").to_pylist() if row["slow"] is not False}
    return of_ranks | {row["rank"] for row in iteration.table("link_groups").to_pylist()}


@pytest.mark.long
@pytest.mark.parametrize("rank", fast((0, 2), 2))
def test_a_slow_link_is_that_of_its_rank_alone_though_sends_end_before_they_have_passed(rank):
    job = JobSettings(pp=3, dp=2, node_size=2, layers=3, microbatches=4, iterations=1, seed=302, buffered_sends=True)
    iteration, _ = simulated(replace(job, faults=Faults(slow_link=rank)))
    assert _slow_links(iteration) == {rank}
    assert not _slow_links(simulated(job)[0])


@pytest.mark.long
@pytest.mark.parametrize("seed", [311, 322])
def test_nobody_is_at_fault_where_sequences_vary(seed):
    settings = JobSettings(
        pp=2, dp=4, layers=4, microbatches=4, iterations=1, seed=seed, faults=Faults(varying_sequences=0.5)
    )
    iteration, _ = simulated(settings)
    told = iteration.table("findings").to_pylist()
    assert told and not [row["statement"] for row in told if row["class"] == "fault" and row["severity"] == "finding"]


def test_ranks_of_one_host_share_its_clock_though_their_communications_end_apart():
    rows = [
        part(rank, 10 * MS * turn, 10 * MS * turn + 5 * MS + rank * (turn % 5) * MS)
        for turn in range(20)
        for rank in (0, 1)
    ]
    matches = match_rows(rows, topology(world=2))
    refused = solve_clocks(matches, (0, 1)).to_pylist()
    assert all("scatter" in row["refusal"] for row in refused)
    (zero, one) = solve_clocks(matches, (0, 1), {0: 0, 1: 0}).to_pylist()
    assert zero["refusal"] is one["refusal"] is None
    assert abs(one["offset_ns"]) < 50_000
    # Ends that agree say more than a host, whose GPUs may be some us apart.
    turns = [(10 * MS * turn, rank) for turn in range(20) for rank in (0, 1)]
    agreeing = [part(rank, begin, begin + 5 * MS + 8_000 * rank) for begin, rank in turns]
    clocks = solve_clocks(match_rows(agreeing, topology(world=2)), (0, 1), {0: 0, 1: 0}).to_pylist()
    assert clocks[1]["offset_ns"] == pytest.approx(8_000, abs=200)


def test_hosts_are_told_apart_by_when_they_started():
    start = 1_790_000_000_000_000_000
    clocks = {0: start, 1: start + 700, 2: start + 5 * MS, 3: start + 5 * MS - 900, 4: start - 3 * MS}
    assert nodes_of_host_clocks(clocks) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
    assert nodes_of_host_clocks({**clocks, 5: None}) == {}


def test_the_root_of_a_broadcast_waits_for_nobody_and_the_others_for_the_last():
    synchronised = [
        part(rank, 100 * MS + 10 * MS * turn, 104 * MS + 10 * MS * turn) for turn in range(10) for rank in range(3)
    ]
    sent = [
        part(2, 0, 8_000, collective="broadcast", group_name="9"),
        part(1, 2 * MS, 30 * MS + 50_000, collective="broadcast", group_name="9"),
        part(0, 30 * MS, 30 * MS + 60_000, collective="broadcast", group_name="9"),
    ]
    groups = topology(world=3)
    matches = match_rows([*sent, *synchronised], groups)
    clocks = solve_clocks(matches, (0, 1, 2))
    table = collectives_table(matches, clocks).to_pylist()
    rows = {row["rank"]: row for row in table if row["operation"] == "broadcast"}
    assert {rank: (row["ahead"], row["wait_aligned_ns"]) for rank, row in rows.items()} == {
        0: (False, 0),
        1: (False, 28 * MS),
        2: (True, 0),
    }
    assert {row["aligned_refusal"] for row in rows.values()} == {None}


def test_one_send_that_ends_before_its_receive_begins_shows_how_all_of_its_way_go():
    rows = [part(rank, 500 * MS + 10 * MS * turn, 504 * MS + 10 * MS * turn) for turn in range(10) for rank in (0, 1)]
    late = {3}
    for turn in range(6):
        begin = 20 * MS * turn
        arrives = begin + (9 * MS if turn in late else -2 * MS)
        peers = {"source_rank": 0, "destination_rank": 1, "dimension": "pp", "group_name": "p"}
        rows.append(part(0, begin, begin + 130_000, collective="send", **peers))
        rows.append(part(1, arrives, max(begin, arrives) + MS, collective="recv", **peers))
    matches = match_rows(rows, topology(world=2))
    clocks = solve_clocks(matches, (0, 1))
    assert len(matches.messages.sender) == 6
    assert buffered_sends(matches, solved_clocks(clocks)).tolist() == [1] * 6
    unsolved = solved_clocks(clocks.slice(0, 0))
    assert (buffered_sends(matches, unsolved) == MISSING).all()
    table = {(row["rank"], row["arrival_ns"]): row for row in collectives_table(matches, clocks).to_pylist()}
    messages = [row for row in table.values() if row["operation"] in ("send", "recv")]
    assert all(row["wait_aligned_ns"] == 0 and row["ahead"] for row in messages if row["operation"] == "send")
    received = sorted((row["arrival_ns"], row["wait_aligned_ns"]) for row in messages if row["operation"] == "recv")
    assert [wait for _, wait in received] == [2 * MS, 2 * MS, 2 * MS, 0, 2 * MS, 2 * MS]
    # What went over the link is what the receiver took, not the copy into a buffer.
    assert np.unique([row["last_transfer_ns"] for row in messages]).tolist() == [MS]
