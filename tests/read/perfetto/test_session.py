"""Traces in Perfetto's trace processor: exact times, what the importer lost, SQL, and an end in every case."""

from __future__ import annotations

import gzip
import http.client
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.read.perfetto.engines import VARIABLE, Engine, EngineKind, find_engine, survey
from traceviz_dag.read.perfetto.server import TraceProcessorError, TraceProcessorServer
from traceviz_dag.read.perfetto.session import open_trace

EPOCH_NS = 1_770_682_389_013_347_000
STARTS = [0, 1_001, 1_002, 5_777, 123_456_789]


def write_trace(path: Path, events: list[tuple[int, int]], tail: str = "]}") -> Path:
    """A JSON trace in microseconds of the epoch, from (start, duration) in ns after ``EPOCH_NS``."""
    rows = []
    for offset, duration in events:
        start = EPOCH_NS + offset
        time_us, length = f"{start // 1000}.{start % 1000:03d}", f"{duration // 1000}.{duration % 1000:03d}"
        rows.append(f'{{"ph": "X", "name": "e", "pid": 1, "tid": 1, "ts": {time_us}, "dur": {length}}}')
    path.write_bytes(gzip.compress(('{"traceEvents": [' + ",\n".join(rows) + tail).encode()))
    return path


def test_nanoseconds_of_an_epoch_trace_survive(tmp_path: Path, trace_processor: Engine) -> None:
    path = write_trace(tmp_path / "t.json.gz", [(start, 1) for start in STARTS])
    with open_trace(path, trace_processor) as session:
        rows = session.query("SELECT ts, dur FROM slice ORDER BY ts")
        assert [ts + session.base_ns - EPOCH_NS for ts in rows["ts"].to_pylist()] == STARTS
        assert rows["dur"].to_pylist() == [1] * len(STARTS)
        assert session.problems == []
        assert session.read_fault is None


def test_slices_that_overlap_are_reported_with_their_number(tmp_path: Path, trace_processor: Engine) -> None:
    path = write_trace(tmp_path / "t.json.gz", [(0, 1000), (500, 1000), (700, 1000), (5000, 1)])
    with open_trace(path, trace_processor) as session:
        (problem,) = session.problems
        kept = session.query("SELECT count(*) AS n FROM slice")["n"].to_pylist()
    assert (problem.name, problem.severity, problem.count) == ("slice_drop_overlapping_complete_event", "error", 2)
    assert kept == [2]


def test_values_of_every_type_and_many_rows_come_back(tmp_path: Path, trace_processor: Engine) -> None:
    path = write_trace(tmp_path / "t.json.gz", [(0, 1)])
    with open_trace(path, trace_processor) as session:
        rows = session.query(
            "SELECT 1 AS i, 2.5 AS f, 'ä\"' AS t, NULL AS n, 7 AS i UNION ALL SELECT NULL, 3, '', 4, 8"
        )
        assert rows.to_pylist() == [
            {"i": 1, "f": 2.5, "t": 'ä"', "n": None, "i_2": 7},
            {"i": None, "f": 3.0, "t": "", "n": 4, "i_2": 8},
        ]
        many = session.query(
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 70000) SELECT * FROM c"
        )
        assert many["n"].to_pylist() == list(range(1, 70001))
        with pytest.raises(UsageError, match="no such table: absent"):
            session.query("SELECT * FROM absent")
        assert session.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_a_broken_file_is_said_to_be_broken(tmp_path: Path, trace_processor: Engine) -> None:
    path = write_trace(tmp_path / "t.json.gz", [(start, 1) for start in range(0, 300_000, 10)])
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(BadInputError, match="cannot read it"), open_trace(path, trace_processor):
        pass
    noise = tmp_path / "noise.bin"
    noise.write_bytes(b"no trace at all")
    with pytest.raises(BadInputError, match="cannot read it"), open_trace(noise, trace_processor):
        pass
    with pytest.raises(BadInputError, match="no such file"), open_trace(tmp_path / "absent", trace_processor):
        pass


