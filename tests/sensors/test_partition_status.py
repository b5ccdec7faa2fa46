"""Dagster's memory of materialised partitions, damaged as a late write under load damages it, and fixed."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value

from sensors import partition_status
from sensors.partition_status import forgotten, partition_status_sensor
from traceviz_dag.pipeline.home_settings import HomeSettings

KEY = dg.AssetKey("kernels")
PARTITIONS = dg.MultiPartitionsDefinition(
    {"iteration": dg.DynamicPartitionsDefinition(name="iteration"), "rank": dg.DynamicPartitionsDefinition(name="rank")}
)


@dg.asset(key=KEY, partitions_def=PARTITIONS)
def kernels() -> None:
    """Any asset with such partitions."""


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("iteration", ["job@1", "job@2"])
        instance.add_dynamic_partitions("rank", ["0000"])
        yield instance


def materialise(instance: dg.DagsterInstance, iteration: str) -> None:
    event = dg.AssetMaterialization(KEY, partition=str(dg.MultiPartitionKey({"iteration": iteration, "rank": "0000"})))
    instance.report_runless_asset_event(event)


def remembered(instance: dg.DagsterInstance) -> set[str]:
    """What Dagster believes, after it has looked for news as it does on every tick."""
    status = get_and_update_asset_status_cache_value(instance, KEY, PARTITIONS)
    assert status is not None
    with dg.partition_loading_context(None, instance):
        return set(status.deserialize_materialized_partition_subsets(PARTITIONS).get_partition_keys())


def test_a_partition_that_dagster_forgot_is_found_and_remembered_again(instance):
    materialise(instance, "job@1")
    before = get_and_update_asset_status_cache_value(instance, KEY, PARTITIONS)
    materialise(instance, "job@2")
    assert forgotten(instance, KEY, PARTITIONS) == set(), "not looked at yet is not forgotten"
    after = get_and_update_asset_status_cache_value(instance, KEY, PARTITIONS)
    assert before is not None and after is not None
    instance.update_asset_cached_status_data(KEY, before._replace(latest_storage_id=after.latest_storage_id))
    assert remembered(instance) == {"job@1|0000"}, "and so it stays, without us"
    assert forgotten(instance, KEY, PARTITIONS) == {"job@2|0000"}
    definitions = dg.Definitions(assets=[kernels], sensors=[partition_status_sensor(HomeSettings())])
    repository = definitions.get_repository_def()
    context = dg.build_sensor_context(instance, repository_def=repository)
    tick = repository.get_sensor_def("partition_status").evaluate_tick(context)
    assert "kernels" in str(tick.skip_message)
    assert remembered(instance) == {"job@1|0000", "job@2|0000"}
    assert forgotten(instance, KEY, PARTITIONS) == set()


def test_each_table_of_a_step_is_looked_at_once(instance, monkeypatch):
    """All of each step's tables for each of them was half a minute a tick, of 60 s."""
    names = ("collectives", "pipelines", "periods")

    @dg.multi_asset(specs=[dg.AssetSpec(name) for name in names], partitions_def=PARTITIONS)
    def across_ranks() -> Iterator[dg.MaterializeResult]:
        yield from ()

    looked_at: list[str] = []
    monkeypatch.setattr(
        partition_status, "forgotten", lambda _, key, __: looked_at.append(key.to_user_string()) or set()
    )
    definitions = dg.Definitions(assets=[kernels, across_ranks], sensors=[partition_status_sensor(HomeSettings())])
    repository = definitions.get_repository_def()
    context = dg.build_sensor_context(instance, repository_def=repository)
    repository.get_sensor_def("partition_status").evaluate_tick(context)
    assert sorted(looked_at) == sorted(("kernels", *names))
