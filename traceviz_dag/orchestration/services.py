"""The processes of ``traceviz dev``: a code server, our guarded web server and Dagster's daemon, which end together."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from traceviz_dag.errors import TracevizError, UsageError
from traceviz_dag.system.whole_files import scratch_folder

DEFINITIONS = "traceviz_dag.definitions"

_LOOK_SECONDS = 0.5
_END_SECONDS = 15.0
_TEMPORARY_FOLDER = "TMPDIR"
_LONGEST_FOLDER_OF_SOCKETS = 85
"""Bytes; the name of a socket with its path has at most 103 on some systems."""


class ServiceError(TracevizError):
    """One of the processes ended by itself, so the others were ended too."""


def run_services(packages: Path, port: int, host: str, environment: Mapping[str, str]) -> None:
    """Run code server, web server and daemon until this process is asked to stop.

    Args:
        packages: the folder that our own packages are imported from.
        port, host: of the web server.
        environment: of the processes; names the home.

    Raises:
        UsageError: another program listens there already.
        ServiceError: one of them ended by itself.
    """
    _check_free(host, port)
    environment = {**environment, "PYTHONSAFEPATH": "1"}
    with scratch_folder() as folder, _temporary_files_in(folder):
        workspace, listening = folder / "workspace.yaml", folder / "code"
        server = {"socket": str(listening), "location_name": DEFINITIONS}
        # JSON is YAML, too.
        workspace.write_text(json.dumps({"load_from": [{"grpc_server": server}]}), encoding="utf-8")
        python, scripts = [sys.executable, "-m"], Path(sys.executable).parent
        code = [
            *(*python, "dagster", "code-server", "start", "--socket", str(listening), "--location-name", DEFINITIONS),
            *("--module-name", DEFINITIONS, "--working-directory", str(packages), "--log-level", "warning"),
            *("--use-python-environment-entry-point", "--inject-env-vars-from-instance"),
        ]
        others = {
            "web server": [
                *(*python, "traceviz_dag.commands.main", "webserver"),
                *("--workspace", str(workspace), "--port", str(port), "--host", host),
            ],
            "daemon": [str(scripts / "dagster-daemon"), "run", "--workspace", str(workspace)],
        }
        with _processes({"code server": code}, environment) as first:
            while not _answers(listening):
                _check_running(first)
                time.sleep(_LOOK_SECONDS)
            with _processes(others, environment) as running:
                while True:
                    _check_running({**first, **running})
                    time.sleep(_LOOK_SECONDS)


def _check_running(processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    for name, process in processes.items():
        if process.poll() is not None:
            raise ServiceError(f"the {name} ended with exit code {process.returncode}; its own lines above say why")


def _answers(listening: Path) -> bool:
    """Whether a server takes connections on this socket."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(listening))
        except OSError:
            return False
    return True


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Have this process, and those that it starts, make temporary files in a folder that somebody removes.

    Dagster's sockets would stay where all of them are killed. A place that is too deep for sockets is left alone.
    """
    if len(os.fsencode(folder)) > _LONGEST_FOLDER_OF_SOCKETS:
        yield
        return
    former = os.environ.get(_TEMPORARY_FOLDER)
    os.environ[_TEMPORARY_FOLDER] = tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = None
        if former is None:
            del os.environ[_TEMPORARY_FOLDER]
        else:
            os.environ[_TEMPORARY_FOLDER] = former


def _check_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As the server does it: connections of an earlier one that are still closing are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host} port {port}: {error.strerror}; name another with --port"
            ) from None


@contextmanager
def _processes(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The commands as processes, which end with the block: asked first, killed where that does not help."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            running[name] = subprocess.Popen(command, env={**os.environ, **environment})
        yield running
    finally:
        for process in running.values():
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _END_SECONDS
        for process in running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
