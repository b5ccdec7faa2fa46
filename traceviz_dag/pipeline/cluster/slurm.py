"""Jobs of Slurm that last as long as somebody uses them, such as one that holds a Dask scheduler and its workers."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from traceviz_dag.errors import ClusterError
from traceviz_dag.pipeline.cluster.fitness import FOLDER, is_old
from traceviz_dag.pipeline.cluster.settings import SlurmSettings
from traceviz_dag.system.processes import run_program
from traceviz_dag.system.whole_files import scratch_folder

SCHEDULER_FILE = "scheduler.json"
_LOOK_SECONDS = 1.0
_ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "REQUEUED", "SUSPENDED", "UNKNOWN")

_SLURMS = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SCANCEL_")
_KEPT = {"SLURM_CONF", *(f"SBATCH_{name}" for name in ("ACCOUNT", "PARTITION", "QOS", "RESERVATION", "CONSTRAINT"))}

_DASK = """set -u
export PYTHONSAFEPATH=1
{environment}
dask=(--scheduler-file {file} --protocol tls --no-dashboard --dashboard-address 127.0.0.1:0{interface})
srun --export=ALL --overlap --ntasks=1 --cpus-per-task=1 --mem=0 \\
    {python} -m distributed.cli.dask_scheduler "${{dask[@]}}" --port 0 --idle-timeout "10 minutes" &
scheduler=$!
until [ -s {file} ]; do
    kill -0 "$scheduler" 2>/dev/null || exit 1
    sleep 0.5
done
srun --export=ALL --overlap --ntasks={workers} --cpus-per-task={ranks} --mem-per-cpu={memory} \\
    --kill-on-bad-exit=0 {python} -m distributed.cli.dask_worker "${{dask[@]}}" --nworkers {ranks} --nthreads 1 \\
    --memory-limit {memory} --death-timeout 60 --local-directory "${{TMPDIR:-/tmp}}" &
