"""Clients of Dask's scheduler: one started here, one somewhere, one in a Slurm job; none without TLS."""

from __future__ import annotations

import atexit
import logging
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, Scheduler, SchedulerPlugin, Security, Worker
from distributed.deploy.spec import close_clusters

from traceviz_dag.errors import BadInputError, ClusterError
from traceviz_dag.pipeline.cluster.settings import ClusterSettings, SlurmSettings
from traceviz_dag.pipeline.cluster.slurm import private_folder, slurm_job
from traceviz_dag.pipeline.workers import LOGS
from traceviz_dag.read.toml_file import parse_json, read_text

_LOOPBACK = "127.0.0.1"
_CONNECT_SECONDS = 30
_DASK_RUNS_ALL = "whoever reaches a scheduler of Dask without TLS runs programs as you"
_NAME_FILES = "name ca_file, cert_file and key_file in a TOML file, see docs/cluster.md"

_CONFIGURATION = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,
    # Dask's loop and a rank share an interpreter: fifty looks a second at whether it is late took a tenth of a rank's
    # time where workers are more than cores.
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
    # A worker holds one rank, whose memory is not Dask's to move.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    # Nothing is imported from the folder that workers start in. Dask would have freed memory returned at once, and the
    # thread of a rank a heap of its own: getting pages anew took as long again as reading a rank.
    "distributed.nanny.pre-spawn-environ": {
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
        "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
    },
}
"""Dask's configuration of clusters that are started here or in a Slurm job."""


def dask_setup(worker: Worker) -> None:
    """Called by Dask as a local worker starts. Ctrl-C reaches the whole group: whoever started workers ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _begun(**options: Any) -> LocalCluster:
    """A cluster of this machine; Ctrl-C while it begins ends its workers with this process."""
    try:
        return LocalCluster(**options)
    except (KeyboardInterrupt, SystemExit):
        # Dask would close, at exit, what began in part, and fail; and of each worker that ends its task would complain.
        atexit.unregister(close_clusters)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        raise


@contextmanager
def local(workers: int) -> Iterator[Client]:
    """Worker processes of this machine, on loopback."""
    with (
        # A rank that kills its worker is tried once more, alone, as in the pool without a cluster.
        dask.config.set({**_CONFIGURATION, "distributed.scheduler.allowed-failures": 0}),
        _begun(
            n_workers=workers,
            threads_per_worker=1,
            # The number of workers keeps to the memory; the one that needs more may take what others leave.
            memory_limit=0,
            host=_LOOPBACK,
            protocol="tls",
            security=Security.temporary(),
            preload=[__name__],
            dashboard_address=None,
            # Its server of pages that are off takes any port: a second cluster would warn that the usual one is in use.
            scheduler_kwargs={"dashboard_address": f"{_LOOPBACK}:0"},
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def address_of(settings: ClusterSettings) -> tuple[str, Security]:
    """Where a scheduler listens, and the TLS files to reach it with.

    Raises:
        BadInputError: its file says no address.
        ClusterError: it is no address, goes without TLS, or the files are no TLS files.
    """
    address = settings.address or scheduler_address(Path(settings.scheduler_file))
    scheme, _, host = address.rpartition("://")
    address = f"{scheme or 'tls'}://{host}"
    if scheme not in ("", "tls"):
        raise ClusterError(address, f"{_DASK_RUNS_ALL}, and this one has none", "start it with --protocol tls")
    if not host.rpartition(":")[2].isdecimal():
        fault = "is not the address of a scheduler, HOST:PORT"
        raise ClusterError(settings.address, fault, "name that, local, or a file *.toml, see docs/cluster.md")
    files = {
        name: value
        for name, value in (
            ("tls_ca_file", settings.ca_file),
            ("tls_client_cert", settings.cert_file),
            ("tls_client_key", settings.key_file),
        )
        if value
    }
    security = Security(require_encryption=True, **files)
    if not (security.tls_ca_file and security.tls_client_cert):
        raise ClusterError(address, f"{_DASK_RUNS_ALL}, and no TLS files are named", _NAME_FILES)
    try:
        security.get_connection_args("client")
    except OSError as error:
        raise ClusterError(address, f"its TLS files cannot be used ({error})", _NAME_FILES) from None
    return address, security


def scheduler_address(path: Path) -> str:
    """The address that a scheduler wrote into its file.

    Raises:
        BadInputError: there is none.
    """
    document = parse_json(read_text(path), path)
    address = document.get("address") if isinstance(document, dict) else None
    if not isinstance(address, str):
        raise BadInputError(path, "says no address", "name the file that dask scheduler --scheduler-file writes")
    return address


@contextmanager
def connected(address: str, security: Security) -> Iterator[Client]:
    """A scheduler that somebody else started.

    Raises:
        ClusterError: it does not answer.
    """
    try:
        client = Client(address, security=security, timeout=_CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        remedy = "check that it runs there, and that its TLS files have the same authority"
        raise ClusterError(address, f"no scheduler answers ({reason})", remedy) from error
    with client:
        yield client


class EndsWithClient(SchedulerPlugin):  # type: ignore[misc]
    """Ends a scheduler once its client is gone, also one that was killed; until then it is never idle for too long."""

    async def start(self, scheduler: Scheduler) -> None:
        """Called by Dask in the scheduler."""
        self._scheduler = scheduler
        scheduler.idle_timeout = math.inf

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Called by Dask when a client has gone."""
        if not any(name.startswith("Client-") for name in scheduler.clients):
            scheduler.loop.add_callback(scheduler.close)


@contextmanager
def on_slurm(settings: SlurmSettings, home: Path, tell: Callable[[str], None]) -> Iterator[Client]:
    """Scheduler and workers in a Slurm job, which ends with this."""
    tls = Security.temporary()
    configuration = {
        **_CONFIGURATION,
        # As options of Dask's commands they exclude the one for the interface.
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": tls.tls_ca_file,
        **{f"distributed.comm.tls.{role}.cert": tls.tls_client_cert for role in ("scheduler", "worker")},
        **{f"distributed.comm.tls.{role}.key": tls.tls_client_key for role in ("scheduler", "worker")},
    }
    with (
        private_folder(home) as folder,
        slurm_job(settings, folder, home / LOGS, configuration, tell) as file,
        connected(scheduler_address(file), tls) as client,
    ):
        client.register_plugin(EndsWithClient())
        yield client
