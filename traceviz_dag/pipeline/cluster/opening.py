"""Opens the cluster that a user names, once there is a rank for it, and closes what was started for that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from traceviz_dag.errors import ClusterError
from traceviz_dag.pipeline.cluster.job_array import ArrayEngine
from traceviz_dag.pipeline.cluster.settings import ClusterSettings, load_cluster
from traceviz_dag.pipeline.engines import Engine, default_workers

CLUSTER_VARIABLE = "TRACEVIZ_CLUSTER"
"""Names the cluster where nothing else does, for the command line and Dagster."""

LOCAL = "local"
"""The cluster that is started on this machine."""

_log = logging.getLogger(__name__)


@contextmanager
def open_cluster(
    where: str | None, home: Path, workers: int = 0, tell: Callable[[str], None] = _log.info
) -> Iterator[Engine | None]:
    """The engine of a cluster; None where none is named. It starts with the first rank, and ends with the context.

    Args:
        where: ``local``, the address of a scheduler, or a TOML file (``ClusterSettings``). home: absolute; workers must
            see it. workers: of a local cluster; 0 = as many as cores and memory allow. tell: is told what it waits for.

    Raises:
        BadInputError: the TOML file is off.
        ClusterError: the extra is not installed, or an address goes without TLS.
    """
    if not where:
        yield None
        return
    settings = load_cluster(Path(where)) if where.endswith(".toml") else ClusterSettings(address=where)
    if settings.slurm is not None and settings.slurm.array:
        yield ArrayEngine(settings.slurm, home, tell)
        return
    try:
        # Imported here because the base installation does not have Dask.
        from traceviz_dag.pipeline.cluster import clients
        from traceviz_dag.pipeline.cluster.engine import DaskEngine
    except ModuleNotFoundError as error:
        remedy = "install the extra distributed: pip install 'traceviz-dag[distributed]'"
        raise ClusterError(where, f"a cluster needs Dask, and {error.name} is not installed", remedy) from error
    is_shared = False
    if where == LOCAL:
        client = clients.local(workers or default_workers())
    elif settings.slurm is not None:
        client = clients.on_slurm(settings.slurm, home, tell)
    else:
        client, is_shared = clients.connected(*clients.address_of(settings)), True
    # What Dask says of lost workers here, outcomes of ranks say as well, in words of their own. It gives its client a
    # level, too.
    levels = {logger: logger.level for logger in map(logging.getLogger, ("distributed", "distributed.client"))}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        with ExitStack() as started:
            yield DaskEngine(home, where, lambda: started.enter_context(client), is_shared=is_shared)
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
