"""Kineto traces as files: which names they bear, how they begin, and how they end once they are whole."""

from __future__ import annotations

from pathlib import Path

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.kineto.peek import is_trace
from traceviz_dag.read.path_names import rank_of
from traceviz_dag.read.sources import ByteSource
from traceviz_dag.system.stand_ins import stand_in

_TRACE_SUFFIXES = (".trace.json", ".trace.json.gz")
_TAIL_BYTES = 64
_BLOCK_BYTES = 1 << 20


class KinetoFiles:
    """The JSON that torch.profiler exports, plain or gzip. The attributes are those of ``FileFormat``."""

    name = "kineto"
    title = "PyTorch traces"
    suffixes: tuple[str, ...] = (".json", ".json.gz")
    folder_mark: str | None = None
    detectable_while_writing = True
    remedy = "give a Kineto trace as torch.profiler exports it"

    def recognises(self, path: Path) -> bool:
        """Whether a file is a trace by its name (which a damaged one keeps), else by its first bytes."""
        name = path.name.lower()
        return name.endswith(_TRACE_SUFFIXES) or rank_of(path) is not None or is_trace(path)

    def stands_aside(self, path: Path) -> bool:
        """No other file holds the same."""
        return False

    def is_whole(self, path: Path) -> bool:
        """Whether a file was written to its end: JSON closes its last bracket, gzip its stream."""
        if stand_in(path) is not None:
            return True  # An object appears once all of it is there.
        try:
            with ByteSource(path) as source:
                if not source.compressed:
                    return _last_byte(path) in {b"}", b"]"}
                block = memoryview(bytearray(_BLOCK_BYTES))
                while source.readinto(block):
                    pass
                return source.fault is None
        except BadInputError:
            return False


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().rstrip()[-1:]
