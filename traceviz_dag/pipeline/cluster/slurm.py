"""A Slurm job that holds a Dask scheduler and its workers, for as long as somebody uses it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from traceviz_dag.errors import ClusterError
from traceviz_dag.pipeline.cluster.settings import SlurmSettings
from traceviz_dag.system.processes import run_program

SCHEDULER_FILE = "scheduler.json"
TLS_FILES = ("ca_file", "cert_file", "key_file")
_TLS = {
    "distributed.comm.require-encryption": "True",
    "distributed.comm.tls.ca-file": "ca_file",
    "distributed.comm.tls.scheduler.cert": "cert_file",
    "distributed.comm.tls.scheduler.key": "key_file",
    "distributed.comm.tls.worker.cert": "cert_file",
    "distributed.comm.tls.worker.key": "key_file",
}
"""Dask's configuration, as its options for TLS exclude the one for the interface."""

_LOOK_SECONDS = 1.0

_SCRIPT = """#!/bin/bash
{directives}
set -u
export PYTHONSAFEPATH=1
{environment}
dask=(--scheduler-file {file} --no-dashboard --dashboard-address 127.0.0.1:0{interface})
srun --overlap --ntasks=1 --cpus-per-task=1 --mem=0 \\
    {python} -m distributed.cli.dask_scheduler "${{dask[@]}}" --port 0 --idle-timeout "10 minutes" &
scheduler=$!
until [ -s {file} ]; do
    kill -0 "$scheduler" 2>/dev/null || exit 1
    sleep 0.5
done
srun --overlap --ntasks={workers} --cpus-per-task={ranks} --mem-per-cpu={memory} --kill-on-bad-exit=0 \\
    {python} -m distributed.cli.dask_worker "${{dask[@]}}" --nworkers {ranks} --nthreads 1 \\
    --memory-limit {memory} --death-timeout 60 --local-directory "${{TMPDIR:-/tmp}}" &
wait "$scheduler"
"""


def script(settings: SlurmSettings, folder: Path, log: Path, configuration: Mapping[str, object]) -> str:
    """The script for sbatch.

    Args:
        folder: holds TLS files by the names ``TLS_FILES``, and will hold ``SCHEDULER_FILE``; workers see it, too.
        log: what scheduler and workers say; ``%j`` in it is the job's number.
        configuration: of Dask, name → value.
    """
    options = [
        "--job-name=traceviz",
        f'--output="{log}"',
        f"--ntasks={settings.workers}",
        f"--cpus-per-task={settings.ranks_per_worker}",
        f"--mem-per-cpu={settings.memory}",
        f"--time={settings.time}",
        *(f"--{name}={value}" for name in ("partition", "account") if (value := getattr(settings, name))),
        *settings.options,
    ]
    dask = {**configuration, **{name: str(folder / file) if file in TLS_FILES else file for name, file in _TLS.items()}}
    exports = [f"{name.replace('.', '__').replace('-', '_').upper()}={shlex.quote(str(dask[name]))}" for name in dask]
    return _SCRIPT.format(
        directives="\n".join(f"#SBATCH {option}" for option in options),
        python=shlex.quote(sys.executable),
        environment="\n".join(f"export DASK_{each}" for each in exports),
        file=shlex.quote(str(folder / SCHEDULER_FILE)),
        interface=f" --interface {shlex.quote(settings.interface)}" if settings.interface else "",
        workers=settings.workers,
        ranks=settings.ranks_per_worker,
        memory=settings.memory,
    )


@contextmanager
def slurm_job(
    settings: SlurmSettings,
    folder: Path,
    logs: Path,
    tls: Mapping[str, str],
    configuration: Mapping[str, object],
    tell: Callable[[str], None],
) -> Iterator[Path]:
    """Submit the job, wait until its scheduler runs, and cancel it at the end.

    Args:
        folder: of this job alone; nobody else may read it. logs: folder for what the job says.
        tls: name in ``TLS_FILES`` → text. configuration: of Dask. tell: is told the job's number, and why it waits.

    Yields:
        The scheduler's file.

    Raises:
        ClusterError: there is no Slurm, it refuses the job, or the job ends before its scheduler runs.
    """
    if not shutil.which("sbatch"):
        raise ClusterError("Slurm", "there is no sbatch here", "run this where jobs are submitted")
    folder.mkdir(parents=True, mode=0o700)
    logs.mkdir(parents=True, exist_ok=True)
    job = ""
    try:
        for name in TLS_FILES:
            # The key is written by its owner's rights from the first byte on.
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(tls[name])
        (folder / "job.sh").write_text(script(settings, folder, logs / "slurm_%j.log", configuration))
        # Within a job, settings of that job would hold for this one, too.
        kept = {name: os.environ[name] for name in os.environ if name[:6] != "SLURM_" or name == "SLURM_CONF"}
        submitted = run_program(["sbatch", "--parsable", str(folder / "job.sh")], kept)
        if submitted.returncode:
            raise ClusterError("Slurm", f"refuses the job ({_last_line(submitted.stderr)})", "correct [slurm]")
        job = submitted.stdout.strip().partition(";")[0]
        log = logs / f"slurm_{job}.log"
        tell(f"Slurm job {job}; scheduler and workers write to {log}")
        _wait(job, folder / SCHEDULER_FILE, log, tell)
        yield folder / SCHEDULER_FILE
    finally:
        if job:
            run_program(["scancel", job])
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()


def _wait(job: str, file: Path, log: Path, tell: Callable[[str], None]) -> None:
    told = ""
    while not (file.is_file() and file.stat().st_size):
        asked = run_program(["squeue", "--noheader", "--jobs", job, "--format", "%T %r"])
        state, _, reason = asked.stdout.strip().partition(" ")
        if state not in ("PENDING", "CONFIGURING", "RUNNING", "REQUEUED", "SUSPENDED"):
            # A controller that does not answer has not ended the job.
            if asked.returncode == 0 or "Invalid job id" in asked.stderr:
                raise ClusterError(f"Slurm job {job}", "ended before its scheduler ran", f"see {log}")
            reason = _last_line(asked.stderr)
        if state != "RUNNING" and reason not in ("", "None", told):
            told = reason
            tell(f"Slurm job {job} waits: {reason}")
        time.sleep(_LOOK_SECONDS)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "no reason given"
