"""Collectives of groups without a name, in traces made by hand: truth is what the trace was made from."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.analyze.across_ranks import EPOCH_NS, match_rows, part, topology
from traceviz_dag.analyze.clocks.clocks import solve_clocks
from traceviz_dag.analyze.matching.collective_matching import MATCHED_BY
from traceviz_dag.analyze.waits.by_ends import with_matches_by_ends

RANKS = (0, 1, 2, 3)
PAIRS = {"tp": ((0, 1), (2, 3)), "dp": ((0, 2), (1, 3))}
US = 1_000
UNNAMED = {"dimension": "unknown", "in_elements": 1}


def job(
    late_us: dict[int, int], groups: tuple[tuple[int, ...], ...], read: tuple[int, ...] = RANKS, drift: float = 0.0
) -> list[tuple[str, tuple[int, ...]]]:
    """Which ranks' unnamed all-reduces are found to be one, by what rule, each time; named ones give the clocks.

    Args:
        late_us: when each rank comes to the unnamed one. groups: those that truly meet there. read: ranks with a file.
        drift: by which the clocks of ranks 2 and 3 run faster than those of 0 and 1.
    """
    draw, rows = random.Random(3), []
    clock = {rank: draw.randrange(10**6) for rank in RANKS}
    named = {f"{name}{pair[0]}": pair for name, pairs in PAIRS.items() for pair in pairs}
    for turn in range(8):
        first = 40_000_000 * turn
        # Tensor-parallel groups communicate far oftener than data-parallel ones.
        for at, (name, pair) in enumerate([*named.items(), *10 * [*named.items()][:2]]):
            end = first + 20_000 * at + 15_000
            rows += [part(rank, end - draw.randrange(5, 12) * US, end + draw.randrange(200), name) for rank in pair]
        for members in groups:
            end = first + 1_000_000 + max(late_us[rank] for rank in members) * US + 10 * US
            rows += [
                part(rank, first + 1_000_000 + late_us[rank] * US, end + draw.randrange(200), None, **UNNAMED)
                for rank in members
            ]
    for row in rows:
        since = row["start_ns"] - EPOCH_NS
        row["start_ns"] += clock[row["rank"]] + round(drift * since) * (row["rank"] > 1)
    groups_of = topology(named, world=4).groups
    known = replace(topology(world=4), groups=tuple(replace(one, description=one.name[:2]) for one in groups_of))
    matches = match_rows([row for row in rows if row["rank"] in read], known)
    found = with_matches_by_ends(matches, solve_clocks(matches), known, read)
    told: dict[tuple[str, int], list[int]] = {}
    for row in np.flatnonzero(found.may_meet >= 0).tolist():
        rule = MATCHED_BY[found.matched_by[row]].value
        told.setdefault((rule, int(found.may_meet[row])), []).append(int(found.rows.rank[row]))
        assert (rule == "ends") == (found.communication[row] == found.may_meet[row])
    return sorted((rule, tuple(sorted(ranks))) for (rule, _), ranks in told.items())


@pytest.mark.parametrize(
    ("late_us", "groups", "rule", "expected"),
    [
        # Rank 2 comes last, so all four leave when it has come.
        ({0: 0, 1: 130, 2: 390, 3: 140}, (RANKS,), "ends", (RANKS,)),
        # Pairs meet, and leave apart.
        ({0: 0, 1: 30, 2: 200, 3: 140}, PAIRS["tp"], "ends", PAIRS["tp"]),
        # The pairs' last ranks come at the same time, so the pairs leave together whether they meet or not: no match.
        ({0: 0, 1: 90, 2: 90, 3: 40}, PAIRS["tp"], "none", (RANKS,)),
        # All come at once.
        ({0: 50, 1: 50, 2: 50, 3: 50}, (RANKS,), "none", (RANKS,)),
        # Ranks of no group of the job end together by chance.
        ({0: 0, 3: 90}, ((0, 3),), "", ()),
    ],
)
def test_ranks_that_leave_together_although_they_came_apart_met_and_chance_is_distinguished_from_it(
    late_us, groups, rule, expected
):
    assert job(late_us, groups) == sorted((rule, ranks) for ranks in expected * 8)


def test_ends_on_one_hosts_clock_are_no_evidence_against_groups_of_several_hosts_whose_clocks_drift():
    """Data-parallel pairs meet over two hosts, and each host's ranks come and leave in lockstep."""
    late_us = {0: 0, 1: 0, 2: 200, 3: 200}
    assert job(late_us, PAIRS["dp"], drift=1e-3) == [("none", RANKS)] * 8


def test_where_a_rank_was_not_read_its_partners_are_not_taken_for_each_others():
    late_us, read = {0: 0, 1: 30, 2: 400, 3: 410}, (0, 1)
    assert job(late_us, PAIRS["dp"], read) == []
