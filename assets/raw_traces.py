"""The trace files as a source: a data version per iteration and rank, from how the registered file looks now."""

from pathlib import Path

import dagster as dg

from assets.partitions import rank_trace_key, rank_trace_partitions
from assets.resources import TracevizHome
from traceviz_dag.lake.inputs import all_registered
from traceviz_dag.lake.partition_keys import rank_key


@dg.observable_source_asset(
    partitions_def=rank_trace_partitions,
    group_name="sources",
    description="Trace files of the registered iterations. A file that changes gets a new data version.",
    tags={"dagster/kind/json": "", "dagster/kind/pytorch": ""},
)
def raw_traces(traceviz: TracevizHome) -> dg.DataVersionsByPartition:
    """Look at every registered file; a file that is gone keeps its last version."""
    versions = {}
    for inputs in all_registered(traceviz.folder):
        for entry in inputs.ranks:
            path = Path(entry.path)
            if path.is_file():
                status = path.stat()
                version = f"{status.st_size}-{status.st_mtime_ns}"
            else:
                version = entry.version
            versions[rank_trace_key(inputs.key, rank_key(entry.rank))] = version
    return dg.DataVersionsByPartition({str(key): version for key, version in versions.items()})
