"""Speed that is watched: a dozen figures, each beside a yardstick of the same run, and the kept ones.

    python -m benchmarks.tracked           # under four minutes; the exit code is 1 if a figure got worse by over 10 %
    python -m benchmarks.tracked --keep    # and writes benchmarks/tracked.json and the table of docs/benchmarks.md

Figures are processor time, child processes included, peak memory, or what imports take. A yardstick does comparable
work without our code, right before and after; the ratio of the two moves little with the machine and its load. Rounds
of all figures follow each other, so that each meets the loads of the whole run. A figure that seems worse is measured
once more.

The inputs are simulated, always equal, and kept in ~/.cache/traceviz_tracked. A change counts if it exceeds both 10 %
and the noise of the two ratios that are compared.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import inspect
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path

from benchmarks.memory import repeated
from benchmarks.nsys import run_once
from benchmarks.read_kineto import READERS, measure, quiet_environment
from benchmarks.repeat_trace import repeat
from traceviz_dag.system.whole_files import scratch_folder, write_atomically

REPOSITORY = Path(__file__).resolve().parent.parent
KEPT = REPOSITORY / "benchmarks" / "tracked.json"
PAGE = REPOSITORY / "docs" / "benchmarks.md"
BEGIN, END = "<!-- tracked: python -m benchmarks.tracked --keep -->", "<!-- end of tracked -->"
LIMIT = 0.1
"""A figure that got worse by more is named."""

FEWEST_ROUNDS = 3
"""Of fewer, figures with one sample a round have no known noise: nothing could be called worse, now or later."""

_COLUMNS, _SCANNED, _LAKE, _MSGSPEC = list(READERS)[:4]
_TYPES, _, _ = READERS[_MSGSPEC].partition("if path:")
# In pieces that stay in a core's caches, as our reader does it: fresh memory for a large file costs what it likes.
_DECODE = f"""{_TYPES}
import pathlib
if path:
    text = pathlib.Path(path).with_name("piece.json").read_bytes()
    for _ in range(28): msgspec.json.decode(text, type=Trace)
"""
_WRITE = """
import io, numpy, pyarrow, pyarrow.parquet
if path:
    columns = list(numpy.random.default_rng(1).integers(0, 1 << 40, (16, 50_000)))
    pyarrow.parquet.write_table(pyarrow.table(columns, names=list("abcdefghijklmnop")), io.BytesIO())
