"""The topology of an iteration as it lies in the lake; who asks for it needs no reader of traces."""

from __future__ import annotations

from traceviz_dag.classify.topology.tables import topology_from_tables
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.lake import Lake
from traceviz_dag.tables import TOPOLOGY_TABLES


def stored_topology(lake: Lake, run: str, iteration: int) -> tuple[Topology, str]:
    """The topology of an iteration from the lake, and its data version.

    Raises:
        BadInputError: the topology was not computed yet.
    """
    topology, groups = (lake.table(name, run, iteration).arrow() for name in TOPOLOGY_TABLES)
    return topology_from_tables(topology, groups), topology_version(lake, run, iteration)


def topology_version(lake: Lake, run: str, iteration: int) -> str:
    """The data version of an iteration's stored topology.

    Raises:
        FileNotFoundError: the topology was not computed yet.
    """
    return "-".join(digest_of(lake.path(name, run=run, iteration=iteration)) for name in TOPOLOGY_TABLES)
