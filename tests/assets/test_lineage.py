"""What stands beside an event that is recorded by hand: versions of its inputs, digests of its files."""

from __future__ import annotations

import dagster as dg
import pyarrow.parquet as pq
from assets.lineage.recorded_files import are_as_recorded, file_tags

from assets.lineage.provenance import input_tags
from tests.show.home import fill_home
from tests.small_run import write_run
from traceviz_dag.lake.lake import open_lake


@dg.asset
def kernels() -> None:
    """What another asset is made of."""


@dg.asset(deps=[kernels, "never_made"])
def figures() -> None:
    """What is made of it."""


def test_an_input_has_the_version_and_the_pointer_of_its_last_event():
    with dg.instance_for_test() as instance:
        for version in ("first", "second"):
            instance.report_runless_asset_event(
                dg.AssetMaterialization("kernels", tags={"dagster/data_version": version})
            )
        [last] = instance.fetch_materializations(kernels.key, limit=1).records
        tags = input_tags(instance, figures, "figures")
    assert tags == {
        "dagster/input_data_version/kernels": "second",
        "dagster/input_event_pointer/kernels": str(last.storage_id),
        "dagster/input_data_version/never_made": "INITIAL",
        "dagster/input_event_pointer/never_made": "NULL",
    }


def test_a_table_that_was_written_again_is_not_the_one_that_was_recorded(tmp_path):
    fill_home(tmp_path / "home", [write_run(tmp_path / "job", world=2)])
    lake, place = open_lake(tmp_path / "home"), {"run": "job", "iteration": 7, "rank": 0}
    content = lake.content("kernels", **place)
    assert content is not None
    tags = file_tags(lake, {"kernels": content.digest}, **place)
    assert are_as_recorded(lake, tags, ["kernels"], **place)
    rows = pq.read_table(lake.path("kernels", **place), partitioning=None)
    lake.write("kernels", rows.slice(1), **place)
    assert lake.is_as_written("kernels", **place) and not are_as_recorded(lake, tags, ["kernels"], **place)