"""
_START = "import numpy, pyarrow.parquet, typer, duckdb; duckdb.connect().execute('SELECT 1')"
DECODE, DECODE_WRITE = ("bare typed decode", _DECODE), ("bare typed decode, Parquet write", _DECODE + _WRITE)
START, DAGSTER = ("start, empty query", _START), ("start of Dagster", "import dagster")
LIBRARIES = ("imports of libraries", _START.partition(";")[0])
FILE = "the file"

Pair = tuple[float, float]
"""A figure and its yardstick, measured side by side."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Processor time of a program on an input, in turn with its yardstick in one process, imports left out."""

    name: str
    program: str
    source: str
    yardstick: tuple[str, str]
    times: int = 8
    unit: str = "MB/s"

    def pairs(self, inputs: Path, _: Path) -> list[Pair]:
        """Measure one round."""
        rounds, _ = measure(sys.executable, [self.yardstick[1], self.program], inputs / self.source, self.times)
        return [(seconds, yardstick) for yardstick, seconds in rounds]


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak memory in MB of a process that runs a program on an input, beside the size of this file."""

    name: str
    program: str
    source: str
    yardstick: tuple[str, str] = (FILE, "")
    unit: str = "MB"

    def pairs(self, inputs: Path, _: Path) -> list[Pair]:
        """Measure one round."""
        _, peak = measure(sys.executable, [self.program], inputs / self.source)
        return [(peak, (inputs / self.source).stat().st_size / 1e6)]


@dataclass(frozen=True, slots=True)
class Command:
    """Processor time of a command of traceviz as a person starts it; the folder FRESH is not there before."""

    name: str
    words: str
    yardstick: tuple[str, str] = START
    times: int = 4
    partial: bool = False
    """Whether its answer is partial, so that it exits with 2."""

    unit: str = "s"

    def pairs(self, inputs: Path, scratch: Path) -> list[Pair]:
        """Measure one round; the yardstick is the mean of the process before and the one after."""
        yardsticks, seconds = [self._bare()], []
        for _ in range(self.times):
            seconds.append(traceviz(self.words, inputs, scratch, partial=self.partial))
            yardsticks.append(self._bare())
        return [(each, (yardsticks[at] + yardsticks[at + 1]) / 2) for at, each in enumerate(seconds)]

    def _bare(self) -> float:
        done = run_once([sys.executable, "-c", self.yardstick[1]], quiet_environment())
        if not done.ok:
            raise SystemExit(f"this yardstick failed: {self.yardstick[0]}")
        return done.processor


@dataclass(frozen=True, slots=True)
class Imports:
    """What a command as a person starts it spends on imports: the sum of ``python -X importtime``."""

    name: str
    words: str
    yardstick: tuple[str, str] = LIBRARIES
    times: int = 4
    unit: str = "s"

    def pairs(self, inputs: Path, scratch: Path) -> list[Pair]:
        """Measure one round."""
        bare = ["-c", self.yardstick[1]]
        words = command(self.words, inputs, scratch)
        return [(_importing(words), _importing(bare)) for _ in range(self.times)]


def _importing(words: Sequence[str]) -> float:
    """Seconds of wall clock that a Python process spends on imports, each without those inside it."""
    timed = [sys.executable, "-X", "importtime", *words]
    done = subprocess.run(timed, env=quiet_environment(), capture_output=True, text=True, check=True)
    found = re.findall(r"^import time: +(\d+) \|", done.stderr, re.MULTILINE)
    return sum(map(int, found)) / 1e6


Task = Reading | Peak | Command | Imports
TASKS: tuple[Task, ...] = (
    Reading("Kineto trace, to columns", READERS[_COLUMNS], "rank_20.json", DECODE),
    Reading("Kineto trace, to columns, numba", READERS[_SCANNED], "rank_20.json", DECODE),
    Reading("Kineto trace, to columns, gzip", READERS[_COLUMNS], "rank_20.json.gz", DECODE),
    Reading("Kineto trace, to the lake", READERS[_LAKE], "rank_20.json", DECODE_WRITE),
    Peak("peak memory, to columns", READERS[_COLUMNS], "rank_200.json"),
    Peak("peak memory, to the lake", READERS[_LAKE], "rank_200.json"),
    Command("traceviz --help", "--help"),
    Imports("imports, traceviz --help", "--help"),
    Imports("imports, overlap", "overlap --home SCRATCH/home"),
    Command("analyze, one small trace", "analyze INPUTS/small.json.gz --home FRESH --workers 2", DAGSTER, 1),
    Command("analyze, 64 ranks", "analyze INPUTS/ranks_64 --home FRESH --workers 2 --no-report", DAGSTER, 1),
    Command("overlap, 16 ranks analysed", "overlap --home SCRATCH/home"),
    Command("findings, 16 ranks analysed", "findings --home SCRATCH/home"),
    Command("report, 16 ranks analysed", "report --home SCRATCH/home -o SCRATCH/report.html", times=2),
    Command("nsys overlap, first opening", "nsys overlap INPUTS/export.sqlite --home FRESH"),
    Command("nsys overlap, opened before", "nsys overlap INPUTS/export.sqlite --home SCRATCH/home"),
    Command("memory summary, 116,000 events", "memory summary INPUTS/snapshot.pickle", times=2, partial=True),
)
"""Reading and peak memory are of one rank of the simulated job, its events repeated to 20 MB and 200 MB."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What a run found: medians of the figure in its unit, of the yardstick, and of the ratio of costs."""

    value: float
    unit: str
    yardstick: str
    yardstick_value: float
    ratio: float
    noise: float
    samples: int


def figure_of(task: Task, pairs: Sequence[Pair], megabytes: float = 1) -> Figure:
    """Summarise the pairs of a run.

    The noise is twice the standard error of the median ratio, estimated from the median absolute deviation, as a share
    of the ratio; one or two pairs do not show it.
    """
    ratios = [cost / yardstick for cost, yardstick in pairs]
    ratio = statistics.median(ratios)
    deviation = 1.4826 * statistics.median(abs(each - ratio) for each in ratios)
    noise = 2 * 1.2533 * deviation / math.sqrt(len(ratios)) / ratio if len(ratios) > 2 else 1.0
    cost, yardstick = (statistics.median(each) for each in zip(*pairs, strict=True))
    value = megabytes / cost if task.unit == "MB/s" else cost
    figures = [float(f"{each:.3g}") for each in (value, yardstick, ratio, noise)]
    return Figure(figures[0], task.unit, task.yardstick[0], *figures[1:], len(ratios))


