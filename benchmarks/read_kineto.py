"""Reading a Kineto trace, ours beside a bare typed decode, orjson and HolisticTraceAnalysis, in one run.

    python -m benchmarks.read_kineto SOURCE.json.gz --megabytes 300 --rounds 3

Each reader runs in a separate process, in turn, on the same file in the page cache. MB/s are of JSON text over the
processor time of reading (user and system, without imports), so that a busy machine does not blur them; memory is the
process's peak resident set. HolisticTraceAnalysis gets a separate environment (it needs pandas below 3).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.nsys import run_once
from benchmarks.repeat_trace import repeat

READERS = {
    "traceviz_dag, to columns": "from pathlib import Path; from traceviz_dag.read.kineto.reader import read_kineto\n"
    "if path: read_kineto(Path(path), scan=False)",
    "traceviz_dag with numba, to columns": """
from pathlib import Path
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.read.kineto.scanning import new_scanner
assert new_scanner(), "numba is not installed"
if path: read_kineto(Path(path), scan=True)
""",
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


ALTERNATING = """
import json, resource, sys
def used():
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in times)
def seconds(program, path):
    before = used()
    exec(program, {"__name__": "__main__", "path": path})
    return used() - before
path, rounds, *programs = sys.argv[1:]
for program in programs:
    seconds(program, "")
print()
print(json.dumps([[seconds(program, path) for program in programs] for _ in range(int(rounds))]))
"""
"""Runs programs in turn, first without a path so that they only import; prints the processor seconds of the rounds."""


def environment_of_hta(folder: Path) -> Path:
    """An environment with HolisticTraceAnalysis; made once."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "HolisticTraceAnalysis", "pandas<3"], check=True)
    return python


def measure(python: str, programs: Sequence[str], path: Path, rounds: int = 1) -> tuple[list[list[float]], float]:
    """Processor seconds of programs that one process runs on the path in turn, a list per round, and its peak in MB."""
    done = run_once([python, "-c", ALTERNATING, str(path), str(rounds), *programs], quiet_environment())
    if not done.ok:
        raise SystemExit(f"this program failed on {path.name}:\n{programs[-1].strip()}")
    return json.loads(done.output.splitlines()[-1]), done.peak * 1000


def quiet_environment() -> dict[str, str]:
    """The environment of measured processes: compiled files are kept, and no thread of OpenBLAS waits busily."""
    left_out = ("PYTHONDONTWRITEBYTECODE", "TRACEVIZ_")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**ours, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


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
                [[seconds]], peak = measure(python, [program], trace)
                figures[name].append((megabytes / seconds, peak))
    print(f"{megabytes:.0f} MB from {arguments.source.name}, median of {arguments.rounds} rounds\n")
    print("| reader | MB per processor second | (least–most) | peak memory, MB | of the file |")
    print("| --- | --: | --- | --: | --: |")
    for name, rounds in figures.items():
        rates, peaks = [rate for rate, _ in rounds], [peak for _, peak in rounds]
        median, peak = statistics.median(rates), statistics.median(peaks)
        print(f"| {name} | {median:.0f} | {min(rates):.0f}–{max(rates):.0f} | {peak:.0f} | {peak / megabytes:.2f} × |")


if __name__ == "__main__":
    main()
