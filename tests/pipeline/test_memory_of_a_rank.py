"""While a rank is analysed, Arrow and numpy give each other what they freed: no table lies in a pool of Arrow's own."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.small_run import rank_file
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.pipeline import workers
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.read.kineto.peek import peek_header

OWN = next((name for name in pa.supported_memory_backends() if name != "system"), None)


@pytest.mark.skipif(OWN is None, reason="this Arrow has no pool of its own")
def test_no_table_of_a_rank_is_in_arrows_own_pool_and_the_caller_keeps_his(tmp_path, monkeypatch):
    trace = RankTrace(rank_file(0, 2).write(tmp_path / "rank_0.json"), "rank_0.json", 0)
    task = workers.IterationTask(tmp_path / "home", "run", 1, unite({0: peek_header(trace.path)}), load_rules())
    pools = own, _ = getattr(pa, f"{OWN}_memory_pool")(), pa.system_memory_pool()
    former, write, held = pa.default_memory_pool(), workers._write, []

    def counted(lake, task, trace, tables):
        held.extend(pool.bytes_allocated() for pool in pools)
        return write(lake, task, trace, tables)

    monkeypatch.setattr(workers, "_write", counted)
    pa.set_memory_pool(own)
    before = [pool.bytes_allocated() for pool in pools]
    try:
        assert not workers.analyse_into_lake(task, trace).failed
        assert pa.default_memory_pool().backend_name == OWN
    finally:
        pa.set_memory_pool(former)
    in_own, in_system = held[0] - before[0], held[1] - before[1]
    assert in_own < in_system / 4
