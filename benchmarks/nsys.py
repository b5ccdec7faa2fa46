"""``traceviz nsys`` beside nsys-ai on the same exports: figures compared, times as ratios of the same run.

Run: ``python benchmarks/nsys.py --nsys-ai PATH EXPORT...``, where PATH is the program of an environment of its own
(``pip install nsys-ai``). Each command is a process of its own, as a person starts it; the least time of ``--rounds``
counts. Our first command of an export reads it and keeps it in the home; it is shown apart from the others.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = {
    "info": ([], []),
    "summary": (["--gpu", "0"], ["--gpu", "0"]),
    "overlap": (["--gpu", "0"], ["--gpu", "0", "--trim", "0", "100000"]),
    "tree": (["--gpu", "0"], ["--gpu", "0", "--trim", "0", "100000"]),
    "nccl": (["--gpu", "0"], ["--gpu", "0", "--trim", "0", "100000"]),
    "iterations": (["--gpu", "0"], ["--gpu", "0", "--trim", "0", "100000"]),
    "search": (["nccl", "--gpu", "0"], ["--gpu", "0", "--query", "nccl"]),
}
"""Our name of a command → our options, theirs."""

THEIR_NAMES = {"iterations": "iters"}


def run(command: list[str], environment: dict[str, str], rounds: int) -> tuple[float | None, str]:
    """The least wall time of some runs in seconds, None where the program fails, and its output."""
    best, output = None, ""
    for _ in range(rounds):
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        seconds = time.perf_counter() - started
        if done.returncode:
            return None, done.stderr
        best, output = min(seconds, best or seconds), done.stdout
    return best, output


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exports", nargs="+", type=Path)
    parser.add_argument("--nsys-ai", default=shutil.which("nsys-ai"), help="program of nsys-ai; without it ours alone")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for export in given.exports:
        print(f"\n## {export.name}, {export.stat().st_size / 1e6:,.1f} MB\n")
        with tempfile.TemporaryDirectory() as folder:
            # A copy: the other program writes its caches beside the file.
            copy = Path(shutil.copy(export, folder))
            copy.chmod(0o644)
            environment = {**os.environ, "TRACEVIZ_HOME": f"{folder}/home"}
            ours = [sys.executable, "-m", "traceviz_dag.commands.main", "nsys"]
            first, _ = run([*ours, "overlap", str(copy), "--json"], environment, 1)
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
            print(f"first command, which reads the export: {first:.1f} s, peak memory {peak:.2f} GB\n")
            print("| command | ours, s | nsys-ai, s | nsys-ai / ours |\n| --- | ---: | ---: | ---: |")
            for name, (own, other) in COMMANDS.items():
                mine, _ = run([*ours, name, str(copy), *own, "--json"], environment, given.rounds)
                theirs = None
                if given.nsys_ai:
                    command = [given.nsys_ai, THEIR_NAMES.get(name, name), str(copy), *other]
                    theirs, _ = run(command, environment, given.rounds)
                ratio = f"{theirs / mine:.2f}" if mine and theirs else "–"
                print(f"| {name} | {mine or 0:.2f} | {f'{theirs:.2f}' if theirs else 'fails or absent'} | {ratio} |")
            if given.nsys_ai:
                _, figures = run([*ours, "overlap", str(copy), "--gpu", "0", "--json"], environment, 1)
                skill = [given.nsys_ai, "skill", "run", "overlap_breakdown", str(copy), "--format", "json"]
                _, others = run(skill, environment, 1)
                print()
                print("\n".join(compared(json.loads(figures), json.loads(others))))


if __name__ == "__main__":
    main()
