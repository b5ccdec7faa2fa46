"""Feeds mutated inputs of every kind through the whole in-process way, and counts how each one ends.

Run from the repository: ``python -m benchmarks.fuzz --state DIR [--inputs 10000] [--minutes 10] [--seed 1]
[--kinds kineto,nsys]``. It goes on where DIR/state.json says that it stopped. Input number N of a kind depends on the
seed, the kind and N alone. DIR/finds holds a minimal reproducer for each distinct failure. Exit code 1 where there is
one.

An input ends whole, partial (flagged), refused (one line), or in a failure: EXCEPTION (anything else that is raised),
UNCLEAR (a refusal of several lines, control characters in the output), MEMORY, TIMEOUT or CRASH.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.fuzzing import inputs, memory_inputs, parquet_inputs, ways
from traceviz_dag.errors import TracevizError

KINDS: dict[str, tuple[str, inputs.Make, Callable[[Path, random.Random], str]]] = {
    "kineto": ("trace.json", inputs.kineto, ways.kineto),
    "topology_text": ("unique_parallel_groups_1.txt", inputs.topology, ways.topology),
    "topology_json": ("unique_parallel_groups_1.json", inputs.topology, ways.topology),
    "pairs": ("pairs.toml", inputs.toml("pairs"), ways.pairs),
    "stamps": ("stamps.jsonl", inputs.stamps, ways.stamps),
    "rules": ("rules.toml", inputs.toml("rules"), ways.rules),
    "settings": ("traceviz.toml", inputs.toml("settings"), ways.settings),
    "capture": ("capture.toml", inputs.toml("capture"), ways.capture),
    "nsys": ("export.sqlite", inputs.nsys, ways.nsys),
    "folder": ("run", inputs.folder, ways.folder),
    "synchronizations": ("trace.json", inputs.synchronizations, ways.synchronizations),
    "records": ("trace-x.parquet", parquet_inputs.records, ways.records),
    "nsys_folder": ("export", parquet_inputs.nsys_folder, ways.nsys),
    "memory": ("snapshot.pickle", memory_inputs.memory, ways.memory),
}
"""Kind → (file name, maker, way)."""

SHARES = {
    **{"kineto": 40, "topology_text": 12, "topology_json": 12, "pairs": 6, "stamps": 6, "rules": 6},
    **{"settings": 6, "capture": 4, "nsys": 6, "folder": 2},
    **{"synchronizations": 8, "records": 8, "nsys_folder": 4, "memory": 20},
}
"""Inputs of each kind in 140."""

FAILURES = ("EXCEPTION", "UNCLEAR", "MEMORY", "TIMEOUT", "CRASH")
SECONDS_EACH = 20
"""Processor time that an input may take; a process that says nothing for eight times as long is ended."""
MEMORY_BYTES = 3 << 30
_BATCH = 20_000
_SAVED_EVERY = 100
_MINIMISING_SECONDS = 6.0


class SlowError(BaseException):
    """An input took longer than it may; no handler of Exception stops it."""


_FAILURE_OF: dict[type[BaseException], str] = {
    SlowError: "TIMEOUT",
    MemoryError: "MEMORY",
    ways.UnclearError: "UNCLEAR",
}


def outcome_of(kind: str, number: int, seed: int, folder: Path) -> tuple[str, str]:
    """Make one input and take it the whole way: (outcome, where a failure was raised)."""
    path = _make(kind, number, seed, folder)
    return _take(kind, path, number, seed)


def _make(kind: str, number: int, seed: int, folder: Path) -> Path:
    name, make, _ = KINDS[kind]
    path = folder / name
    make(random.Random(f"{seed}:{kind}:{number}"), path)
    return path


def _take(kind: str, path: Path, number: int, seed: int) -> tuple[str, str]:
    chance = random.Random(f"{seed}:{kind}:{number}:way")
    signal.setitimer(signal.ITIMER_PROF, SECONDS_EACH)
    ended, place = "", ""
    try:
        ended = KINDS[kind][2](path, chance)
    except TracevizError as error:
        ended = "refused" if ways.is_line(str(error)) else "UNCLEAR"
        place = "" if ended == "refused" else _place(error)
    except (Exception, SlowError) as error:  # noqa: BLE001 what the fuzzer is for
        ended = next((word for kind_of, word in _FAILURE_OF.items() if isinstance(error, kind_of)), "EXCEPTION")
        place = f"{error} {_place(error)}" if ended == "UNCLEAR" else _place(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ended, place


def _place(error: BaseException) -> str:
    """What was raised, and the innermost line of this project: one find a place."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "traceviz_dag" in frame.filename]
    frames = frames or traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/site-packages/" not in frame.filename] or frames
    return f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].name}: {own[-1].line}"


