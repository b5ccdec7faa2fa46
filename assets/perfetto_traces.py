"""The iteration as a Perfetto trace, and the command that opens it in the Perfetto UI."""

import shlex

import dagster as dg

from assets.partitions import one_iteration
from assets.resources import TracevizHome
from assets.shown import shows_iteration
from traceviz_dag.lake.digests import digest_of

_TABLES = ("kernels", "microbatches", "topology", "rank_clocks", "path_segments")


@shows_iteration(
    "perfetto_trace",
    _TABLES,
    kinds={"perfetto"},
    description="All ranks in one native Perfetto trace: streams, micro-batches, host, critical path, arrows, "
    "counters. The slice `about this trace` says on which clocks.\n\n"
    "**Ask:** `traceviz perfetto open`, or open it from `traceviz serve`.",
)
def perfetto_trace(context: dg.AssetExecutionContext, traceviz: TracevizHome) -> dg.MaterializeResult:
    """Write the trace of the iteration; its metadata says how to open it."""
    from traceviz_dag.pipeline.lake_source import LakeSource
    from traceviz_dag.pipeline.perfetto_export import export_iteration

    run, iteration = one_iteration(context)
    written = export_iteration(LakeSource(traceviz.lake(), run, iteration))
    command = f"traceviz perfetto open {shlex.quote(str(written.path))}"
    return dg.MaterializeResult(
        metadata={
            "trace": dg.MetadataValue.path(str(written.path)),
            "open": dg.MetadataValue.md(f"Opens in the Perfetto UI, without a network:\n\n```\n{command}\n```"),
            "clocks": written.clock,
            "slices": written.slices,
            "arrows": written.arrows,
            "bytes": written.bytes,
        },
        data_version=dg.DataVersion(digest_of(written.path)),
    )
