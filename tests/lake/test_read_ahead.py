"""Rows of single ranks that are read ahead are those that each rank's own reading gives, in far fewer readings."""

from __future__ import annotations

import pytest

from tests.damage import truncate
from tests.lake.conftest import SampleTable
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake import packing
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.read_ahead import ReadAhead

RUN, COLUMNS, RANKS = "a job", ("kernel_id", "name"), 40


def write(lake: Lake, sample: SampleTable, rank: int, name: str = "gemm") -> None:
    rows = rank % 4
    data = sample("kernels", rows, name=[f"{name}_{row}" for row in range(rows)], kernel_id=list(range(rows)))
    lake.write("kernels", data, run=RUN, iteration=1, rank=rank)


@pytest.fixture
def job(lake: Lake, sample: SampleTable) -> Lake:
    """Forty ranks with 0 to 3 kernels, without one of them, packed, and one of them changed since."""
    for rank in range(RANKS):
        if rank != 7:
            write(lake, sample, rank)
    packing.pack(lake.tables_folder, RUN, 1, 2)
    write(lake, sample, 13, "conv")
    return lake


@pytest.mark.parametrize("order", [range(RANKS + 2), range(RANKS, -1, -1), [5, 30, 6, 31, 7, 0, 39]])
def test_rows_are_those_of_each_rank_read_by_itself(job: Lake, order: list[int]):
    ahead = ReadAhead(job, RUN, 1)
    for rank in order:
        assert (
            ahead.rows("kernels", COLUMNS, rank).to_pylist() == job.rows("kernels", RUN, 1, COLUMNS, rank).to_pylist()
        )


def test_ranks_in_order_take_a_few_readings(job: Lake, monkeypatch: pytest.MonkeyPatch):
    readings = []
    rows_of = Lake.rows_of
    monkeypatch.setattr(Lake, "rows_of", lambda *words: readings.append(words) or rows_of(*words))
    ahead = ReadAhead(job, RUN, 1)
    for rank in range(RANKS):
        ahead.rows("kernels", COLUMNS, rank)
    assert len(readings) <= 5


def test_damage_of_a_rank_refuses_that_rank_alone(lake: Lake, sample: SampleTable):
    for rank in range(6):
        write(lake, sample, rank)
    truncate(lake.path("kernels", run=RUN, iteration=1, rank=4))
    ahead = ReadAhead(lake, RUN, 1)
    assert [ahead.rows("kernels", COLUMNS, rank).num_rows for rank in (0, 1, 2, 3, 5)] == [0, 1, 2, 3, 1]
    with pytest.raises(BadInputError, match="rank 4"):
        ahead.rows("kernels", COLUMNS, 4)


def test_a_rank_that_is_written_once_others_were_read_is_read_too(lake: Lake, sample: SampleTable):
    for rank in (1, 3):
        write(lake, sample, rank)
    ahead = ReadAhead(lake, RUN, 1)
    assert [ahead.rows("kernels", COLUMNS, rank).num_rows for rank in (1, 2, 3)] == [1, 0, 3]
    write(lake, sample, 2)
    assert ahead.rows("kernels", COLUMNS, 2)["name"].to_pylist() == ["gemm_0", "gemm_1"]
