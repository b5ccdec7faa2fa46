"""A real store of objects, SeaweedFS, on loopback; it may be killed and started anew on what it had."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

_SECONDS = 60
_ASKED = (("PUT", "bucket"), ("PUT", "bucket/ready"), ("GET", "bucket/ready"))
_PARTS = ("master", "volume", "filer", "s3")


class Seaweed:
    """One server with a bucket named ``bucket``.

    Args:
        folder: of its files.

    Attributes:
        port: where it speaks S3.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "files").mkdir(parents=True)
        taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(2 * len(_PARTS))]
        ports = [each.getsockname()[1] for each in taken]
        for each in taken:
            each.close()
        self._ports = {f"{name}.port": port for name, port in zip(_PARTS, ports, strict=False)}
        self._ports |= {f"{name}.port.grpc": port for name, port in zip(_PARTS, ports[len(_PARTS) :], strict=True)}
        self.port = self._ports["s3.port"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it has the bucket."""
        program = Path(sys.executable).with_name("weed")
        options = {"dir": self._folder / "files", "ip": "127.0.0.1", "ip.bind": "127.0.0.1", **self._ports}
        options |= {"s3.port.iceberg": 0, "s3.port.lance": 0, "master.telemetry": "false"}
        options |= {"master.volumeSizeLimitMB": 64, "volume.max": 20}
        command = [program, "server", "-s3", "-filer", *(f"-{name}={value}" for name, value in options.items())]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder, env={})
        end = time.monotonic() + _SECONDS
        while not self._has_bucket():
            assert time.monotonic() < end, (self._folder / "log").read_text()[-2000:]
            time.sleep(0.3)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _has_bucket(self) -> bool:
        # An object, too: the part that holds them comes last.
        return all(self._answers(method, path) for method, path in _ASKED)

    def _answers(self, method: str, path: str) -> bool:
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", b"1" * (method == "PUT"), method=method)
        try:
            with urllib.request.urlopen(asked, timeout=5) as answer:
                return bool(answer.read()) or method == "PUT"
        except urllib.error.HTTPError as error:
            return error.code == 409  # It is there.
        except OSError:
            return False
