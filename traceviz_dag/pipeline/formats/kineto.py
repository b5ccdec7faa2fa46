"""Kineto traces, torch.profiler's JSON, as a source of the pipeline."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from traceviz_dag.pipeline.formats.one_rank_a_file import OneRankAFile
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.read.events import TraceEvents, TraceHeader, TracePeek
from traceviz_dag.read.kineto.files import KinetoFiles
from traceviz_dag.read.kineto.memory import read_memory
from traceviz_dag.read.kineto.peek import peek, peek_header
from traceviz_dag.read.kineto.reader import read_kineto, told
from traceviz_dag.read.layouts import TraceFile
from traceviz_dag.read.placement import Identity, identity_of_kineto
from traceviz_dag.read.regular_file import open_stream
from traceviz_dag.read.sample import sample_events

_GZIP_MAGIC = b"\x1f\x8b"


class KinetoFormat(KinetoFiles, OneRankAFile):
    """The JSON that torch.profiler exports, plain or gzip."""

    perfetto_imports = True
    rank_field = "distributedInfo"

    def peek(self, path: Path) -> TracePeek:
        """Stream a trace once.

        Raises:
            BadInputError: the file is missing, empty or no trace.
        """
        return peek(path)

    def read(self, path: Path) -> TraceEvents:
        """Read a trace.

        Raises:
            BadInputError: nothing of the file can be used.
        """
        return read_kineto(path)

    def header(self, path: Path) -> TraceHeader:
        """The header, from the text before the events where it says enough.

        Raises:
            BadInputError: the file is missing, empty or no trace.
        """
        return peek_header(path)

    def identity(self, file: TraceFile) -> Identity:
        """What a trace shows of its place; its steps only where its path names no iteration.

        Raises:
            BadInputError: the file is missing, empty or no trace.
        """
        return identity_of_kineto(file)

    def fault(self, path: Path, peeked: TracePeek) -> str | None:
        """What keeps a trace from being read wholly, as far as its end and its first events show."""
        if peeked.fault is not None:
            return peeked.fault
        sample = sample_events(path)
        if not sample.dropped:
            return None
        return f"of its first {sample.events:,} events some cannot be used: {told(sample.dropped)}"

    def memory(self, trace: RankTrace) -> pa.Table:
        """What each device has allocated over time, from the trace's memory events."""
        return read_memory(trace.path)

    def word(self, path: Path) -> str:
        """Whether the file is gzip, by its first bytes."""
        with open_stream(path) as file:
            return "kineto_json_gz" if file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC else "kineto_json"
