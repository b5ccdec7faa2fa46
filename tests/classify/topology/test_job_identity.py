"""Which ranks of an iteration are of another job, and which only look a little different."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from traceviz_dag.classify.topology.job_identity import APART_NS, TraceIdentity, ranks_of_other_jobs
from traceviz_dag.read.events import ProcessGroup, TraceHeader

NOW_NS = 1_790_000_000_000_000_000


def _rank(rank: int, groups: tuple[tuple[int, ...], ...] = (), first_ns: int | None = NOW_NS, **facts: Any):
    mine = tuple(
        ProcessGroup(str(number), "PIPELINE_MODEL_PARALLEL_GROUP", members, len(members))
        for number, members in enumerate(groups)
        if rank in members
    )
    stated = {"world_size": 4, "backend": "nccl", "device_name": "H100", "nccl_version": "2.27.5", **facts}
    return TraceIdentity(TraceHeader(rank=rank, process_groups=mine, **stated), first_ns)


def _job(ranks: range = range(4), **changes: Any) -> dict[int, TraceIdentity]:
    return {rank: _rank(rank, ((0, 2), (1, 3)), **changes) for rank in ranks}


@pytest.mark.parametrize(
    ("foreign", "said"),
    [
        (_rank(3, ((0, 2), (1, 3)), world_size=8), "its world size is 8, that of rank 0 is 4"),
        (_rank(3, ((0, 2), (1, 3)), backend="gloo"), "its backend is gloo, that of rank 0 is nccl"),
        (_rank(3, ((0, 2), (1, 3)), nccl_version="2.20.5"), "its NCCL version is 2.20.5"),
        (_rank(3, ((0, 1, 2, 3),)), "its PIPELINE_MODEL_PARALLEL_GROUP is [0, 1, 2, 3], rank 1 has [1, 3]"),
        (_rank(3, ((0, 2), (1, 3)), first_ns=NOW_NS + 2 * APART_NS), "recorded 30 hours after rank 0"),
        (_rank(3, device_name="V100", nccl_version=None), "it has V100, no process groups and no NCCL version stated"),
    ],
)
def test_one_rank_of_another_job_is_known_from_what_its_header_states(foreign, said):
    found = ranks_of_other_jobs(_job() | {3: foreign})
    assert list(found) == [3] and said in found[3]


def test_of_two_halves_neither_is_preferred_and_of_three_jobs_the_largest_stays():
    halves = _job(range(2)) | {rank: _rank(rank, world_size=8) for rank in (2, 3)}
    assert list(ranks_of_other_jobs(halves)) == [0, 1, 2, 3]
    three = {rank: _rank(rank, world_size=(16, 16, 16, 8, 8, 4, 4)[rank]) for rank in range(7)}
    assert list(ranks_of_other_jobs(three)) == [3, 4, 5, 6]


@pytest.mark.parametrize(
    "change",
    [
        {"device_name": "H100 NVL"},
        {"device_name": None},
        {"nccl_version": None},
        {"world_size": None, "backend": None, "nccl_version": None, "device_name": None},
        {"first_ns": None},
        {"first_ns": NOW_NS + 12 * 3600 * 10**9},
        {"groups": ()},
        {"groups": (), "nccl_version": None},
    ],
)
def test_what_a_job_may_mix_is_no_other_job(change):
    one = _rank(3, **({"groups": ((0, 2), (1, 3))} | change))
    assert ranks_of_other_jobs(_job() | {3: one}) == {}


def test_a_header_whose_groups_are_all_of_other_kinds_denies_nothing():
    other = ProcessGroup("9", "DATA_PARALLEL_GROUP", (1, 3), 2)
    lists_less = _rank(3)
    lists_less = replace(lists_less, header=replace(lists_less.header, process_groups=(other,)))
    assert ranks_of_other_jobs(_job() | {3: lists_less}) == {}


def test_a_thousand_ranks_are_distinguished_in_time_that_grows_with_their_groups():
    world = 1024
    everybody = tuple(range(world))
    pairs = tuple((rank, rank + world // 2) for rank in range(world // 2))
    ranks = {rank: _rank(rank, (everybody, pairs[rank % (world // 2)]), world_size=world) for rank in range(world)}
    ranks[7] = _rank(7, (tuple(range(8)),), world_size=world)
    assert list(ranks_of_other_jobs(ranks)) == [7]
