"""A scheduler of Dask and its workers as others start them: programs of their own, with TLS files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from distributed import Security

SECONDS = 60.0
"""On a machine that does nothing else all that is waited for takes less than ten."""


def waited_for(seen: Callable[[], object], seconds: float = SECONDS) -> bool:
    until = time.monotonic() + seconds
    while not seen() and time.monotonic() < until:
        time.sleep(0.1)
    return bool(seen())


def tables(home: Path) -> dict[str, bytes]:
    """Name → bytes of each file of a lake."""
    return {str(path.relative_to(home)): path.read_bytes() for path in (home / "lake").rglob("*.parquet")}


class Servers:
    """Starts programs that end with the test; ``settings`` is the TOML file that names the scheduler."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self._running = running
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.settings = folder / "cluster.toml"
        security = Security.temporary()
        texts = {"ca": security.tls_ca_file, "cert": security.tls_client_cert, "key": security.tls_client_key}
        for name, text in texts.items():
            (folder / f"{name}.pem").write_text(text)
        files = "".join(f'{name}_file = "{name}.pem"\n' for name in texts)
        self.settings.write_text(f'scheduler_file = "scheduler.json"\n{files}')
        self.scheduler = self.start("scheduler", "--port", "0", "--no-dashboard", "--host", "tls://127.0.0.1")
        assert waited_for(lambda: self.file.exists() and self.file.stat().st_size), self.said("scheduler")

    def start(self, kind: str, *options: str, before: tuple[str, ...] = (), name: str = "") -> subprocess.Popen[bytes]:
        files = {"ca-file": "ca.pem", "cert": "cert.pem", "key": "key.pem"}
        tls = [f"--tls-{option}={self.folder / file}" for option, file in files.items()]
        command = [*before, sys.executable, "-m", f"distributed.cli.dask_{kind}", f"--scheduler-file={self.file}", *tls]
        log = self._running.enter_context((self.folder / f"{name or kind}.log").open("wb"))
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        process = subprocess.Popen(
            [*command, *options], env=environment, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
        )
        self._running.callback(_end, process)
        return process

    def worker(self, name: str, *options: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        alone = ("--name", name, "--nthreads=1", "--no-dashboard", "--host=127.0.0.1")
        started = self.start("worker", *alone, *options, before=before, name=name)
        assert waited_for(lambda: "Registered to" in self.said(name)), self.said(name)
        return started

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


@contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    folder.mkdir()
    with ExitStack() as running:
        yield Servers(folder, running)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
