"""kill -9 at random moments; after each chain of kills the same command must end what was begun, as if nothing were.

Run: ``python benchmarks/kill.py --kills 1000 --seed 1 --folder FOLDER``. Results accumulate in FOLDER/kills.jsonl, a
line a trial: run it again to go on where it was left. A trial takes one workload, starts it, kills it once to four
times on the way (the main process alone, its whole process group, or one worker), and looks after each kill:

- no process of it is alive five seconds later (after a worker's death: when the command has ended);
- every Parquet file that is visible is whole, and ``traceviz lake verify`` finds nothing but temporary files.

Then the command runs to its end, and

- it exits with 0 (with 2 where a rank is damaged), and every file that it writes has the bytes of an undisturbed run,
  no more files, and no fewer;
- the catalogue answers with the same counts, and ``traceviz lake verify`` finds nothing;
- nothing is left, in the home, beside the output, or in the folder for temporary files, sockets and folders included,
  and no semaphore of a process of the trial in /dev/shm;
- files of others that look like temporaries are still there.

The moment of a kill is drawn from the seed and the trial's number: after an amount of processor time, so that it
does not depend on what else the machine does, or after a number of files that appeared.

Workloads whose names begin with "dagster" are in benchmarks/dagster_faults.py, or analyse 64 ranks of which one is
damaged; they are tried where they are named with ``--workload``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.dagster_faults import is_between_tick_and_run
from tests.nsys_file import small_export
from tests.small_run import rank_file, write_run
from traceviz_dag.errors import TracevizError
from traceviz_dag.lake.catalogue import queryable
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.verify import verify

RANKS = 4
ITERATION = 7
SCOPES = ("main", "group", "worker")
LONGEST_CHAIN = 6
ORPHAN_SECONDS = 5.0
MARK = "TRACEVIZ_KILL_TRIAL"
FOREIGN = (".notes.txt.writing", ".part.parquet.0123.writing", "draft.partial", ".profile.csv.writing")
KEPT = re.compile(r"\.lock$|^\.(traceviz\.duckdb|watched_folders\.json)\.lock$")
"""Files of locks: empty, and there for the next one."""
_DIGEST_OF_TILES = re.compile(r"-[0-9a-f]{16}\.lanes$")
_KINDS = "rank_timeline,pipeline_group"


@dataclass(frozen=True, slots=True)
class Workload:
    """One command.

    Attributes:
        arguments: of ``traceviz``; HOME, RUN, EXPORT and OUT are replaced by places.
        analysed: the home already holds the run, as it was before its inputs changed.
        changed: the run's files change before the command is started.
        code: a program of Python that takes the arguments, instead of ``traceviz``.
        ranks: of the run.
        ends_with: its exit code; with 2, one rank of the run is damaged.
        longest_chain: so many kills at most, one behind the other.
        at: a kill, of all processes, waits until this holds of the home.
        made: files below the home that were made of the run.
        watched: no answer changes, while it runs or after a kill; a reader asks in a loop.
    """

    arguments: tuple[str, ...]
    analysed: bool = False
    changed: bool = False
    code: str = ""
    ranks: int = RANKS
    ends_with: int = 0
    longest_chain: int = LONGEST_CHAIN
    at: Callable[[Path], bool] | None = None
    made: tuple[str, ...] = ()
    watched: bool = False


_WALK = """
import sys
from pathlib import Path
from threading import Event, Thread
from traceviz_dag.pipeline.screens import profile_model
model = profile_model(Path(sys.argv[1]), Path(sys.argv[2]))
lanes = list(model.lanes())
for lane in lanes:
    lanes += model.lanes(lane.key) if lane.holds_lanes else ()
    if lane.kind != "counter":
        model.slices(lane.key, model.span, 100)
