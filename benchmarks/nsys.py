"""``traceviz nsys`` on large exports, beside nsys-ai on the same files: time and peak memory of every command.

Run: ``python benchmarks/nsys.py EXPORT...`` or ``python benchmarks/nsys.py --simulate --keep FOLDER``, which first
makes the export of a simulated job (8 GPUs, three iterations, 700 MB; about 6.5 minutes on two cores) and leaves it.
With ``--nsys-ai PATH``, the program of an environment of its own (``pip install nsys-ai``), its measures and times are
beside ours.

Each command is a process of its own, as a person starts it; the least processor time of ``--rounds`` counts, with the
time and the peak memory of that run. Our first command of an export reads it and keeps it in the home; it is shown
apart from the others. Below each table: which commands take more than they may.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

ONE_GPU = ("--gpu", "0")
COMMANDS: dict[str, tuple[str, ...]] = {
    "info": (),
    "suggest": (),
    "search": ("nccl",),
    "search --parent": ("nccl", "--parent", "c10d"),
    "summary": (),
    "overlap": (),
    "map": (),
    "gaps": (),
    "nccl": (),
    "nccl --slow": ("--slow", "2"),
    "copies": (),
    "launches": (),
    "flops": ("*", "--flops", "1e12"),
    "tree": (),
    "tree --in-order": ("--in-order",),
    "ranges": (),
    "pace": ("aten::copy_",),
    "iterations": (),
    "iterations --number": ("--number", "0"),
    "calls": (),
    "stalls": (),
}
"""Commands that print figures → what follows the export; once on all GPUs and once on one of them."""

LIMITS = {"first read": 20.0, "one GPU": 1.0, "all GPUs": 2.0, "small": 0.3}
"""Processor seconds that a command may take: over a large export at first, then of one GPU or all; over a small one."""

IMPORTS = "imports of others alone"
"""What every command needs of other packages; it shows how busy the machine is."""

MOST_GB, SMALL_MB = 1.7, 10
"""Memory of the first read of a large export; an export up to so large is small."""

WRITING = {"export-csv": "out.csv", "export-json": "out.json", "perfetto": "out.pftrace.gz", "viewer": "out.html"}
"""Commands that write a file of one GPU → its name."""

_ALL_TIME = ("--gpu", "0", "--trim", "0", "100000")
THEIRS = {
    "info": (),
    "summary": ONE_GPU,
    "overlap": _ALL_TIME,
    "tree": _ALL_TIME,
    "nccl": _ALL_TIME,
    "iterations": _ALL_TIME,
    "search": ("--gpu", "0", "--query", "nccl"),
}
THEIR_NAMES = {"iterations": "iters"}
THEIR_SKILLS = {
    "summary": "top_kernels",
    "launches": "kernel_launch_overhead",
    "stalls": "host_sync_parent_ranges",
    "tree --in-order --gpu 0": "nvtx_kernel_map",
}
"""Our command → the skill that answers it."""

HELP = "--help"
"""What every command takes before it does anything; a command may not take more than theirs beyond it."""


_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Run:
    """One command: wall and processor time in seconds, peak memory in GB, what it printed; ``ok``: it did not fail."""

    ok: bool
    seconds: float
    processor: float
    peak: float
    output: str


def run_once(command: list[str], environment: dict[str, str]) -> Run:
    """Run a command; its figures are its own and its processes', not those of commands before it.

    The server that workers fork from outlives the command that started it, and nobody would wait for it and for them:
    of 64 ranks that is half of the processor time.
    """
    _adopt(True)
    started = time.perf_counter()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, process_group=0
    )
    assert child.stdout is not None
    parts: list[str] = []
    reader = threading.Thread(target=lambda: parts.append(child.stdout.read()))  # type: ignore[union-attr]
    reader.start()
    _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    every = [used]
    with suppress(ChildProcessError):
        while True:
            every.append(os.wait4(-child.pid, 0)[2])
    _adopt(False)
    reader.join()
    child.stdout.close()
    processor = sum(one.ru_utime + one.ru_stime for one in every)
    return Run(child.returncode == 0, seconds, processor, used.ru_maxrss * 1024 / 1e9, "".join(parts))


def _adopt(on: bool) -> None:
    """Whether this process is the parent of those below it that outlive theirs; on Linux alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def run(command: list[str], environment: dict[str, str], rounds: int) -> Run:
    """The quickest of some runs; the first that fails."""
    found = []
    for _ in range(rounds):
        found.append(run_once(command, environment))
        if not found[-1].ok:
            return found[-1]
    return min(found, key=lambda one: one.processor)