wait "$scheduler"
"""


def _dask(settings: SlurmSettings, folder: Path, configuration: Mapping[str, object]) -> str:
    """What the job of scheduler and workers runs.

    Args:
        folder: will hold ``SCHEDULER_FILE``; workers see it, too.
        configuration: of Dask, name → value. With the keys of TLS: whoever may write to the home could put others into
            the folder, and Slurm shows a script to its owner and to administrators alone.
    """
    exports = [
        f"{name.replace('.', '__').replace('-', '_').upper()}={shlex.quote(str(value))}"
        for name, value in configuration.items()
    ]
    return _DASK.format(
        python=shlex.quote(sys.executable),
        environment="\n".join(f"export DASK_{each}" for each in exports),
        file=shlex.quote(str(folder / SCHEDULER_FILE)),
        interface=f" --interface {shlex.quote(settings.interface)}" if settings.interface else "",
        workers=settings.workers,
        ranks=settings.ranks_per_worker,
        memory=settings.memory,
    )


@contextmanager
def private_folder(home: Path) -> Iterator[Path]:
    """A folder in the home that nobody else may read, for what a job needs; those of killed processes are removed."""
    try:
        with scratch_folder(home / FOLDER, _has_no_job) as folder:
            yield folder
    finally:
        with suppress(OSError):
            (home / FOLDER).rmdir()


def _has_no_job(folder: Path) -> bool:
    """Whether a folder is none that a job of its name needs, or one to come: not each file system locks folders."""
    if not is_old(folder):
        return False
    asked = run_program(["squeue", "--noheader", f"--name={_name(folder)}"], _environment())
    return not (asked.returncode or asked.stdout.strip())


def _name(folder: Path) -> str:
    """What the job of a folder is called."""
    return f"traceviz-{folder.name}"


class SlurmJob:
    """A job that was submitted.

    Args:
        log: what it says. tell: is told why it waits.
    """

    def __init__(self, number: str, log: Path, tell: Callable[[str], None]) -> None:
        self.number = number
        self.log = log
        self._tell = tell
        self._told = ""

    def states(self) -> set[str]:
        """States of its tasks; empty once all have ended."""
        command = ["squeue", "--noheader", "--jobs", self.number, "--format", "%T %r"]
        asked = run_program(command, _environment())
        # A controller that does not answer has not ended the job.
        is_unknown = asked.returncode and "Invalid job id" not in asked.stderr
        lines = [f"UNKNOWN {_last_line(asked.stderr)}"] if is_unknown else asked.stdout.splitlines()
        reasons = {state: reason for state, _, reason in (line.partition(" ") for line in lines) if state in _ALIVE}
        for reason in reasons.values() if "RUNNING" not in reasons else ():
            if reason not in ("", "None", self._told):
                self._told = reason
                self._tell(f"Slurm job {self.number} waits: {reason}")
        return {*reasons}


@contextmanager
def submitted(
    settings: SlurmSettings,
    folder: Path,
    options: Sequence[str],
    commands: str,
    logs: Path,
    tell: Callable[[str], None],
    log_number: str = "%j",
) -> Iterator[SlurmJob]:
    """Submit a job, and cancel it at the end.

    Args:
        folder: of this job alone, which is called by its name. commands: of bash.
        options: of sbatch, beside those that jobs share.
        logs: folder for what the job says. tell: is told the job's number, and why it waits.
        log_number: how Slurm writes the number that the log is called by.

    Raises:
        ClusterError: there is no Slurm, or it refuses the job.
    """
    if not shutil.which("sbatch"):
        raise ClusterError("Slurm", "there is no sbatch here", "run this where jobs are submitted")
    logs.mkdir(parents=True, exist_ok=True)
    name = _name(folder)
    if "\\" in str(logs):
        raise ClusterError(str(logs), "has a backslash in its path, and Slurm writes no logs there", "use another home")
    output = f"{str(logs).replace('%', '%%')}/slurm_{log_number}.log"
    # As arguments, not in the script, where # and quotes mean something.
    command = [
        *("sbatch", "--parsable", f"--job-name={name}", f"--output={output}"),
        *(f"--mem-per-cpu={settings.memory}", f"--time={settings.time}"),
        *(f"--{key}={value}" for key in ("partition", "account") if (value := getattr(settings, key))),
        *options,
        *settings.options,
    ]
    with ExitStack() as until_its_end:
        # By its name: whoever stops this while it is submitted never learns its number.
        until_its_end.callback(_cancel, name, tell)
        # Not as a file: whoever may write to the home could put another one there.
        asked = run_program(command, _environment(), f"#!/bin/bash\n{commands}")
        number = asked.stdout.strip().partition(";")[0]
        if asked.returncode:
            until_its_end.pop_all()  # there is none to cancel
        if asked.returncode or not number.isdecimal():
            raise ClusterError("Slurm", f"refuses the job ({_last_line(asked.stderr)})", "correct [slurm]")
        log = logs / f"slurm_{number}.log"
        tell(f"Slurm job {number} writes to {log}")
        yield SlurmJob(number, log, tell)


def _cancel(name: str, tell: Callable[[str], None]) -> None:
    asked = run_program(["scancel", f"--name={name}"], _environment())
    if asked.returncode:
        tell(f"cannot cancel the job ({_last_line(asked.stderr)}): call scancel --name={name}")


def _environment() -> dict[str, str]:
    """Ours, without what a job that this runs in was given, and without options of Slurm's commands but for those of
    who pays and where: others make a job that is not the one that is watched, or change the answers."""
    return {name: os.environ[name] for name in os.environ if name in _KEPT or not name.startswith(_SLURMS)}


@contextmanager
def slurm_job(
    settings: SlurmSettings,
    folder: Path,
    logs: Path,
    configuration: Mapping[str, object],
    tell: Callable[[str], None],
) -> Iterator[Path]:
    """A scheduler of Dask and its workers in a job, which has begun and is cancelled at the end.

    Args:
        folder, logs, tell: as ``submitted``. configuration: of Dask, with the keys of TLS.

    Yields:
        The scheduler's file.

    Raises:
        ClusterError: there is no Slurm, it refuses the job, or the job ends before its scheduler runs.
    """
    options = [f"--ntasks={settings.workers}", f"--cpus-per-task={settings.ranks_per_worker}"]
    found = folder / SCHEDULER_FILE
    with submitted(settings, folder, options, _dask(settings, folder, configuration), logs, tell) as job:
        while not (found.is_file() and found.stat().st_size):
            if not job.states():
                raise ClusterError(f"Slurm job {job.number}", "ended before its scheduler ran", f"see {job.log}")
            time.sleep(_LOOK_SECONDS)
        yield found


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "no reason given"