class State:
    """What was fed so far, in a file that outlives the process."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path = folder / "state.json"
        self.finds_folder = folder / "finds"
        self.finds_folder.mkdir(parents=True, exist_ok=True)
        known = json.loads(self.path.read_text()) if self.path.is_file() else {}
        self.seed: int = known.get("seed", seed)
        self.next: dict[str, int] = dict.fromkeys(KINDS, 0) | known.get("next", {})
        self.counts: dict[str, Counter[str]] = {kind: Counter(known.get("counts", {}).get(kind, {})) for kind in KINDS}
        self.finds: dict[str, dict[str, Any]] = known.get("finds", {})

    @property
    def total(self) -> int:
        """Inputs in all."""
        return sum(sum(counts.values()) for counts in self.counts.values())

    def add(self, kind: str, number: int, outcome: str, place: str, file: str = "") -> bool:
        """Count one input; whether it is the first of its failure."""
        self.counts[kind][outcome] += 1
        self.next[kind] = max(self.next[kind], number + 1)
        if outcome not in FAILURES:
            return False
        key = f"{outcome} {kind}: {place}"
        new = key not in self.finds
        find = self.finds.setdefault(key, {"kind": kind, "number": number, "count": 0, "file": file})
        find["count"] += 1
        return new

    def save(self) -> None:
        """Write it, whole or not at all."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.__dict__ | {"path": None, "finds_folder": None}, indent=1))
        fresh.replace(self.path)

    def table(self) -> str:
        """Counts by kind and outcome."""
        outcomes = ("whole", "partial", "refused", *FAILURES)
        lines = ["| input | " + " | ".join(("inputs", *outcomes)) + " |", "| --- |" + " --: |" * (len(outcomes) + 1)]
        rows = {**self.counts, "all": sum(self.counts.values(), Counter())}
        for kind, counts in rows.items():
            lines.append(
                f"| {kind} | "
                + " | ".join(f"{n:,}" for n in (sum(counts.values()), *(counts[o] for o in outcomes)))
                + " |"
            )
        return "\n".join(lines)


def minimal(kind: str, path: Path, number: int, seed: int, wanted: tuple[str, str]) -> None:
    """Take parts away from a file for as long as it still fails in the same way."""
    if not path.is_file():
        return
    until = time.monotonic() + _MINIMISING_SECONDS
    best = path.read_bytes()
    size = len(best) // 2
    while size and time.monotonic() < until:
        at, smaller = 0, False
        while at < len(best) and time.monotonic() < until:
            tried = best[:at] + best[at + size :]
            path.write_bytes(tried)
            if _take(kind, path, number, seed) == wanted:
                best, smaller = tried, True
            else:
                at += size
        size = size if smaller and size > 1 else size // 2
    path.write_bytes(best)