def simulated(folder: Path) -> Path:
    """Make the export of a simulated job: tensor, pipeline and data 2, 48 layers, 90 micro-batches, 3 iterations."""
    from eight_gpus import eight_gpus

    started = time.perf_counter()
    export = eight_gpus(folder / "job", layers=48, microbatches=90, iterations=3)
    print(f"{export}: {export.stat().st_size / 1e6:,.0f} MB, made in {time.perf_counter() - started:,.0f} s")
    return export


def ours_of(export: Path, home: Path, rounds: int) -> dict[str, Run]:
    """The rows of our table: the first command, then each command on all GPUs and on one."""
    ours = [sys.executable, "-m", "traceviz_dag.commands.main", "nsys"]
    environment = {**_own_environment(), "TRACEVIZ_HOME": str(home)}
    imports = [sys.executable, "-c", "import numpy, pyarrow, pyarrow.parquet, typer"]
    found = {IMPORTS: run(imports, {**environment, "OPENBLAS_NUM_THREADS": "1"}, 2 * rounds)}
    found[HELP] = run([*ours[:-1], HELP], environment, rounds)
    for command, what in (("overlap", "first read"), ("tree", "first read of the ranges")):
        found[f"{what} ({command} --gpu 0)"] = run([*ours, command, str(export), *ONE_GPU], environment, 1)
    for name, more in COMMANDS.items():
        command = [*ours, name.split()[0], str(export), *more]
        found[name] = run(command, environment, rounds)
        if name != "info":
            found[f"{name} --gpu 0"] = run([*command, *ONE_GPU], environment, rounds)
    for name, file in WRITING.items():
        command = [*ours, name, str(export), *ONE_GPU, "-o", str(home / file)]
        found[f"{name} --gpu 0"] = run(command, environment, rounds)
    return found


def theirs_of(program: str, export: Path, rounds: int) -> dict[str, Run]:
    """The same commands of nsys-ai, by our names."""
    commands = {
        name if name == "info" else f"{name} --gpu 0": [THEIR_NAMES.get(name, name), str(export), *more]
        for name, more in THEIRS.items()
    }
    commands |= {name: ["skill", "run", skill, str(export)] for name, skill in THEIR_SKILLS.items()}
    commands[HELP] = [HELP]
    return {name: run([program, *words], _own_environment(), rounds) for name, words in commands.items()}


