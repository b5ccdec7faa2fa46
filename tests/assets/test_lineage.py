"""What is beside an event that is recorded by hand: versions of its inputs."""

from __future__ import annotations

import dagster as dg

from assets.lineage.provenance import input_tags


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
