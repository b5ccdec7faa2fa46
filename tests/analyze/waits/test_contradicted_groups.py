"""A topology file of another job: groups that the traces contradict match nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.analyze.across_ranks import communications, matched, no_microbatches, part, simulated, topology
from tests.simulate.conftest import small
from traceviz_dag.analyze.matching.matches import match_communications
from traceviz_dag.analyze.waits.collectives import collectives_table
from traceviz_dag.analyze.waits.contradicted_groups import chosen_to_judge, contradicted, doubtful, judge
from traceviz_dag.analyze.waits.shards import match_and_solve
from traceviz_dag.analyze.waits.unknown_waits import unknown_waits
from traceviz_dag.vocabulary import Dimension, TopologySource

RANKS = (0, 1, 2, 3)
PAIRS, OTHERS = ((0, 1), (2, 3)), ((0, 2), (1, 3))
US = 1_000


def told(stated: tuple[tuple[int, ...], ...], lost: int | None = None) -> tuple[set[str], set[str], str | None]:
    """By what rules, with what faults and with what reason the all-reduces of two pairs of ranks are matched.

    Pairs run apart by up to 400 us, hosts' clocks by a second and 50 ppm, and members leave 10 to 60 us apart.

    Args:
        stated: the groups of the topology file. lost: one whose kernel rank 0 has not.
    """
    draw, rows = random.Random(5), []
    clock = {rank: (draw.randrange(10**9), draw.uniform(-50e-6, 50e-6)) for rank in RANKS}
    for turn in range(40):
        for pair in PAIRS:
            end = 600 * US * turn + draw.randrange(400) * US
            for rank in pair:
                start, left = end - draw.randrange(70, 120) * US, end + draw.randrange(50) * US
                offset, drift = clock[rank]
                if (rank, turn) != (0, lost):
                    rows.append(part(rank, *(round(at * (1 + drift)) + offset for at in (start, left)), None))
    known = topology({str(at): group for at, group in enumerate(stated)}, world=4)
    groups = [replace(one, name=None, dimension=Dimension.TP, source=TopologySource.TEXT_FILE) for one in known.groups]
    known = replace(known, groups=tuple(groups))
    matches, clocks = match_and_solve(communications(rows), known, no_microbatches(), RANKS)
    table = collectives_table(matches, clocks)
    unknown = unknown_waits(table)
    rules, faults = ({str(word) for word in table[name].to_pylist()} for name in ("matched_by", "fault"))
    return rules, faults, None if unknown is None else unknown.reason


def test_groups_of_another_job_match_nothing_and_the_reason_is_told():
    rules, faults, reason = told(OTHERS)
    assert rules == {"none"} and faults == {"groups_contradicted"}
    assert reason is not None and "unique_parallel_groups_*" in reason


@pytest.mark.parametrize("lost", [None, 20])
def test_groups_of_this_job_are_believed_whatever_its_clocks_and_rings(lost):
    rules, faults, _ = told(PAIRS, lost)
    assert "order_in_dimension" in rules and "groups_contradicted" not in faults


@pytest.mark.parametrize(("pipelines", "expected"), [(((0, 2), (1, 3)), False), (((0, 1), (2, 3)), True)])
def test_pipelines_of_another_job_in_which_messages_arrive_before_they_are_sent_are_not_believed(pipelines, expected):
    iteration, _ = simulated(small(pp=2, dp=2))
    groups = tuple(replace(one, source=TopologySource.TEXT_FILE) for one in iteration.topology.groups)
    known = replace(iteration.topology, groups=groups, pipelines=pipelines)
    matches = match_communications(matched(iteration).rows, known, iteration.microbatches)
    doubts = chosen_to_judge([doubtful(matches, known)], known)
    assert contradicted([judge(matches, known, doubts, int(np.ptp(matches.rows.end_ns)))]) == expected
