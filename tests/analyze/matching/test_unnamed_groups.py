"""Collectives of groups that no trace names, known by the group's size and its address in a process."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

from tests.analyze.across_ranks import analysed_all, match_rows, part, topology
from traceviz_dag.analyze.clocks.clocks import solve_clocks
from traceviz_dag.analyze.matching.collective_matching import FAULTS, MATCHED_BY
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.collectives import collectives_table
from traceviz_dag.analyze.waits.unknown_waits import UnknownWaits, unknown_waits

KERNEL = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
US = 1_000


def row(rank: int, start: int, end: int, address: int | None = 5, size: int = 2, **more: object) -> dict:
    facts = {"group_size": size, "group_address": address, "name": KERNEL, "in_elements": 1_000_000}
    return part(rank, start * US, end * US, None, launch_start_ns=start * US, **{**facts, **more})


def numbers(matches: Matches) -> list[int]:
    return matches.communication.tolist()


def rules(matches: Matches) -> set[str]:
    return {MATCHED_BY[code].value for code in matches.matched_by}


def test_a_group_as_large_as_the_world_is_matched_by_order_whatever_it_serves():
    rows = [row(rank, 1000 * k + 10 * rank, 1000 * k + 500) for rank in (0, 1) for k in range(3)]
    matches = match_rows(rows, topology(world=2))
    assert rules(matches) == {"order"} and numbers(matches) == [0, 1, 2] * 2
    table = collectives_table(matches, solve_clocks(matches)).to_pandas()
    assert table.members.tolist() == [2] * 6
    assert table.wait_aligned_ns.tolist() == [10 * US] * 3 + [0] * 3
    assert table.bytes.tolist() == [2_000_000] * 6, "the kernel's name says that f16 is summed"


def test_groups_of_one_size_are_distinguished_by_address_and_paired_by_first_use():
    one = [row(0, 0, 90, 7), row(0, 200, 290, 3), row(0, 400, 490, 7)]
    other = [row(1, 0, 90, 2), row(1, 200, 290, 9), row(1, 400, 490, 2)]
    matches = match_rows([*one, *other], topology(world=2))
    assert numbers(matches)[:3] == numbers(matches)[3:] and len({*numbers(matches)}) == 3
    assert len(matches.grouped.groups) == 2


@pytest.mark.parametrize("other", [{"name": KERNEL.replace("f16", "f32")}, {"in_elements": 999}])
def test_lists_that_differ_in_name_or_size_are_left_unmatched(other):
    rows = [row(rank, 100 * k, 100 * k + 50) for rank in (0, 1) for k in range(2)]
    matches = match_rows([*rows[:3], rows[3] | other], topology(world=2))
    assert "order_differs" in {FAULTS[code].value for code in matches.fault}
    assert (matches.found < 2).all()


def test_ends_that_do_not_agree_have_no_wait():
    ends = {0: [500, 1500, 2500, 3500, 4500], 1: [500, 1500, 2500, 3500, 4600]}
    rows = [row(rank, end - 400, end) for rank in ends for end in ends[rank]]
    table = collectives_table(matches := match_rows(rows, topology(world=2)), solve_clocks(matches)).to_pandas()
    assert table.aligned_refusal.isna().tolist() == [True] * 4 + [False] + [True] * 4 + [False]
    assert set(table.aligned_refusal.dropna()) == {"order_alone"}


def test_a_smaller_group_without_a_name_has_unknown_members():
    matches = match_rows([row(rank, 0, 50, size=2) for rank in (0, 1)], topology(world=4))
    assert {FAULTS[code].value for code in matches.fault} == {"no_group"}


def unknown(rows: list[dict], world: int = 3) -> UnknownWaits | None:
    matches = match_rows(rows, topology(world=world))
    return unknown_waits(collectives_table(matches, solve_clocks(matches)))


def test_the_rank_whose_communications_contradict_the_others_is_named():
    world = range(3)
    rows = [row(rank, 1000 * k + 10 * rank, 1000 * k + 500, size=3) for rank in world for k in range(4)]
    assert unknown(rows) is None
    more = unknown([*rows, row(1, 9000, 9500, size=3)])
    assert more is not None and not more.unread
    assert "1 of 13 communication kernels have no certain wait" in more.reason
    assert "rank 1 (5 of them, not 4) contradict those of ranks 0, 2 in number; look at rank 1" in more.reason
    other = unknown([*rows[:-1], rows[-1] | {"in_elements": 7}])
    assert (
        other is not None
        and "rank 2 contradict those of ranks 0–1 in order, operation, kernel, size or end" in other.reason
    )


def test_ranks_that_were_not_read_and_groups_that_nothing_shows_are_the_reason():
    rows = [row(rank, 1000 * k, 1000 * k + 500, size=4) for rank in (0, 1) for k in range(4)]
    few = unknown(rows, world=4)
    assert few is not None and few.unread and "only 2 of the 4 ranks that take part were read" in few.reason
    nothing = unknown([each | {"group_size": 2} for each in rows], world=4)
    assert nothing is not None and not nothing.unread and "nothing shows their process groups" in nothing.reason
    assert unknown(rows[:4], world=4) is None, "one rank has nobody to wait for"


@pytest.mark.long
def test_two_ranks_of_a_real_job_are_one_communication_only_where_operation_and_size_agree(shared_data, tmp_path):
    """Of 128 ranks two were recorded, whose kernels are all called SendRecv: annotations tell what each does."""
    stated = {}
    for rank in (0, 1):
        path = shared_data / "kineto" / "hta" / f"trace_filter_rank-{rank}.json.gz"
        shutil.copy(path, tmp_path / path.name)
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        around = sorted(
            (event["ts"], event["name"].removeprefix("nccl:"), str(event["args"]["Input Dims"]))
            for event in events
            if event.get("cat") == "user_annotation" and event["name"].startswith("nccl:")
        )
        stated[rank] = [(name, sizes) for _, name, sizes in around]
    seen: dict[int, list] = {0: [], 1: []}
    for each in analysed_all(tmp_path):
        table = each.table("collectives").to_pandas().sort_values(["rank", "arrival_ns"])
        for rank, mine in table.groupby("rank"):
            seen[rank] += list(zip(mine.operation, mine.communication, strict=True))
        both = table[table.communication.notna()].groupby("communication")["rank"].nunique()
        assert (both < 2).all(), "by order alone nothing says which of them met"
    for rank, found in seen.items():
        wanted = [name.replace("_all_gather_base", "all_gather") for name, _ in stated[rank]]
        assert sorted(operation for operation, _ in found) == sorted(wanted)