def _own_environment() -> dict[str, str]:
    """The environment of a person, whose Python keeps what it compiles."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def slower(ours: dict[str, Run], theirs: dict[str, Run]) -> list[str]:
    """A line for each command that takes more processor time than theirs, each over its own help."""
    lines = []
    for name, other in theirs.items():
        mine, theirs_take = (one[name].processor - one[HELP].processor for one in (ours, theirs))
        if other.ok and ours[name].ok and mine > theirs_take:
            lines.append(f"{name} takes {mine:.2f} processor seconds over {HELP}, nsys-ai {theirs_take:.2f}")
    return lines


def compared(ours: list[dict], theirs: list[dict]) -> list[str]:
    """Lines that hold our overlap beside theirs, and what the difference is."""
    (a,), b = ours, theirs[0]
    rows = [
        ("span", a["span_ns"], b["total_ms"]),
        ("compute without communication", a["compute_ns"] - a["hidden_ns"], b["compute_only_ms"]),
        ("exposed communication", a["exposed_ns"], b["nccl_only_ms"]),
        ("hidden communication", a["hidden_ns"], b["overlap_ms"]),
        ("idle", a["idle_ns"], b["idle_ms"]),
        ("idle, copies counted as idle", a["span_ns"] - a["compute_ns"] - a["exposed_ns"], b["idle_ms"]),
    ]
    lines = ["| figure, ms | ours | nsys-ai |", "| --- | ---: | ---: |"]
    return lines + [f"| {name} | {value / 1e6:,.3f} | {other:,.2f} |" for name, value, other in rows]


def limit_of(name: str, megabytes: float) -> float | None:
    """Processor seconds that a command of our table may take; None for those that write files, and for imports."""
    if name.startswith("first read"):
        return LIMITS["first read"] if megabytes > SMALL_MB else None
    if name in (IMPORTS, HELP) or name.split(maxsplit=1)[0] in WRITING:
        return None
    if megabytes <= SMALL_MB:
        return LIMITS["small"]
    return LIMITS["one GPU" if name.endswith(" ".join(ONE_GPU)) else "all GPUs"]


def misses(ours: dict[str, Run], megabytes: float) -> list[str]:
    """A line for each command that fails or takes more than it may."""
    lines = []
    for name, one in ours.items():
        limit = limit_of(name, megabytes)
        if not one.ok:
            lines.append(f"{name} fails")
        elif limit is not None and one.processor > limit:
            lines.append(f"{name} takes {one.processor:.2f} processor seconds, more than {limit:g}")
        if name.startswith("first read") and one.peak > MOST_GB:
            lines.append(f"{name} takes {one.peak:.2f} GB, more than {MOST_GB:g}")
    return lines


def printed(ours: dict[str, Run], theirs: dict[str, Run]) -> None:
    """The Markdown table."""
    head = ["command", "s", "processor s", "peak GB"] + (["nsys-ai, s", "nsys-ai, processor s"] if theirs else [])
    print(f"| {' | '.join(head)} |\n| --- |{' ---: |' * (len(head) - 1)}")
    for name, one in ours.items():
        cells = [name, f"{one.seconds:.2f}", f"{one.processor:.2f}", f"{one.peak:.2f}"] if one.ok else [name, "fails"]
        other = theirs.get(name)
        if theirs and one.ok:
            told = other is not None and other.ok
            cells += [f"{other.seconds:.2f}", f"{other.processor:.2f}"] if other and told else ["–", "–"]
        print(f"| {' | '.join(cells)} |")


def measure(export: Path, given: argparse.Namespace) -> None:
    """Measure one export."""
    print(f"\n## {export.name}, {export.stat().st_size / 1e6:,.1f} MB\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs: dict[str, Run] = {}
        if given.nsys_ai:
            # A copy: the other program writes its caches beside the file.
            copy = Path(shutil.copy(export, folder))
            copy.chmod(0o644)
            theirs = theirs_of(given.nsys_ai, copy, given.rounds)
        ours = ours_of(export, folder / "home", given.rounds)
        printed(ours, theirs)
        too_slow = misses(ours, export.stat().st_size / 1e6) + (slower(ours, theirs) if theirs else [])
        print("\n".join(too_slow) or "\nNothing takes more than it may.")
        if given.nsys_ai:
            mine = [sys.executable, "-m", "traceviz_dag.commands.main", "nsys", "overlap", str(export), *ONE_GPU]
            figures = run_once([*mine, "--home", str(folder / "home"), "--json"], dict(os.environ))
            skill = [given.nsys_ai, "skill", "run", "overlap_breakdown", str(copy), "--format", "json"]
            others = run_once(skill, dict(os.environ))
            print()
            print("\n".join(compared(json.loads(figures.output), json.loads(others.output))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", nargs="*", type=Path)
    parser.add_argument("--simulate", action="store_true", help="make the export of a simulated job and measure it")
    parser.add_argument("--keep", type=Path, help="folder in which the simulated export stays")
    parser.add_argument("--nsys-ai", default=shutil.which("nsys-ai"), help="program of nsys-ai; without it ours alone")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if not given.exports and not given.simulate:
        parser.error("give exports, or --simulate")
    for export in given.exports:
        measure(export, given)
    if given.simulate:
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
        with nullcontext(given.keep) if given.keep else tempfile.TemporaryDirectory() as folder:
            # A process of its own: what this one has needed would count as the least memory of every command.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                export = pool.submit(simulated, Path(folder)).result()
            measure(export, given)


if __name__ == "__main__":
    main()
