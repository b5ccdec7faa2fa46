"""The report of an iteration: one page that opens from disk, to look at and to send to others."""

import shlex

import dagster as dg

from assets.partitions import one_iteration
from assets.resources import TracevizHome
from assets.shown import shows_iteration
from traceviz_dag.lake.digests import digest_of

_TABLES = (
    *("traces", "kernels", "microbatches", "gpu_gaps", "overlap", "topology", "runs", "iterations"),
    *("collectives", "rank_clocks", "late_ranks", "blame", "links", "expert_loads", "rank_speeds", "stage_speeds"),
    *("pipelines", "period_percentiles", "path_segments", "path_items", "path_edges", "critical_imbalance", "what_if"),
    *("findings",),
)
# Tables of memory come by way of findings, which read them where there are any.


@shows_iteration(
    "report",
    _TABLES,
    kinds={"html"},
    description="One offline HTML page: the step, the findings, a timeline of all ranks, and the measures with their "
    "queries. Its metadata names the file; `traceviz serve` shows it in a browser.",
)
def report(context: dg.AssetExecutionContext, traceviz: TracevizHome) -> dg.MaterializeResult:
    """Write the page of the iteration; its metadata says how to open it."""
    from traceviz_dag.pipeline.report import write_report

    run, iteration = one_iteration(context)
    path = write_report(traceviz.lake(), run, iteration)
    command = f"traceviz serve --home {shlex.quote(str(traceviz.folder))}"
    return dg.MaterializeResult(
        metadata={
            "report": dg.MetadataValue.path(str(path)),
            "open": dg.MetadataValue.md(f"Opens from disk, without a network; or in a browser:\n\n```\n{command}\n```"),
            "bytes": path.stat().st_size,
        },
        data_version=dg.DataVersion(digest_of(path)),
    )
