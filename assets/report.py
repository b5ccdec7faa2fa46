"""The report of an iteration: one page that opens from disk, to look at and to send to others."""

import shlex

import dagster as dg

from assets.automation import FIGURES_GROUP, ITERATION_NEEDED
from assets.conventions import CODE_VERSION, OWNERS
from assets.partitions import iteration_partitions, one_iteration, table_of_iteration
from assets.resources import TracevizHome
from assets.step_faults import told_in_a_line
from assets.steps import with_leads
from traceviz_dag.lake.digests import digest_of

_TABLES = (
    *("traces", "kernels", "microbatches", "gpu_gaps", "overlap", "topology", "runs", "iterations"),
    *("collectives", "rank_clocks", "late_ranks", "blame", "links", "expert_loads", "rank_speeds", "stage_speeds"),
    *("pipelines", "period_percentiles", "path_segments", "path_items", "path_edges", "critical_imbalance", "what_if"),
    *("findings",),
)
# Tables of memory come by way of findings, which read them where there are any.


@dg.asset(
    name="report",
    deps=[table_of_iteration(name) for name in with_leads(_TABLES)],
    partitions_def=iteration_partitions,
    group_name=FIGURES_GROUP,
    automation_condition=ITERATION_NEEDED,
    owners=OWNERS,
    kinds={"html"},
    code_version=CODE_VERSION,
    description="One offline HTML page: the step, the findings, a timeline of all ranks, and the measures with their "
    "queries. Its metadata names the file; `traceviz serve` shows it in a browser.",
)
@told_in_a_line
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