def work(kind: str, first: int, last: int, seed: int, finds: Path, known: set[str]) -> None:
    """Feed the inputs from ``first`` to ``last`` and print a JSON line for each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _too_slow)
    for number in range(first, last):
        with tempfile.TemporaryDirectory(dir=_SCRATCH, prefix="fuzz-") as folder:
            _tell({"begins": number})
            path = _make(kind, number, seed, Path(folder))
            outcome, place = _take(kind, path, number, seed)
            file = ""
            key = f"{outcome} {kind}: {place}"
            if outcome in FAILURES and key not in known:
                known.add(key)
                if outcome in ("EXCEPTION", "UNCLEAR"):
                    minimal(kind, path, number, seed, (outcome, place))
                file = f"{kind}-{number}-{path.name}"
                if path.is_file():
                    shutil.copyfile(path, finds / file)
        _tell({"number": number, "outcome": outcome, "place": place, "file": file})


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise SlowError


def _tell(value: dict[str, Any]) -> None:
    os.write(_REPORT, json.dumps(value).encode() + b"\n")


_REPORT = 3
_SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None


def feed(state: State, kind: str, count: int) -> None:
    """Feed the next ``count`` inputs of a kind in a separate process; one that dies or blocks is a failure."""
    first, last = state.next[kind], state.next[kind] + count
    while first < last:
        ended, at = False, first
        for told in _reports(kind, first, last, state):
            if "begins" in told:
                at = told["begins"]
                continue
            first = told["number"] + 1
            state.add(kind, told["number"], told["outcome"], told["place"], told["file"])
            ended = first >= last
            if first % _SAVED_EVERY == 0:
                state.save()
        if not ended:
            state.add(kind, at, "CRASH", "the process died or hung", "")
            first = at + 1
        state.save()


def _reports(kind: str, first: int, last: int, state: State) -> Iterator[dict[str, Any]]:
    """What the worker reports; it is ended where it reports nothing for twice the time of an input."""
    read, write = os.pipe()
    command = [sys.executable, "-m", "benchmarks.fuzz", "--state", str(state.path.parent), "--seed", str(state.seed)]
    command += ["--work", kind, str(first), str(last)]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.dup2(write, _REPORT),  # noqa: PLW1509 one thread
        pass_fds=(_REPORT,),
    ) as process:
        os.close(write)
        watchdog = _Watchdog(process)
        with os.fdopen(read) as lines:
            for line in lines:
                watchdog.stroke()
                yield json.loads(line)
        watchdog.end()


class _Watchdog:
    """Kills a process that says nothing for too long."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        import threading

        self._process, self._last, self._ended = process, time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stroke(self) -> None:
        """It said something."""
        self._last = time.monotonic()

    def end(self) -> None:
        """It is done."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(1):
            if time.monotonic() - self._last > 8 * SECONDS_EACH:
                self._process.kill()
                return


def main() -> int:
    """Feed inputs, and print what came of them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--state", type=Path, required=True, help="folder of the state and the reproducers")
    options.add_argument("--inputs", type=int, default=10_000, help="inputs to feed now")
    options.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--kinds", default=",".join(KINDS))
    options.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    state = State(chosen.state, chosen.seed)
    if chosen.work:
        kind, first, last = chosen.work
        work(kind, int(first), int(last), state.seed, state.finds_folder, set(state.finds))
        return 0
    until = time.monotonic() + 60 * chosen.minutes
    kinds = chosen.kinds.split(",")
    weight = sum(SHARES[kind] for kind in kinds)
    goal = state.total + chosen.inputs
    while state.total < goal and time.monotonic() < until:
        wanted = min(goal - state.total, _BATCH)
        for kind in kinds:
            share = -(-wanted * SHARES[kind] // weight)
            if time.monotonic() < until:
                feed(state, kind, min(share, max(goal - state.total, 0)))
        print(f"{state.total:,} inputs, {len(state.finds)} distinct failures", flush=True)
    print(state.table())
    for key, find in state.finds.items():
        print(f"{find['count']:7,}  {key}  [{find['kind']} {find['number']} {find['file']}]")
    return 1 if state.finds else 0


if __name__ == "__main__":
    sys.exit(main())
