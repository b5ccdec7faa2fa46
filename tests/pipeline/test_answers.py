"""What answers say of thousands of ranks stays readable."""

from __future__ import annotations

import pytest

from traceviz_dag.pipeline.answers.iterations import blame_statements, slow_statements
from traceviz_dag.pipeline.answers.waits import waits_statements


def late(rank: int) -> dict[str, object]:
    """A rank that delayed its peers by as many milliseconds as its number."""
    return {
        **{"rank": rank, "blamed": rank > 0, "own_ns": rank * 1_000_000, "own_share": 0.1, "steps": 1},
        **{"late_category": "computation", "last": 3, "communications": 4},
    }


def slow(rank: int) -> dict[str, object]:
    return {
        **{"rank": rank, "slow": True, "items": 9, "slow_steps": [], "ratio": 1.3, "more_ns": 1, "stage": 0},
        **{"peers": 3, "work_by": "sizes"},
    }


@pytest.mark.parametrize(("ranks", "lines", "last"), [(6, 6, "rank 1 delayed"), (4096, 6, "4,091 more ranks delayed")])
def test_the_worst_of_many_ranks_to_blame_are_named_and_the_others_counted(ranks, lines, last):
    told = blame_statements(late(rank) for rank in range(ranks + 1))
    assert len(told) == lines
    assert told[0].startswith(f"rank {ranks} delayed its peers by {ranks:,}.000 ms")
    assert told[-1].startswith(last)


def test_waits_of_a_job_with_thousands_of_culprits_are_a_screen():
    links = {"slow": True, "or_of": None, "best_ratio": 2.0, "scope": None}
    answer = {
        **{"ranks": [late(rank) for rank in range(4096)], "slow_ranks": [slow(rank) for rank in range(4096)]},
        **{"links": [{**links, "rank": rank} for rank in range(4096)], "experts": [], "matching": [], "cut_steps": []},
        **{"waits": {"durations": 0, "untold": 0}, "step_ns": 1, "uncertain": 0, "communication_kernels": 1},
    }
    told = waits_statements(answer, None)
    assert len(told) == 18
    assert [line for line in told if "more ranks" in line] == [
        "4,090 more ranks delayed their peers",
        "4,091 more ranks compute slowly",
        "4,091 more ranks have slow links",
    ]
    assert slow_statements([slow(0)])[0].startswith("rank 0 computes slowly")
