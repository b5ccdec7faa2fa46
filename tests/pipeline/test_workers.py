"""Which ranks are analysed in this process, and which in workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.small_run import write_run
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline import workers
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import rank_traces, read_topology


@pytest.mark.parametrize(
    ("ranks", "given", "size", "pools"),
    [(2, None, 0, 0), (2, 2, 0, 1), (9, None, 0, 1), (2, None, 8 << 20, 1)],
    ids=["few small ones", "a number of workers", "many", "large ones"],
)
def test_a_pool_is_started_for_many_ranks_large_ones_and_where_it_is_asked_for(
    ranks: int, given: int | None, size: int, pools: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = write_run(tmp_path / "job", {7: ranks}, ranks)
    (inputs,) = inputs_below([run])
    traces = rank_traces(inputs, range(ranks), None)
    if size:
        os.truncate(traces[-1].path, size)
    started = []

    def here(work, items, _count, arguments, **_):
        started.append(len(items))
        return ((number, work(item, *arguments)) for number, item in enumerate(items))

    monkeypatch.setattr(workers, "spread", here)
    task = workers.IterationTask(tmp_path / "home", inputs.run, 7, read_topology(inputs), load_rules())
    outcomes = list(workers.analyse_ranks(task, traces, given))
    assert started == [ranks] * pools and [one.rank for one in outcomes] == list(range(ranks))
    assert [part.rank for part in open_lake(tmp_path / "home").partitions("traces")] == list(range(ranks))
