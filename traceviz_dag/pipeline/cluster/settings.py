"""Which cluster, and how it is reached or started: a TOML file of the user."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.toml_file import read_toml

REMEDY = "see docs/cluster.md for what it may hold"
_Line = Annotated[str, msgspec.Meta(pattern=r"^[^\r\n]*$", max_length=4096)]
_Counted = Annotated[int, msgspec.Meta(ge=1, le=10**6)]


class SlurmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Slurm job that holds scheduler and workers, or the job array.

    Attributes:
        array: a job array, which opens no port, and needs no Dask.
        workers: Slurm tasks. ranks_per_worker: ranks side by side in each, a processor for each.
        memory: of a rank, as Slurm writes it. time: limit of the job, as Slurm writes it.
        partition, account: of Slurm; empty takes its default.
        options: further options of sbatch.
        interface: of the network, for scheduler and workers; empty leaves it to Dask.
    """

    array: bool = False
    workers: _Counted = 1
    ranks_per_worker: _Counted = 1
    memory: Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,9}[MGT]\Z")] = "2G"
    time: Annotated[str, msgspec.Meta(pattern=r"^[0-9][0-9:-]{0,19}\Z")] = "01:00:00"
    partition: _Line = ""
    account: _Line = ""
    options: tuple[_Line, ...] = ()
    interface: _Line = ""


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster: the address of its scheduler, the file that says it, or a Slurm job to start.

    Attributes:
        address: as ``tls://HOST:8786``.
        scheduler_file: that ``dask scheduler --scheduler-file`` writes.
        ca_file, cert_file, key_file: of TLS (PEM); empty takes those of Dask's own configuration.
    """

    address: str = ""
    scheduler_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    slurm: SlurmSettings | None = None


_OPTION = re.compile(r"--[a-z][a-z-]*", re.ASCII)
_UNWATCHED = (
    "such a job would be neither watched nor cancelled",
    "leave it out; call this where jobs of that cluster are submitted",
)
_UNLOGGED = ("such a job would not write to its log in HOME/logs", "leave it out")
_NOT_OPTIONS = {
    **dict.fromkeys(("--array", "--clusters", "--job-name", "--quiet", "--wait", "--wrap"), _UNWATCHED),
    **dict.fromkeys(("--error", "--output"), _UNLOGGED),
}
"""Options of sbatch after which a job is not the one that is watched, or writes elsewhere → fault and remedy."""


def load_cluster(path: Path) -> ClusterSettings:
    """Read the file; paths in it are relative to its folder.

    Raises:
        BadInputError: it is missing, says something unknown, names no cluster or several, or a file that is not there.
    """
    try:
        settings = msgspec.convert(read_toml(path, REMEDY), ClusterSettings)
    except (msgspec.ValidationError, OverflowError) as error:
        raise BadInputError(path, str(error), REMEDY) from None
    named = [bool(settings.address), bool(settings.scheduler_file), settings.slurm is not None]
    if sum(named) != 1:
        raise BadInputError(path, "names no cluster, or several", "give it address, scheduler_file or [slurm]")
    if settings.slurm is not None and settings.slurm.array and settings.slurm.interface:
        raise BadInputError(path, "a job array listens on no interface", "leave out array or interface")
    for option in settings.slurm.options if settings.slurm is not None else ():
        name = option.partition("=")[0]
        if not _OPTION.fullmatch(name):
            raise BadInputError(path, f"{option} in options is not --NAME or --NAME=VALUE", "write it in this form")
        # sbatch takes the beginning of a name for the name.
        for other, (fault, remedy) in _NOT_OPTIONS.items():
            if other.startswith(name):
                raise BadInputError(path, f"{option} in options: {fault}", remedy)
    found = {}
    for name in ("scheduler_file", "ca_file", "cert_file", "key_file"):
        if value := getattr(settings, name):
            file = path.absolute().parent / value
            if not file.is_file():
                raise BadInputError(file, f"no such file, and {name} of {path} names it", "correct it there")
            found[name] = str(file)
    return msgspec.structs.replace(settings, **found)
