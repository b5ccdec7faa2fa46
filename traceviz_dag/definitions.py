"""The Dagster code location: composes assets, checks, sensors, schedules and resources; nothing else."""

from __future__ import annotations

import dagster as dg

from assets.across_ranks import across_ranks_assets
from assets.automation import automation_sensor, with_freshness, without_pictures
from assets.derived_tables import derived_assets
from assets.iteration_figures import iteration_figures
from assets.iteration_tables import iteration_assets
from assets.memory import memory_tables
from assets.nightly import nightly_gate
from assets.nsys_download import nsys_profile
from assets.perfetto_traces import perfetto_trace
from assets.rank_figures import rank_figures
from assets.rank_tables import rank_tables
from assets.raw_traces import classification_rules, memory_snapshots, raw_traces, topology_files
from assets.report import report
from assets.resources import TracevizHome
from assets.retention import retention
from assets.topology import topology_assets
from sensors.computed import computed_sensor
from sensors.downloads import downloads_sensor
from sensors.jobs import JOBS
from sensors.keep_house import keep_house_schedule
from sensors.killed_runs import killed_runs_sensor
from sensors.nightly import nightly_schedule, nightly_verdict_sensor
from sensors.notifications import notify_sensor
from sensors.partition_status import partition_status_sensor
from sensors.trace_folders import trace_folders_sensor
from traceviz_dag.system.semaphores import name_semaphores

ASSETS: tuple[dg.AssetsDefinition, ...] = (
    *(raw_traces, topology_files, memory_snapshots, classification_rules),
    *(topology_assets, rank_tables, iteration_assets, across_ranks_assets, nightly_gate),
    *derived_assets,
    memory_tables,
    *(rank_figures, *iteration_figures, perfetto_trace, report, retention, nsys_profile),
)


@dg.definitions
def defs() -> dg.Definitions:
    """What a code location serves; the settings of the home are read when it is loaded, not when this is imported."""
    # Dagster's code server, which calls this, shares semaphores with each run: where all are killed, somebody must know
    # whose they were.
    name_semaphores()
    home = TracevizHome()
    settings = home.settings()
    return dg.Definitions(
        assets=without_pictures(with_freshness(ASSETS, settings), settings),
        jobs=JOBS,
        sensors=[
            trace_folders_sensor(settings),
            automation_sensor(settings),
            nightly_verdict_sensor(settings),
            notify_sensor(settings),
            partition_status_sensor(settings),
            computed_sensor(settings),
            downloads_sensor,
            killed_runs_sensor(settings),
        ],
        schedules=[nightly_schedule(settings), keep_house_schedule(settings)],
        resources={"traceviz": home},
        executor=dg.in_process_executor,
    )
