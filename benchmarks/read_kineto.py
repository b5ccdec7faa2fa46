"""Reading a Kineto trace, ours beside a bare typed decode, orjson and HolisticTraceAnalysis, in one run.

    python benchmarks/read_kineto.py SOURCE.json.gz --megabytes 300 --rounds 3

Each reader runs in a process of its own, in turn, on the same file in the page cache. MB/s are of JSON text over the
process's CPU time (user and system, start-up and imports taken off), so that a busy machine does not blur them; memory
is the process's peak resident set. HolisticTraceAnalysis gets an environment of its own (it needs pandas below 3).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from repeat_trace import repeat

READERS = {
    "traceviz_dag, to columns": "from pathlib import Path; from traceviz_dag.read.kineto.reader import read_kineto\n"
    "if path: read_kineto(Path(path))",
    "traceviz_dag, to classified kernels in the lake": """
import tempfile
from pathlib import Path
import pandas
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.read.kineto.peek import peek_header
from traceviz_dag.pipeline.workers import IterationTask, analyse_into_lake
if path:
    with tempfile.TemporaryDirectory() as home:
        header = peek_header(Path(path))
        task = IterationTask(Path(home), "run", 1, unite({header.rank: header}), load_rules())
        assert not analyse_into_lake(task, RankTrace(Path(path), "trace", header.rank)).failed
""",
    "msgspec, bare typed decode to objects": """
import gc, msgspec
gc.disable()
class Event(msgspec.Struct, gc=False):
    ph: str = ""; cat: str = ""; name: str = ""; pid: int | str = 0; tid: int | str = 0
    ts: float = 0.0; dur: float = 0.0
class Trace(msgspec.Struct):
    traceEvents: list[Event]
if path: msgspec.json.decode(open(path, "rb").read(), type=Trace)
""",
    "orjson, to dicts": "import gc, orjson\ngc.disable()\nif path: orjson.loads(open(path, 'rb').read())",
}
HTA = "HolisticTraceAnalysis, to a data frame"
HTA_PROGRAM = """
import logging, warnings
logging.disable(logging.CRITICAL); warnings.filterwarnings("ignore")
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.parser_config import ParserConfig
if path: parse_trace_dataframe(path, ParserConfig.get_default_cfg())
"""


def environment_of_hta(folder: Path) -> Path:
    """An environment with HolisticTraceAnalysis; made once."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "HolisticTraceAnalysis", "pandas<3"], check=True)
    return python


def measure(python: str, program: str, path: str) -> tuple[float, float]:
    """(CPU seconds, peak resident MB) of one process that runs the program on the path; "" only imports."""
    child = subprocess.Popen([python, "-c", f"path = {path!r}\n{program}"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"the reader failed: {program.strip().splitlines()[0]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def main() -> None:
    """Measure all readers in turn and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a real trace, repeated to the size")
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta", type=Path, help="folder of the HTA environment; without it HTA is left out")
    arguments = parser.parse_args()
    readers = {name: (sys.executable, program) for name, program in READERS.items()}
    if arguments.hta is not None:
        readers[HTA] = (str(environment_of_hta(arguments.hta)), HTA_PROGRAM)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "rank_0000.json"
        repeat(arguments.source, trace, arguments.megabytes)
        megabytes = trace.stat().st_size / 1e6
        trace.read_bytes()
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
        for _ in range(arguments.rounds):
            for name, (python, program) in readers.items():
                idle, _ = measure(python, program, "")
                seconds, peak = measure(python, program, str(trace))
                figures[name].append((megabytes / max(seconds - idle, 1e-3), peak))
    print(f"{megabytes:.0f} MB from {arguments.source.name}, median of {arguments.rounds} rounds\n")
    print("| reader | MB/s of CPU time | (least–most) | peak memory, MB | of the file |")
    print("| --- | --: | --- | --: | --: |")
    for name, rounds in figures.items():
        rates, peaks = [rate for rate, _ in rounds], [peak for _, peak in rounds]
        median, peak = statistics.median(rates), statistics.median(peaks)
        print(f"| {name} | {median:.0f} | {min(rates):.0f}–{max(rates):.0f} | {peak:.0f} | {peak / megabytes:.2f} × |")


if __name__ == "__main__":
    main()