def change(now: Figure, kept: Figure) -> float:
    """By which share the cost grew."""
    return now.ratio / kept.ratio - 1


def is_worse(now: Figure, kept: Figure | None) -> bool:
    """Whether the cost grew by more than 10 % and by more than noise explains."""
    return kept is not None and change(now, kept) > max(LIMIT, math.hypot(now.noise, kept.noise))


def table(now: Mapping[str, Figure], kept: Mapping[str, Figure]) -> list[str]:
    """The lines of the table; without kept figures there is nothing to compare."""
    head = ["figure", "now", "yardstick", "its value", "ratio", "noise"] + (["kept ratio", "change"] if kept else [])
    lines = [f"| {' | '.join(head)} |", "| --- | --: | --- |" + " --: |" * (len(head) - 3)]
    for name, one in now.items():
        bare = f"{one.yardstick_value:.3g} {'MB' if one.yardstick == FILE else 's'}"
        cells = [name, f"{one.value:.3g} {one.unit}", one.yardstick, bare, f"{one.ratio:.3g}", f"± {one.noise:.0%}"]
        if kept:
            before = kept.get(name)
            cells += [f"{before.ratio:.3g}", f"{change(one, before):+.0%}"] if before else ["", "new"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def verdict(now: Mapping[str, Figure], kept: Mapping[str, Figure]) -> list[str]:
    """A line per figure that got worse."""
    return [
        f"worse: {name} costs {change(one, kept[name]):.0%} more than kept ({one.ratio:.3g} × {one.yardstick}, "
        f"was {kept[name].ratio:.3g})"
        for name, one in now.items()
        if is_worse(one, kept.get(name))
    ]


def with_section(page: str, record: Mapping[str, object], now: Mapping[str, Figure]) -> str:
    """The page with its generated part made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    told = f"Measured at commit {record['commit']} on {record['date']}: {record['machine']}."
    return f"{before}{BEGIN}\n{told}\n\n" + "\n".join(table(now, {})) + f"\n{END}{after}"


def command(words: str, inputs: Path, scratch: Path) -> list[str]:
    """What Python is told to run a command of traceviz; the folder FRESH is not there."""
    fresh = scratch / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    places = {"INPUTS": inputs, "FRESH": fresh, "SCRATCH": scratch}
    for name, place in places.items():
        words = words.replace(name, str(place))
    return ["-m", "traceviz_dag.commands.main", *words.split()]


def traceviz(words: str, inputs: Path, scratch: Path, *, partial: bool = False) -> float:
    """Processor seconds of a command."""
    done = run_once([sys.executable, *command(words, inputs, scratch)], quiet_environment())
    if not done.ok and not (partial and done.output):
        raise SystemExit(f"this command failed: traceviz {words}\n{done.output}")
    return done.processor


def inputs_in(cache: Path) -> Path:
    """The folder of inputs, made if it is not there; those that no run used for a week are removed."""
    sources = sorted((REPOSITORY / "traceviz_dag" / "simulate").rglob("*.py"))
    sources += [REPOSITORY / "benchmarks" / name for name in ("memory.py", "repeat_trace.py")]
    texts = [*(path.read_text() for path in sources), inspect.getsource(make_inputs)]
    digest = hashlib.blake2b("".join(texts).encode(), digest_size=8).hexdigest()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / digest
    if not folder.exists():
        print("making the inputs", file=sys.stderr)
        # A separate process: what this one has needed would count as the least memory of every process it starts.
        with scratch_folder(cache) as scratch, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(make_inputs, scratch / digest).result()
            (scratch / digest).rename(folder)
    os.utime(folder)
    for other in cache.iterdir():
        if time.time() - other.stat().st_mtime > 7 * 86400:
            shutil.rmtree(other)
    return folder


def make_inputs(folder: Path) -> None:
    """Simulate what the figures read."""
    from traceviz_dag.simulate import JobSettings, simulate
    from traceviz_dag.simulate.settings import Format

    small = JobSettings(tp=2, pp=2, layers=4, microbatches=2)
    job = replace(JobSettings.demo(), iterations=1, layers=8, microbatches=4)
    simulate(job, folder / "job")
    simulate(replace(job, dp=8), folder / "ranks_64")
    simulate(replace(small, memory=True), folder / "small")
    simulate(replace(small, dp=2, layers=8, microbatches=8, format=Format.NSYS), folder / "nsys")
    (folder / "nsys" / "node0.sqlite").rename(folder / "export.sqlite")
    [trace] = (folder / "small").glob("*/rank_0000_*.json.gz")
    trace.rename(folder / "small.json.gz")
    [snapshot] = (folder / "small").glob("*/rank_0000_*.memory.pickle")
    repeated(snapshot, 10, folder / "snapshot.pickle")
    [trace] = (folder / "job").glob("*/rank_0000_*.json.gz")
    (folder / "piece.json").write_bytes(gzip.decompress(trace.read_bytes()))
    for megabytes in (20, 200):
        repeat(trace, folder / f"rank_{megabytes}.json", megabytes)
    with gzip.GzipFile(folder / "rank_20.json.gz", "wb", mtime=0) as file:
        file.write((folder / "rank_20.json").read_bytes())
    shutil.rmtree(folder / "nsys")
    shutil.rmtree(folder / "small")


def measured(tasks: Sequence[Task], rounds: int, kept: Mapping[str, Figure], inputs: Path) -> dict[str, Figure]:
    """The figures of all tasks; those that seem worse after the rounds get as many again."""
    pairs: dict[str, list[Pair]] = {task.name: [] for task in tasks}
    found: dict[str, Figure] = {}
    with scratch_folder() as scratch:
        for words in (
            "analyze INPUTS/job --home SCRATCH/home",
            "nsys overlap INPUTS/export.sqlite --home SCRATCH/home",
        ):
            if any("SCRATCH/home" in task.words for task in tasks if isinstance(task, Command | Imports)):
                traceviz(words, inputs, scratch)
        chosen = list(tasks)
        for turn in (1, 2):
            for number in range(rounds):
                for task in chosen:
                    print(f"turn {turn}, round {number + 1} of {rounds}: {task.name}", file=sys.stderr)
                    pairs[task.name] += task.pairs(inputs, scratch)
            for task in chosen:
                text = isinstance(task, Reading) and inputs / task.source.removesuffix(".gz")
                size = text.stat().st_size / 1e6 if text else 1
                found[task.name] = figure_of(task, pairs[task.name], size)
            chosen = [task for task in chosen if is_worse(found[task.name], kept.get(task.name))]
    return found


def sizes(inputs: Path) -> str:
    """A digest of the names and sizes of all inputs."""
    files = sorted((str(path.relative_to(inputs)), path.stat().st_size) for path in inputs.rglob("*.*"))
    return hashlib.blake2b(json.dumps(files).encode(), digest_size=8).hexdigest()


def machine() -> str:
    """This machine in words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores of {models[0] if models else platform.machine()}, {memory:.0f} GiB, "
        f"{platform.system()}, Python {platform.python_version()}"
    )


