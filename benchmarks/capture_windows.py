"""Does a job that records windows ever die? Trains again and again on every path, under glibc's heap checker.

    make capture-environment
    python benchmarks/capture_windows.py --python .venv-capture/bin/python --windows 1000 --results windows.jsonl

A window is one iteration of one rank; the cases are in tests/capture/windows.py. Each job is made of new processes,
which leave as any Python process does. Results are added to a file, so that a run that was cut off goes on; a job that
dies is named with its case and counted, and its standard error kept beside the file. With --plugin, another plugin file
is put to the same test.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.capture.windows import CASES, CHECKER, Case, run
from traceviz_dag.capture.patch import plugin_text


def done_before(results: Path, plugin: str) -> list[dict[str, Any]]:
    """Jobs of this plugin in the file of results."""
    if not results.exists():
        return []
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    return [line for line in lines if line["plugin"] == plugin]


def one_job(case: Case, python: Path, plugin_folder: Path, number: int, results: Path, plugin: str) -> dict[str, Any]:
    """Run a job and note what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(case, python, plugin_folder, Path(folder))
    job = {
        "plugin": plugin,
        "case": case.name,
        "number": number,
        "windows": outcome.windows,
        "wanted": len(case.expected),
        "fault": outcome.fault,
    }
    if outcome.fault is not None:
        name = f"{results.stem}.{plugin}.{case.name.replace(' ', '_')}.{number}.txt"
        results.with_name(name).write_text(outcome.said)
    with results.open("a") as file:
        file.write(json.dumps(job) + "\n")
    return job


def table(jobs: list[dict[str, Any]]) -> str:
    """A line for each case, and the sums."""
    lines = [f"{'case':<44} {'jobs':>5} {'windows':>8} {'faults':>7}"]
    for name in dict.fromkeys(job["case"] for job in jobs):
        of_case = [job for job in jobs if job["case"] == name]
        faults = Counter(job["fault"].split(",")[0] for job in of_case if job["fault"])
        words = ", ".join(f"{count} {fault}" for fault, count in faults.items())
        windows = sum(job["windows"] for job in of_case)
        lines.append(f"{name:<44} {len(of_case):>5} {windows:>8} {sum(faults.values()):>7}  {words}")
    faults = sum(job["fault"] is not None for job in jobs)
    lines.append(f"{'all':<44} {len(jobs):>5} {sum(job['windows'] for job in jobs):>8} {faults:>7}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="interpreter of the capture environment")
    parser.add_argument("--windows", type=int, default=1000, help="go on until so many were wanted, every case in turn")
    parser.add_argument("--results", type=Path, default=Path("capture_windows.jsonl"))
    parser.add_argument("--plugin", type=Path, help="a plugin file; default this package's")
    parser.add_argument("--case", action="append", help="only cases whose name contains this")
    given = parser.parse_args()
    if subprocess.run(["true"], env={"LD_PRELOAD": CHECKER}, capture_output=True, check=False).stderr:
        sys.exit(f"{CHECKER} cannot be preloaded here (glibc 2.34 or newer brings it): nothing would be checked")
    text = plugin_text() if given.plugin is None else given.plugin.read_text()
    plugin = hashlib.sha256(text.encode()).hexdigest()[:12]
    cases = [case for case in CASES if not given.case or any(part in case.name for part in given.case)]
    jobs = [job for job in done_before(given.results, plugin) if job["case"] in {case.name for case in cases}]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "traceviz_capture.py").write_text(text)
        number = 0
        while sum(job["wanted"] for job in jobs) < given.windows:
            number += 1
            for case in cases:
                if any(job["case"] == case.name and job["number"] == number for job in jobs):
                    continue
                jobs.append(one_job(case, given.python.absolute(), Path(folder), number, given.results, plugin))
                windows = sum(job["windows"] for job in jobs)
                print(f"{windows} windows, {case.name}: {jobs[-1]['fault'] or 'well'}", flush=True)
    print(table(jobs))
    sys.exit(any(job["fault"] for job in jobs))


if __name__ == "__main__":
    main()