"""

_DAGSTER = "import runpy; runpy.run_module('benchmarks.dagster_faults', run_name='__main__')"

WORKLOADS = {
    "analyze": Workload(("analyze", "RUN", "--home", "HOME", "--workers", "2")),
    "analyze changed": Workload(("analyze", "RUN", "--home", "HOME", "--workers", "2"), analysed=True, changed=True),
    "figures": Workload(
        (
            "figures",
            "--home",
            "HOME",
            "--formats",
            "png,svg",
            "--workers",
            "2",
            "--kind",
            "rank_timeline,pipeline_group",
        ),
        analysed=True,
    ),
    "perfetto": Workload(("perfetto", "export", "--home", "HOME"), analysed=True),
    "nsys export-csv": Workload(("nsys", "export-csv", "EXPORT", "--home", "HOME", "-o", "OUT/profile.csv")),
    "nsys perfetto": Workload(("nsys", "perfetto", "EXPORT", "--home", "HOME", "-o", "OUT/profile.pftrace.gz")),
    "analyze nsys": Workload(("analyze", "EXPORT", "--home", "HOME")),
    "classify": Workload(("classify", "TRACE", "--home", "HOME", "--output", "OUT/kernels.parquet")),
    "simulate": Workload(("simulate", "OUT/simulated", "--layers", "2", "--pp", "2", "--microbatches", "2")),
    "lake pack": Workload(
        ("lake", "pack", "--at-least", "2", "--prune", "--home", "HOME"), analysed=True, watched=True
    ),
    "tiles": Workload(("EXPORT", "HOME"), code=_WALK),
    "dagster ranks": Workload(("analyze", "RUN", "--home", "HOME", "--workers", "2"), ranks=64, ends_with=2),
    "dagster daemon": Workload(("daemon", "HOME", "RUN"), code=_DAGSTER, longest_chain=2, at=is_between_tick_and_run),
    "dagster schedules": Workload(("schedules", "HOME", "RUN"), code=_DAGSTER),
    "dagster retention": Workload(
        ("retention", "HOME", "RUN"),
        analysed=True,
        code=_DAGSTER,
        made=tuple(
            f"{place.format(f'job/{ITERATION}')}"
            for place in ("figures/{}/a.png", "perfetto/{}/a.pftrace.gz", "screens/{}/a.lanes", "reports/{}.html")
        ),
    ),
    "dagster newer_code": Workload(("newer_code", "HOME", "RUN"), analysed=True, code=_DAGSTER),
    "dagster catalogue": Workload(("catalogue", "HOME", "RUN"), analysed=True, code=_DAGSTER),
}
DRAWN = sorted(name for name in WORKLOADS if name not in ("tiles", "lake pack") and not name.startswith("dagster"))
"""Those that are drawn where nobody names any; another one would draw other trials for the same seed."""


class Bench:
    """The folder of one accumulated benchmark: inputs, undisturbed results, and the place where trials run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.home, self.out, self.temporary = (self.folder / name for name in ("home", "out", "tmp"))
        self.run, self.export = self.folder / "runs/job", self.folder / "profile.sqlite"
        self.results = self.folder / "kills.jsonl"
        self.cpu_seconds: dict[str, float] = {}
        self.files: dict[str, int] = {}
        self.clean: dict[str, dict[str, bytes]] = {}
        self.counts: dict[str, dict[str, int]] = {}
        self.started: list[int] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.export.exists():
            _export(self.export)

    def prepare(self, name: str) -> None:
        """Put everything where a workload finds it."""
        workload = WORKLOADS[name]
        for folder in (self.home, self.out, self.temporary, self.run):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.out, self.temporary):
            folder.mkdir()
        if workload.analysed:
            template = self.folder / "analysed"
            if not template.exists():
                self._write_run(WORKLOADS["analyze"])
                self.complete("analyze", "template")
                self.home.rename(template)
            shutil.copytree(template, self.home, symlinks=True)
            shutil.rmtree(self.home / "figures", ignore_errors=True)
            for made in workload.made:
                (self.home / made).parent.mkdir(parents=True, exist_ok=True)
                (self.home / made).touch()
        self._write_run(workload)
        for place in (self.out, self.home / "figures"):
            place.mkdir(parents=True, exist_ok=True)
            for foreign in FOREIGN:
                (place / foreign).write_text("another program's")

    def reference(self, name: str) -> None:
        """Remember what an undisturbed run of a workload writes, and how long it takes."""
        if name in self.clean:
            return
        self.prepare(name)
        if WORKLOADS[name].changed:
            shutil.rmtree(self.home)
            (self.home / "figures").mkdir(parents=True)
            for foreign in FOREIGN:
                (self.home / "figures" / foreign).write_text("another program's")
        process, looks = self.start(name, "reference"), [0.0]
        while process.poll() is None:
            looks.append(cpu_seconds(process.pid))
            time.sleep(0.02)
        if process.returncode != WORKLOADS[name].ends_with:
            raise SystemExit(f"an undisturbed run of {name!r} ends with {process.returncode}")
        self.cpu_seconds[name] = max(looks)
        self.files[name] = self.changes()
        self.clean[name] = self.written()
        self.counts[name] = self.catalogue()

    def command(self, name: str) -> list[str]:
        """The command line of a workload."""
        trace = self.run / f"iteration_{ITERATION}/rank_0001_iter_{ITERATION}.pt.trace.json"
        places = {"HOME": self.home, "RUN": self.run, "EXPORT": self.export, "TRACE": trace}
        words = [str(places.get(word, word)) for word in WORKLOADS[name].arguments]
        words = [word.replace("OUT/", f"{self.out}/") for word in words]
        code = WORKLOADS[name].code
        return [sys.executable, *(["-c", code] if code else ["-m", "traceviz_dag.commands.main"]), *words]

    def start(self, name: str, mark: str) -> subprocess.Popen[bytes]:
        """Start a workload in a session of its own; every process of it bears the mark."""
        environment = os.environ | {MARK: mark, "TMPDIR": str(self.temporary), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
        with (self.folder / "last.log").open("wb") as log:
            process = subprocess.Popen(
                self.command(name), stdout=log, stderr=log, env=environment, start_new_session=True, cwd=self.folder
            )
        self.started.append(process.pid)
        return process

    def complete(self, name: str, mark: str) -> int:
        """Run a workload to its end."""
        code = self.start(name, mark).wait(1800)
        if code != WORKLOADS[name].ends_with:
            sys.stderr.write((self.folder / "last.log").read_text(errors="replace")[-3000:])
        return code

    def written(self) -> dict[str, bytes]:
        """Name → bytes of everything that a command writes, Dagster's records and the catalogue apart.

        Of sockets, pipes and links, and of folders for temporary files, that they are there.
        """
        found = {}
        for base in (self.home, self.out, self.temporary):
            for path in base.rglob("*"):
                name = str(path.relative_to(self.folder))
                if name.startswith(("home/dagster/", "home/traceviz.duckdb", "home/daemon.log")):
                    continue
                if not path.is_file():
                    if not path.is_dir() or base == self.temporary:
                        found[name] = b"no regular file"
                elif not KEPT.search(path.name):
                    # The digest is of when the tables were written.
                    name = _DIGEST_OF_TILES.sub("-DIGEST.lanes", name)
                    name += " again" if name in found else ""
                    found[name] = _without_times(path) if path.name == "facts.json" else path.read_bytes()
        return found

    def catalogue(self) -> dict[str, int]:
        """Rows of every table and view, as a query sees them."""
        if not (self.home / "lake").exists():
            return {}
        lake = open_lake(self.home)
        return {name: lake.query(f"SELECT count(*) AS n FROM {name}")["n"][0].as_py() for name in queryable()}

    def faults_after_kill(self) -> list[str]:
        """Visible Parquet files that are not whole, and what ``traceviz lake verify`` would name."""
        # What is in the way of being written stays until the next run.
        faults = [line for line in self.verified() if ".writing:" not in line and "left by a packing" not in line]
        for base in (self.home, self.out):
            for path in base.rglob("*.parquet"):
                if path.name.startswith("."):
                    continue
                try:
                    pq.ParquetFile(path).read()
                except (OSError, ValueError) as error:
                    faults.append(f"{path.relative_to(self.folder)} is visible and not whole: {str(error)[:80]}")
        return faults

    @contextmanager
    def reader(self) -> Iterator[list[str]]:
        """Somebody who asks in a loop, and what was another answer than the first."""
        lake, over, faults = open_lake(self.home), Event(), list[str]()
        [place] = {(one.run, one.iteration) for one in lake.partitions("kernels")}

        def answers() -> list[object]:
            return [
                lake.query("SELECT rank, count(*) AS n, sum(duration_ns) FROM kernels GROUP BY ALL ORDER BY ALL"),
                lake.query_iteration("SELECT * FROM overlap ORDER BY ALL", run=place[0], iteration=place[1]),
                lake.rows("kernels", *place),
            ]

        def ask() -> None:
            while not over.is_set():
                try:
                    faults.extend(["another answer"] if answers() != right else [])
                except TracevizError as error:
                    faults.append(f"no answer: {error}")

        right, thread = answers(), Thread(target=ask)
        thread.start()
        try:
            yield faults
        finally:
            over.set()
            thread.join()

    def verified(self) -> list[str]:
        """What ``traceviz lake verify`` names."""
        found = verify(open_lake(self.home)).faults if (self.home / "lake").exists() else ()
        return [f"lake verify: {one.path.relative_to(self.home)}: {one.fault_with_place}" for one in found]

    def faults_at_the_end(self, name: str) -> list[str]:
        """How what there is now differs from an undisturbed run."""
        found, clean = self.written(), self.clean[name]
        faults = [f"left over: {path}" for path in sorted(found.keys() - clean.keys())]
        faults += [f"missing: {path}" for path in sorted(clean.keys() - found.keys())]
        faults += [f"other bytes: {path}" for path in sorted(found.keys() & clean.keys()) if found[path] != clean[path]]
        if self.catalogue() != self.counts[name]:
            faults.append("the catalogue counts other rows")
        faults += self.verified()
        shared = [path for pid in self.started for path in Path("/dev/shm").glob(f"sem.traceviz-*-{pid}-*")]
        return faults + [f"left over: {path}" for path in shared]

    def changes(self) -> int:
        """A number that grows with every file that appears."""
        return sum(len(files) for base in (self.home, self.out, self.temporary) for _, _, files in os.walk(base))

    def temporaries(self) -> int:
        """Files of ours that are in the way of being written."""
        names = [path.name for base in (self.home, self.out, self.temporary) for path in base.rglob(".*")]
        return sum(name.endswith((".writing", ".building", ".part")) and name not in FOREIGN for name in names)

    def _write_run(self, workload: Workload) -> None:
        """Put the run's files in place, with the same bytes and times in every trial."""
        made = self.folder / f"made-{workload.ranks}-{workload.ends_with}{'-changed' if workload.changed else ''}"
        if not made.exists():
            self._make_run(workload)
            self.run.rename(made)
        shutil.copytree(made, self.run, dirs_exist_ok=True)

    def _make_run(self, workload: Workload) -> None:
        write_run(self.run, {ITERATION: workload.ranks}, workload.ranks)
        path = self.run / f"iteration_{ITERATION}/rank_0002_iter_{ITERATION}.pt.trace.json"
        if workload.changed:
            rank_file(2, workload.ranks, step=ITERATION, scale=2).write(path)
        if workload.ends_with:
            path.write_text('{"traceEvents": "none"}')
        for path in self.run.rglob("*.json"):
            # The list of inputs holds times of change: the same ones in every trial.
            at = 1_770_000_000 + (workload.changed and "0002" in path.name)
            os.utime(path, (at, at))


def _export(path: Path) -> None:
    export = small_export()
    for number in range(20_000):
        start = 1_000 + 40 * number
        export.call(start, start + 5, correlation=100 + number)
        export.kernel(start + 10, start + 30, f"kernel_{number % 97}", correlation=100 + number)
    export.write(path)


def processes(mark: str) -> list[int]:
    """The processes that bear a mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with suppress(OSError):
                status = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if status != "Z" and wanted in (place / "environ").read_bytes().split(b"\0"):
                    found.append(int(place.name))
    return found


def _without_times(path: Path) -> bytes:
    """What a kept profile states of itself, without the moments at which its files were written."""
    stated = json.loads(path.read_bytes().partition(b"\n")[0])
    stated["files"] = {name: size for name, (size, _) in stated["files"].items()}
    return json.dumps(stated).encode()


def begin_and_kill(bench: Bench, name: str, mark: str, chance: random.Random) -> tuple[list[dict[str, object]], int]:
    """Start a workload and kill it: some workers first, perhaps, then the main process or its group, unless it ends.

    Returns:
        What was killed, with the faults that were seen; and the exit code, 0 where the command came to its end.
    """
    kills: list[dict[str, object]] = []
    workload = WORKLOADS[name]
    with bench.reader() if workload.watched else nullcontext([]) as seen:
        code = _killed(bench, name, mark, chance, kills)
    faults: list[str] = []
    if kills and kills[-1]["scope"] == "worker" and code not in (0, 2):
        faults.append(f"a worker's death ended the command with {code}")
    deadline = time.monotonic() + ORPHAN_SECONDS
    while (orphans := processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for orphan in orphans:
        with suppress(OSError):
            words = Path(f"/proc/{orphan}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            faults.append(f"alive after {ORPHAN_SECONDS:.0f} s: {words[:120]}")
            os.kill(orphan, signal.SIGKILL)
    faults += [*bench.faults_after_kill(), *seen]
    if faults and not kills:
        kills.append({"scope": "none", "by": "none", "killed": False})
    for kill in kills:
        kill["faults"] = faults if kill is kills[-1] else []
    return kills, code


def _killed(bench: Bench, name: str, mark: str, chance: random.Random, kills: list[dict[str, object]]) -> int:
    """Start a workload and kill it, and note the kills; its exit code."""
    process, workload = bench.start(name, mark), WORKLOADS[name]
    started, before = time.monotonic(), bench.changes()
    total = bench.files[name] - before
    scope, reached = "worker", 0.0
    while scope == "worker":
        scope, by_work = chance.choice(SCOPES), chance.random() < 0.5
        if workload.at is not None:
            scope, by_work = "group", False
        # Behind the last kill in the same process: its workers start again, and are killed again.
        reached += (1 - reached) * chance.random()
        if not _reached(bench, process, by_work, reached * bench.cpu_seconds[name], before + reached * max(total, 1)):
            break
        _linger(bench, process, workload, 0 if by_work else chance.choice((0, 0.001, 0.01, 0.1)) * chance.random())
        scope, victims = _victims(process, mark, scope, chance)
        killed = False
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                killed = True
        if killed:
            after = round(time.monotonic() - started, 2)
            kills.append({"scope": scope, "by": "work" if by_work else "changes", "killed": True, "after": after})
    return process.wait(1800)


def _reached(bench: Bench, process: subprocess.Popen[bytes], by_work: bool, seconds: float, files: float) -> bool:
    """Wait until a command has taken so much processor time, or has made so many files; False where it ends before.

    Processor time, since the machine may do much else: the moment in the command's life is what is drawn.
    """
    while process.poll() is None:
        looked = time.monotonic()
        if (cpu_seconds(process.pid) >= seconds) if by_work else (bench.changes() > files):
            return True
        # Looking must not take the time that the command needs.
        time.sleep(max(0.004, 5 * (time.monotonic() - looked)))
    return False


def _linger(bench: Bench, process: subprocess.Popen[bytes], workload: Workload, seconds: float) -> None:
    """Wait until a workload's own moment comes, or so long."""
    if workload.at is None:
        time.sleep(seconds)
        return
    while process.poll() is None and not workload.at(bench.home):
        time.sleep(0.005)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and of its children that have ended; 0 of one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _victims(process: subprocess.Popen[bytes], mark: str, scope: str, chance: random.Random) -> tuple[str, list[int]]:
    """What is killed; a command without workers is killed itself."""
    if process.poll() is not None:
        return scope, []
    every = processes(mark)
    others = sorted(set(every) - {process.pid})
    if scope == "group":
        return scope, every
    if scope == "worker" and others:
        return scope, [chance.choice(others)]
    return "main", [process.pid]


def trial(bench: Bench, seed: int, number: int, names: list[str]) -> dict[str, object]:
    """One chain of kills and the run that must fix it."""
    chance = random.Random(f"{seed}:{number}")
    name = chance.choice(names)
    bench.reference(name)
    bench.prepare(name)
    bench.started.clear()
    mark = f"{seed}.{number}.{os.getpid()}"
    kills: list[dict[str, object]] = []
    wanted, code, left = chance.randint(1, WORKLOADS[name].longest_chain), -signal.SIGKILL, 0
    right = WORKLOADS[name].ends_with
    # A run that ends before its kill is the run that must fix what the ones before it left.
    while code != right and len(kills) < wanted:
        left += bench.temporaries()
        more, code = begin_and_kill(bench, name, mark, chance)
        kills += more
    # Where a rank is damaged, a worker's death ends the command with the same code.
    if code or right:
        left += bench.temporaries()
        code = bench.complete(name, mark)
    faults = [fault for kill in kills for fault in kill["faults"]]  # type: ignore[attr-defined]
    faults += [f"the next run ends with {code}"] if code != right else []
    faults += bench.faults_at_the_end(name)
    return {
        "seed": seed,
        "trial": number,
        "workload": name,
        "kills": kills,
        "temporaries_before_the_next_run": left,
        "faults": faults,
    }


def results(path: Path, seed: int) -> list[dict[str, object]]:
    """The trials of a seed that were recorded so far."""
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return [one for one in found if one["seed"] == seed]


def counted(done: list[Mapping[str, object]]) -> Iterator[Mapping[str, object]]:
    """The kills that hit something."""
    return (kill for one in done for kill in one["kills"] if kill["killed"])  # type: ignore[attr-defined]


def report(done: list[dict[str, object]]) -> int:
    """Print what was seen; the number of faults."""
    kills = list(counted(done))
    print(f"{len(kills)} kills in {len(done)} trials")
    by: list[tuple[str, Callable[[Mapping[str, object]], object]]] = [
        ("scope", lambda kill: kill["scope"]),
        ("moment", lambda kill: kill["by"]),
    ]
    for title, key in by:
        print(f"  by {title}: {dict(Counter(map(key, kills)))}")
    print(f"  by workload: {dict(Counter(str(one['workload']) for one in done for _ in counted([one])))}")
    left = sum(bool(one["temporaries_before_the_next_run"]) for one in done)
    print(f"  trials that left a temporary before the next run: {left}")
    faulty = [one for one in done if one["faults"]]
    print(f"  trials with faults: {len(faulty)}")
    for one in faulty:
        print(f"  trial {one['trial']}, {one['workload']}: {'; '.join(one['faults'][:4])}")  # type: ignore[index]
    return len(faulty)


def main() -> int:
    """Go on until so many kills are recorded, then say what was seen."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=1000, help="how many in all, those of former calls included")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--folder", type=Path, default=Path("/tmp/traceviz-kill"))
    options.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    options.add_argument("--workload", action="append", choices=sorted(WORKLOADS), help="only these")
    options.add_argument("--report", action="store_true", help="only say what is recorded")
    chosen = options.parse_args()
    bench = Bench(chosen.folder)
    end = time.monotonic() + 60 * chosen.minutes
    done = results(bench.results, chosen.seed)
    while not chosen.report and len(list(counted(done))) < chosen.kills and time.monotonic() < end:
        number = max((int(str(one["trial"])) for one in done), default=-1) + 1
        one = trial(bench, chosen.seed, number, chosen.workload or DRAWN)
        done.append(one)
        with bench.results.open("a") as file:
            file.write(json.dumps(one) + "\n")
        killed = len(list(counted(done)))
        print(f"trial {number}: {one['workload']}, {killed} kills, faults {one['faults'][:3]}", flush=True)  # type: ignore[index]
    return 1 if report(done) else 0


if __name__ == "__main__":
    sys.exit(main())
