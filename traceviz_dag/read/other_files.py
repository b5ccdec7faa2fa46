"""Files that are no Kineto traces: what they are by their first bytes, and which command reads them."""

from __future__ import annotations

import shlex
from pathlib import Path

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.sources import ByteSource
from traceviz_dag.read.topology_file import is_topology_name

_TRACE = "give a Kineto trace as torch.profiler exports it"
_KNOWN: tuple[tuple[bytes, str, str], ...] = (
    (b"PAR1", "a Parquet file, not a trace", f"{_TRACE}; traceviz sql asks the tables of a home"),
    (b"SQLite format 3\0", "a SQLite database, not a JSON trace", "name it .sqlite if nsys export wrote it"),
    (b"\x89PNG", "a picture (PNG), not a trace", _TRACE),
    (b"%PDF", "a PDF, not a trace", _TRACE),
    (b"PK\x03\x04", "a ZIP archive, not a trace", "unpack it, and name the folder"),
    (b"<svg", "a picture (SVG), not a trace", _TRACE),
    (b"<?xml", "an XML file, not a trace", _TRACE),
)
_PERFETTO_SUFFIXES = (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz")
_PACKET = b"\x0a"
_PICKLE = b"\x80"
_HEAD_BYTES = 64


def not_a_trace(path: Path, fault: str) -> BadInputError:
    """What to say of a file that holds no Kineto events.

    Args:
        fault: what the reader found wrong with it, for a file of a kind that nothing else shows.
    """
    if is_topology_name(path.name):
        folder = shlex.quote(str(path.parent))
        remedy = f"traceviz topology {folder} reads it together with the traces"
        return BadInputError(path, "the process groups of a run, not a trace", remedy)
    head = _head(path)
    if path.name.lower().endswith(_PERFETTO_SUFFIXES) and head.startswith(_PACKET):
        remedy = f"traceviz perfetto open {shlex.quote(str(path))} shows it"
        return BadInputError(path, "a Perfetto trace, not a Kineto trace", remedy)
    if head.startswith(_PICKLE):
        remedy = f"if it is one of GPU memory, traceviz memory summary {shlex.quote(str(path))} reads it"
        return BadInputError(path, "a Python pickle, such as a memory snapshot of torch.cuda, not a trace", remedy)
    for magic, what, remedy in _KNOWN:
        if head.startswith(magic):
            return BadInputError(path, what, remedy)
    return BadInputError(path, fault, _TRACE)


def is_kineto_like(path: Path) -> bool:
    """Whether a file, inflated where it is gzip, begins as JSON does."""
    return _head(path).lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))


def _head(path: Path) -> bytes:
    try:
        with ByteSource(path) as source:
            buffer = bytearray(_HEAD_BYTES)
            return bytes(buffer[: source.readinto(memoryview(buffer))])
    except BadInputError:
        return b""
