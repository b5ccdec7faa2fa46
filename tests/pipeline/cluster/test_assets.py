"""Dagster's asset of ranks on a cluster: the tables and data versions that it has without one."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from assets.partitions import rank_trace_key
from assets.resources import TracevizHome
from tests.pipeline.cluster.servers import tables
from tests.reported import informed_instance
from tests.small_run import two_ranks_analysed
from traceviz_dag.definitions import ASSETS
from traceviz_dag.lake.partition_keys import rank_key
from traceviz_dag.pipeline.cluster.engine import DaskEngine

pytestmark = pytest.mark.long


def test_assets_of_ranks_run_on_the_cluster_that_the_resource_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, home = two_ranks_analysed(tmp_path)
    before, sent, spread = tables(home), [], DaskEngine.spread

    def counted(self: DaskEngine, work: object, items: list, *others: object):
        sent.extend(items)
        return spread(self, work, items, *others)

    monkeypatch.setattr(DaskEngine, "spread", counted)
    first, last = (str(rank_trace_key("job@7", rank_key(rank))) for rank in (0, 1))
    with informed_instance(home) as instance:
        result = dg.materialize(
            ASSETS,
            selection=dg.AssetSelection.assets("kernels").required_multi_asset_neighbors(),
            instance=instance,
            resources={"traceviz": TracevizHome(home=str(home), workers=2, cluster="local")},
            tags={"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last},
        )
    assert result.success and [trace.rank for trace in sent] == [0, 1]
    assert tables(home) == before
    assert len({event.partition for event in result.asset_materializations_for_node("rank_tables")}) == 2
