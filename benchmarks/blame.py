"""Whom the analysis blames: 100 healthy jobs, in which it must be nobody, and jobs with one GPU slowed to 1.3 times.

Run: ``python benchmarks/blame.py`` (a quarter of an hour on two cores). Every slow job is simulated again with the same
seed and without its fault: the difference of the step times is what fixing the GPU saves. It prints a table,
which docs/metrics.md sums up. ``--only PATTERN`` runs part of it; ``--figures FILE`` keeps each rank's figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.adversarial import MS, US, Job, healthy
from tests.analyze.across_ranks import analysed_here
from traceviz_dag.analyze.slow_ranks import slow_ranks
from traceviz_dag.analyze.waits.blame import late_ranks
from traceviz_dag.analyze.waits.blamed import wait_basis
from traceviz_dag.lake.summaries import computation_by_kernel
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Recompute

FACTOR, LEAST_GAIN = 1.3, 0.02

SMALL = JobSettings(
    layers=4, microbatches=4, hidden=1024, heads=8, feed_forward=4096, sequence=1024, vocabulary=8192, node_size=2
)
LARGE = replace(SMALL, hidden=2048, heads=16, feed_forward=8192, sequence=2048)
FEW = {"overlap_grad_reduce": False, "overlap_param_gather": False, "distributed_optimizer": False}
SHAPES: dict[str, dict[str, Any]] = {
    "dp2": {"dp": 2},
    "dp4": {"dp": 4},
    "dp4, few collectives": {"dp": 4, **FEW},
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "tp2 dp2": {"tp": 2, "dp": 2},
    "pp2": {"pp": 2},
    "pp4": {"pp": 4},
    "pp2 dp2": {"pp": 2, "dp": 2},
    "pp2 dp2, few collectives": {"pp": 2, "dp": 2, **FEW},
    "pp2 vpp2 dp2": {"pp": 2, "vpp": 2, "dp": 2},
    "tp2 pp2": {"tp": 2, "pp": 2, "recompute": Recompute.FULL},
    "ep2 dp2": {"ep": 2, "dp": 2},
}
ONE_A_STEP = 22
"""Healthy jobs with one all-reduce a step, written by rule (``tests/adversarial.py``)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One job. slow: the rank whose GPU is slowed; healthy: the same job without that, by name."""

    name: str
    job: JobSettings | Job
    slow: int | None = None
    healthy: str | None = None


def cases() -> list[Case]:
    """78 healthy simulated jobs and 22 with one communication per step; and a slow one for each that computes long."""
    found = []
    for shape, sizes in SHAPES.items():
        for turn, (model, large) in enumerate(((SMALL, False), (SMALL, False), (LARGE, True)) * 2):
            name = f"{shape}, {'large' if large else 'small'}, {turn}"
            # A third keeps one clock, a third is a few ms apart, a third 50 ms.
            skew = (0.0, 5.0, 50.0)[(turn + len(found)) % 3]
            settings = replace(model, **sizes, seed=500 + len(found), clock_skew_ms=skew, stacks=turn % 2 == 0)
            found.append(Case(name, settings))
    slow = [
        Case(f"{case.name}, slow GPU", case.job.with_faults(slow_gpu=rank, slow_gpu_factor=FACTOR), rank, case.name)
        for number, case in enumerate(found)
        if isinstance(case.job, JobSettings) and ", large, " in case.name
        for rank in [number % case.job.world]
    ]
    for number in range(ONE_A_STEP):
        world, ahead = 2 + number % 7, (-50 + 100 * (number % 2)) * MS
        jitter = (50 + 37 * number) * US
        job = healthy(world, 1 + number % 3, jitter, clock_ns={number % world: ahead})
        found.append(Case(f"one communication per step, {number}", job))
    return found + slow


def run(case: Case) -> dict[str, Any]:
    """Write the job's traces, analyse them, and say of each rank what the analysis says."""
    folder = Path(tempfile.mkdtemp(prefix="traceviz_blame_"))
    try:
        job = folder / "job"
        if isinstance(case.job, JobSettings):
            simulate(case.job, job, workers=1)
        else:
            case.job.write(job)
        return {"name": case.name, "slow": case.slow, "healthy": case.healthy} | judged(
            analysed_here(job, folder / "home")
        )
    finally:
        shutil.rmtree(folder)


def judged(iteration: StoredIteration) -> dict[str, Any]:
    """What is said of each rank, and what that rests on."""
    collectives = iteration.table("collectives")
    work = slow_ranks(computation_by_kernel(iteration.lake, iteration.run, iteration.iteration))
    return {
        "step_ns": iteration.step_ns,
        "waits": wait_basis(collectives),
        "late": late_ranks(collectives, iteration.step_ns).to_pylist(),
        "work": work.to_pylist(),
    }


def named(result: dict[str, Any]) -> set[int]:
    """The ranks that the analysis names, by their delays or by their kernels."""
    late = {row["rank"] for row in result["late"] if row["blamed"]}
    return late | {row["rank"] for row in result["work"] if row["slow"]}


def report(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The table, line by line."""
    sound = [each for each in results.values() if each["slow"] is None]
    wrong = {each["name"]: sorted(named(each)) for each in sound if named(each)}
    yield f"{len(sound)} healthy jobs; somebody is named in {len(wrong)}: {wrong or 'none'}"
    yield ""
    yield "| job | fixing saves | named by delay | named by kernels | |"
    yield "| --- | ---: | --- | --- | --- |"
    for each in results.values():
        if each["slow"] is None or each["healthy"] not in results:
            continue
        gain = 1 - results[each["healthy"]]["step_ns"] / each["step_ns"]
        if gain < LEAST_GAIN:
            continue
        late = [row["rank"] for row in each["late"] if row["blamed"]]
        slow = [row["rank"] for row in each["work"] if row["slow"]]
        alone = all(row["peers"] == 0 for row in each["work"] if row["rank"] == each["slow"])
        verdict = "found" if named(each) == {each["slow"]} else "no peer does the same work" if alone else "MISSED"
        yield f"| {each['name']} (rank {each['slow']}) | {gain:.1%} | {late} | {slow} | {verdict} |"


def main() -> int:
    """Run the matrix and print what it shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern of job names")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--figures", type=Path, help="write each job's figures here, a line of JSON a job")
    options = parser.parse_args()
    chosen = [case for case in cases() if fnmatch(case.name, options.only)]
    results = {}
    lines = options.figures.open("w") if options.figures else None
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for result in pool.map(run, chosen):
            results[result["name"]] = result
            if lines is not None:
                lines.write(json.dumps(result) + "\n")
                lines.flush()
    print("\n".join(report(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
