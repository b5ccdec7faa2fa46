"""A trace in Perfetto's trace processor: loaded exactly, with what the importer lost, and asked with PerfettoSQL."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.read.perfetto.engines import Engine, EngineKind, find_engine
from traceviz_dag.read.perfetto.exact_bytes import ExactBytes
from traceviz_dag.read.perfetto.results import decode_result, messages, query_arguments
from traceviz_dag.read.perfetto.server import TraceProcessorError, TraceProcessorServer
from traceviz_dag.read.sources import ByteSource
from traceviz_dag.system.stand_ins import stand_in

STATS_SQL = """
SELECT name, severity, source, sum(value) AS count, max(description) AS description
FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0
GROUP BY name, severity, source ORDER BY count DESC
"""
"""What the importer says that it could not take, or lost."""


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """One statement of the importer on what it dropped, moved or could not read.

    Attributes:
        name: of the statistic in Perfetto.
        severity: error or data_loss.
        count: how often.
        description: what Perfetto says of it; empty where it says nothing.
    """

    name: str
    severity: str
    count: int
    description: str

    def __str__(self) -> str:
        return f"{self.name}: {self.count}" + (f" ({self.description.split('. ')[0]})" if self.description else "")


class TraceSession:
    """A loaded trace.

    Attributes:
        engine: what loaded it.
        base_ns: what was subtracted from the time stamps of the file before loading; times of queries lack it.
        problems: what the importer lost; empty for a trace that was taken whole.
        read_fault: what kept the file from being read to its end; None where nothing did.
        process_id: of the trace processor; None for one that was already running.
    """

    def __init__(self, path: Path, server: TraceProcessorServer) -> None:
        self.path = path
        self.engine = server.engine
        self.process_id = server.process_id
        self.base_ns = 0
        self.read_fault: str | None = None
        self._server = server
        self._connection = http.client.HTTPConnection(server.address)
        self._load()
        self.problems = [
            ImportProblem(row["name"], row["severity"], int(row["count"]), row["description"] or "")
            for row in self.query(STATS_SQL).to_pylist()
        ]

    def query(self, sql: str) -> pa.Table:
        """The rows of the last of one or more statements.

        Raises:
            UsageError: one line on what is wrong with the SQL.
            TraceProcessorError: the trace processor has ended.
        """
        table, error = decode_result(self._call("POST", "/query", query_arguments(sql)))
        if error:
            raise UsageError(_line(error))
        return table

    def close(self) -> None:
        """Close the connection; the trace processor is its server's."""
        self._connection.close()

    def _load(self) -> None:
        if self.engine.kind is EngineKind.ADDRESS:
            self._call("POST", "/restore_initial_tables")
        with ExactBytes(self.path) as source:
            self.base_ns = source.base_ns
            for part in source.parts():
                self._parse(part)
            self.read_fault = source.read_fault
        self._finish()

    def _parse(self, part: bytes) -> None:
        if not part:
            return
        result = messages().AppendTraceDataResult()
        result.ParseFromString(self._call("POST", "/parse", part))
        if result.error:
            raise BadInputError(self.path, f"Perfetto cannot read it: {_line(result.error)}", _READABLE)

    def _finish(self) -> None:
        self._call("POST", "/notify_eof")
        _, error = decode_result(self._call("POST", "/query", query_arguments("SELECT 1")))
        if error:
            raise BadInputError(self.path, f"Perfetto cannot read it: {_line(error)}", _READABLE)

    def _call(self, method: str, endpoint: str, body: bytes | None = None) -> bytes:
        try:
            self._connection.request(method, endpoint, body)
            return self._connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise TraceProcessorError(f"the trace processor is gone: {self._server.fault()}") from error


_READABLE = "give a trace in a format that Perfetto reads, whole"


@contextmanager
def open_trace(path: Path, engine: Engine | None = None) -> Iterator[TraceSession]:
    """Load a trace of any format that Perfetto reads; the trace processor is ended with the block.

    Args:
        engine: the first one of :func:`find_engine` where it is None.

    Raises:
        BadInputError: the file is missing, empty, or no trace that Perfetto reads.
        UsageError: there is no trace processor.
        TraceProcessorError: it does not start, or ends early.
    """
    if stand_in(path) is not None:
        raise BadInputError(path, "Perfetto reads files of this machine alone", "copy it, and name the copy")
    # A file that is not there is said before an engine is started for it.
    ByteSource(path).__exit__(None, None, None)
    with TraceProcessorServer(engine or find_engine()) as server:
        session = TraceSession(path, server)
        try:
            yield session
        finally:
            session.close()


def _line(error: str) -> str:
    """The last line of an error that says something: Perfetto prints the statement before it."""
    lines = [line.strip() for line in error.splitlines() if line.strip(" \t^~")]
    return lines[-1] if lines else error