def commit() -> str:
    """The commit that was measured, and whether the measured code has changed since."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "traceviz_dag", "assets", "sensors")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (", with changes" if changed else "")


def main() -> int:
    """Measure, compare, print, and keep if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", help="measure figures whose names match, for example '*memory*'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="write the figures, and the table of the page")
    given = parser.parse_args()
    tasks = [task for task in TASKS if fnmatch(task.name, given.only or "*")]
    if given.rounds < FEWEST_ROUNDS or not tasks or (given.keep and given.only):
        parser.error(
            f"give at least {FEWEST_ROUNDS} rounds, an --only that matches a figure, and --keep without --only"
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "traceviz_tracked"
    before = json.loads(KEPT.read_text()) if KEPT.exists() else {"figures": {}}
    kept = {name: Figure(**figure) for name, figure in before["figures"].items()}
    # What a first run compiles would count.
    words = [sys.executable, "-m", "compileall", "-q", "traceviz_dag", "assets", "sensors"]
    subprocess.run(words, cwd=REPOSITORY, env=quiet_environment(), check=True)
    try:
        inputs = inputs_in(cache)
        now = measured(tasks, given.rounds, kept, inputs)
    except KeyboardInterrupt:
        print("stopped; nothing is kept", file=sys.stderr)
        return 130
    record = {
        "commit": commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "inputs": sizes(inputs),
    }
    worse = verdict(now, kept)
    print("\n".join([*table(now, kept), "", *(worse or ["nothing got worse"])]))
    for name in ("machine", "inputs"):
        if kept and record[name] != before[name]:
            print(f"other {name} than kept: {record[name]}, was {before[name]}")
    if given.keep:
        record["figures"] = {name: asdict(figure) for name, figure in now.items()}
        write_atomically(KEPT, (json.dumps(record, indent=1) + "\n").encode())
        write_atomically(PAGE, with_section(PAGE.read_text(), record, now).encode())
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
