"""The report of an iteration: one page that opens from disk, to look at and to send to others."""

import shlex

import dagster as dg

from assets.partitions import one_iteration
from assets.resources import TracevizHome
from assets.shown import shows_iteration
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.show.web.addresses import report_path, usual_address

_TABLES = (
    *("traces", "kernels", "microbatches", "gpu_gaps", "overlap", "topology", "runs", "iterations"),
    *("collectives", "rank_clocks", "late_ranks", "blame", "links", "expert_loads", "rank_speeds", "stage_speeds"),
    *("group_speeds", "link_groups"),
    *("pipelines", "period_percentiles", "path_segments", "path_items", "path_edges", "critical_imbalance", "what_if"),
    *("efficiencies", "delay_costs", "advice", "findings"),
)
# Tables of memory come by way of findings, which read them where there are any.


@shows_iteration(
    "report",
    _TABLES,
    kinds={"html"},
    description="One offline HTML page: the step, the findings, a timeline of all ranks, and the measures with their "
    "queries. **How to read it.** Open the link under Metadata while `traceviz serve` runs, or the file itself: the "
    "step and its first findings are on the first screen, and every number there leads to its rows.\n\n"
    "**Ask:** `traceviz report`.",
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
            "traceviz_serve": dg.MetadataValue.url(usual_address(report_path(run, iteration))),
            "open": dg.MetadataValue.md(
                "The file opens from disk, without a network; the link opens while this runs, in a browser in which "
                f"the address that it prints was opened before:\n\n```\n{command}\n```"
            ),
            "bytes": path.stat().st_size,
        },
        data_version=dg.DataVersion(digest_of(path)),
    )
