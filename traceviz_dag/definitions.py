"""The Dagster code location: composes assets, checks and resources; nothing else."""

from __future__ import annotations

import dagster as dg

from assets.iteration_tables import iteration_assets
from assets.rank_tables import rank_tables
from assets.raw_traces import raw_traces
from assets.resources import TracevizHome
from assets.topology import topology_assets

ASSETS = (raw_traces, topology_assets, rank_tables, iteration_assets)

defs = dg.Definitions(
    assets=ASSETS,
    resources={"traceviz": TracevizHome()},
)
