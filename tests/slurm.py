"""A Slurm of one node on loopback, with its own munge, for as long as a test needs it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_START_SECONDS = 60.0


def missing() -> list[str]:
    """Programs of Slurm that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]


@contextmanager
def slurm(folder: Path, cores: int = 4) -> Iterator[dict[str, str]]:
    """Start it; yields the environment that its commands need. Whatever it started is gone at the end."""
    folder.mkdir(mode=0o700, parents=True)
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    # Names of sockets are short, and munge refuses folders that others may write.
    key, conf, munge = folder / "munge.key", folder / "slurm.conf", Path(f"/run/munge-{secrets.token_hex(4)}")
    munge.mkdir(mode=0o755)
    key.write_bytes(secrets.token_bytes(64))
    key.chmod(0o400)
    conf.write_text(
        f"""ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}/socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={_free_port()}
SlurmdPort={_free_port()}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1
KillWait=10
ReturnToService=2
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cores} RealMemory=16000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
    )
    environment = {**os.environ, "SLURM_CONF": str(conf), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    with ExitStack() as running:
        running.callback(shutil.rmtree, munge, ignore_errors=True)
        started = [
            ["munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={key}"]
            + [f"--{name}={munge}/{name}" for name in ("pid-file", "log-file", "seed-file")],
            ["slurmctld", "-D", "-f", str(conf)],
            ["slurmd", "-D", "-f", str(conf), "-N", "localhost"],
        ]
        for command in started:
            log = running.enter_context((folder / f"{command[0]}.out").open("wb"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            running.callback(_end, process)
            time.sleep(1)
        running.callback(_end_jobs, environment, folder / "spool")
        until = time.monotonic() + _START_SECONDS
        while "idle" not in _said(environment, "sinfo", "--noheader", "--format", "%T"):
            assert time.monotonic() < until, "\n".join(path.read_text() for path in folder.glob("*.[lo][ou][gt]"))
            time.sleep(0.5)
        yield environment


def _said(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60).stdout


def _end_jobs(environment: dict[str, str], sockets: Path) -> None:
    """Each step has a process, which leaves the session of slurmd, and a socket as long as it lives."""
    _said(environment, "scancel", "--user=root")
    until = time.monotonic() + 20
    while _said(environment, "squeue", "--noheader").strip() or any(sockets.glob("localhost_*")):
        assert time.monotonic() < until, [path.name for path in sockets.iterdir()]
        time.sleep(0.5)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
