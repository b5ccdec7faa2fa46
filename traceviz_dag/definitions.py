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
from sensors.keep_house import keep_house_schedule
from sensors.nightly import nightly_schedule, nightly_verdict_sensor
from sensors.notifications import notify_sensor
from sensors.partition_status import partition_status_sensor
from sensors.register_traces import register_traces
from sensors.trace_folders import trace_folders_sensor
from traceviz_dag.system.semaphores import name_semaphores

ASSETS: tuple[dg.AssetsDefinition | dg.SourceAsset, ...] = (
    *(raw_traces, topology_files, memory_snapshots, classification_rules),
    *(topology_assets, rank_tables, iteration_assets, across_ranks_assets, nightly_gate),
    *derived_assets,
    memory_tables,
    *(rank_figures, *iteration_figures, perfetto_trace, report, retention, nsys_profile),
)

# Dagster's code server, which imports this, shares semaphores with each run: where all are killed, somebody must know
# whose they were.
name_semaphores()

_HOME = TracevizHome()
_SETTINGS = _HOME.settings()

defs = dg.Definitions(
    assets=without_pictures(with_freshness(ASSETS, _SETTINGS), _SETTINGS),
    jobs=[register_traces],
    sensors=[
        trace_folders_sensor(_SETTINGS),
        automation_sensor(_SETTINGS),
        nightly_verdict_sensor(_SETTINGS),
        notify_sensor(_SETTINGS),
        partition_status_sensor(_SETTINGS),
    ],
    schedules=[nightly_schedule(_SETTINGS), keep_house_schedule(_SETTINGS)],
    resources={"traceviz": _HOME},
    executor=dg.in_process_executor,
)
