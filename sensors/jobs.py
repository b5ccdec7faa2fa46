"""The jobs that sensors and schedules start, by name: what a person may launch by hand, too."""

from __future__ import annotations

from typing import Any

import dagster as dg

from assets.iteration_figures import across_ranks_figures, pipeline_figures, replica_figures
from assets.perfetto_traces import perfetto_trace
from assets.rank_figures import rank_figures
from assets.report import report
from sensors.register_traces import register_traces
from traceviz_dag.pipeline.nights.series import NIGHT_TABLES
from traceviz_dag.pipeline.staleness import ITERATION_TABLES
from traceviz_dag.tables import EXTRA_TABLES, RANK_TABLES, TOPOLOGY_TABLES

STAGES = {
    stage: dg.define_asset_job(f"compute_{stage}", dg.AssetSelection.assets(*tables), description=text)
    for stage, tables, text in (
        ("topology", TOPOLOGY_TABLES, "The topology of an iteration, from its traces' headers and its text file."),
        ("ranks", (*RANK_TABLES, *EXTRA_TABLES), "The tables of ranks, from their traces."),
        ("iterations", ITERATION_TABLES, "The tables of an iteration, from those of its ranks."),
    )
}
"""Stage, as ``pending_stage`` names it → the job that computes it."""

DRAW_ITERATION = dg.define_asset_job(
    "draw_iteration",
    dg.AssetSelection.assets(pipeline_figures, replica_figures, across_ranks_figures, perfetto_trace, report),
    description="The figures, the Perfetto trace and the report of an iteration.",
)
DRAW_RANKS = dg.define_asset_job(
    "draw_ranks", dg.AssetSelection.assets(rank_figures), description="The figures of single ranks."
)
JUDGE_NIGHT = dg.define_asset_job(
    "judge_night",
    dg.AssetSelection.assets(*NIGHT_TABLES),
    description="Judges nights against those before them in their series.",
)
PRUNE = dg.define_asset_job(
    "prune_old_iterations",
    dg.AssetSelection.assets("retention"),
    description="Removes what traceviz.toml no longer keeps.",
)

# The class of jobs of assets has no public name.
JOBS: tuple[Any, ...] = (
    register_traces,
    *STAGES.values(),
    DRAW_ITERATION,
    DRAW_RANKS,
    JUDGE_NIGHT,
    PRUNE,
)
