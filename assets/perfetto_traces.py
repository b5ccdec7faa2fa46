"""The iteration as a Perfetto trace, and the command that opens it in the Perfetto UI."""

import shlex

import dagster as dg

from assets.automation import FIGURES_GROUP, ITERATION_NEEDED
from assets.conventions import CODE_VERSION, OWNERS
from assets.partitions import iteration_partitions, one_iteration, table_of_iteration
from assets.resources import TracevizHome
from assets.step_faults import told_in_a_line
from assets.steps import with_leads
from traceviz_dag.lake.digests import digest_of

_TABLES = ("kernels", "microbatches", "topology", "rank_clocks", "path_segments")


@dg.asset(
    name="perfetto_trace",
    deps=[table_of_iteration(name) for name in with_leads(_TABLES)],
    partitions_def=iteration_partitions,
    group_name=FIGURES_GROUP,
    automation_condition=ITERATION_NEEDED,
    owners=OWNERS,
    kinds={"perfetto"},
    code_version=CODE_VERSION,
    description="All ranks in one native Perfetto trace: streams, micro-batches, critical path, arrows, counters. The "
    "slice `about this trace` says on which clocks.\n\n"
    "**Ask:** `traceviz perfetto open`, or open it from `traceviz serve`.",
)
@told_in_a_line
def perfetto_trace(context: dg.AssetExecutionContext, traceviz: TracevizHome) -> dg.MaterializeResult:
    """Write the trace of the iteration; its metadata says how to open it."""
    from traceviz_dag.pipeline.figures import LakeSource
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