_HOLDS_A_TRACE = """
import sys, time
from pathlib import Path
from traceviz_dag.read.perfetto.engines import find_engine
from traceviz_dag.read.perfetto.server import TraceProcessorServer
with TraceProcessorServer(find_engine(sys.argv[1] or None)) as server:
    print(server.process_id, flush=True)
    time.sleep(600)
"""

_LIKE_A_NATIVE_ONE = f"""#!{sys.executable}
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
if "ends" in Path(__file__).name: sys.exit("it cannot be")
Path(__file__ + ".pid").write_text(str(os.getpid()))
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--http-port") + 1])), Handler).serve_forever()
"""


def native(path: Path) -> Path:
    """A program that starts and answers as Perfetto's native binary does."""
    path.write_text(_LIKE_A_NATIVE_ONE)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def ends(process_id: int) -> bool:
    """Whether a process is gone within some seconds."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("kind", ["found", "native"])
def test_the_engine_ends_when_python_is_killed(tmp_path: Path, trace_processor: Engine, kind: str) -> None:
    binary = str(native(tmp_path / "shell")) if kind == "native" else ""
    command = [sys.executable, "-c", _HOLDS_A_TRACE, binary]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        started = int(process.stdout.readline())
        engine = int((tmp_path / "shell.pid").read_text()) if kind == "native" else started
        os.kill(process.pid, signal.SIGKILL)
    assert ends(started)
    assert ends(engine)


def test_a_native_engine_is_ended_with_its_block_and_its_fault_is_reported(tmp_path: Path) -> None:
    with TraceProcessorServer(find_engine(str(native(tmp_path / "shell")))) as server:
        assert server.address.startswith("127.0.0.1:")
        engine = int((tmp_path / "shell.pid").read_text())
    assert ends(engine)
    with pytest.raises(TraceProcessorError, match="it ended with 1: it cannot be"):
        TraceProcessorServer(find_engine(str(native(tmp_path / "ends"))))


@pytest.mark.long
def test_a_running_engine_is_used_by_its_address(tmp_path: Path, trace_processor: Engine) -> None:
    path = write_trace(tmp_path / "t.json.gz", [(0, 1), (5, 2)])
    with TraceProcessorServer(trace_processor) as server:
        for _ in range(2):
            with open_trace(path, find_engine(server.address)) as session:
                assert session.engine.kind is EngineKind.ADDRESS
                assert session.query("SELECT count(*) AS n FROM slice")["n"].to_pylist() == [2]
    with pytest.raises(TraceProcessorError, match="nothing answers"):
        TraceProcessorServer(find_engine(server.address))


def test_what_is_looked_for_and_why_nothing_is_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("traceviz_dag.read.perfetto.engines.importlib.util.find_spec", lambda name: None)
    assert [way.kind for way in survey()] == [EngineKind.NATIVE, EngineKind.WASM]
    with pytest.raises(UsageError, match=r"install traceviz-dag\[perfetto-offline\]"):
        find_engine()
    cached = tmp_path / ".local/share/perfetto/prebuilts/trace_processor_shell-0123456789abcdef"
    cached.parent.mkdir(parents=True)
    native(cached)
    assert find_engine().where == str(cached)
    monkeypatch.setenv(VARIABLE, "127.0.0.1:9001")
    assert find_engine().kind is EngineKind.ADDRESS
    with pytest.raises(UsageError, match="no trace processor"):
        find_engine("no such thing")


def test_no_page_can_end_the_loading_of_a_trace(tmp_path: Path, trace_processor: Engine) -> None:
    """A picture's address is fetched by GET and without an Origin; what ends a loading is for POST alone."""
    if trace_processor.kind is not EngineKind.WASM:
        pytest.skip("this engine is not served by us")
    with TraceProcessorServer(trace_processor) as server:

        def status(method: str, path: str, **headers: str) -> int:
            connection = http.client.HTTPConnection(server.address)
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            return connection.getresponse().status

        assert status("GET", "/status") == 200
        for path in ("/notify_eof", "/restore_initial_tables", "/parse"):
            assert status("GET", path) == 404
            assert status("POST", path, Origin="http://evil.example") == 404
            assert status("POST", path, Sec_Fetch_Site="cross-site") == 404
        assert status("GET", "/constructor") == 404
