"""Small jobs of every kind that people bring, analysed once for all tests, to hold what commands say against SQL."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path

import pyarrow as pa

from tests.adversarial import one_clock_ahead, too_few_matches, unsolvable_clocks
from tests.analyze.across_ranks import SMALL
from tests.in_process import ranks_in_this_process
from tests.kineto_file import KinetoFile
from tests.made_once import made_once
from tests.small_run import GEMM, groups_of
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Edges, Era, Faults, Layout, Recompute

_PLAIN = JobSettings(pp=2, dp=2, microbatches=4, node_size=2, gzip=False, **{**SMALL, "layers": 4, "hidden": 1024})


def _simulated(settings: JobSettings) -> Callable[[Path], None]:
    return lambda folder: simulate(settings, folder, workers=1) and None


def _two_steps_in_a_file(folder: Path) -> None:
    """Files whose path says one iteration, and that hold two training steps."""
    simulate(replace(_PLAIN, iterations=2, layout=Layout.TORCH_PROFILE), folder, workers=1)
    for path in sorted(folder.glob("torch_profile/rank-*")):
        rank = int(path.name.removeprefix("rank-").split(".")[0])
        target = folder / f"iteration_10/rank_{rank:04d}_iter_10.pt.trace.json"
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    shutil.rmtree(folder / "torch_profile")


def _without_topology(folder: Path) -> None:
    """Headers without described groups, and no text file."""
    simulate(replace(_PLAIN, era=Era.TORCH_2_3), folder, workers=1)
    for path in folder.rglob("unique_parallel_groups*"):
        path.unlink()


def _one_rank(folder: Path) -> None:
    simulate(_PLAIN, folder, workers=1)
    for path in folder.glob("iteration_*/rank_*"):
        if "rank_0000" not in path.name:
            path.unlink()


def _split_pipelines(folder: Path) -> None:
    """Of each of two pipelines another stage is missing."""
    simulate(_PLAIN, folder, workers=1)
    for path in folder.glob("iteration_*/rank_*"):
        if "rank_0000" not in path.name and "rank_0003" not in path.name:
            path.unlink()


def _blind_rank(folder: Path) -> None:
    """One rank was captured without its host: kernels, and nothing that launches them."""
    simulate(_PLAIN, folder, workers=1)
    (path,) = folder.glob("iteration_*/rank_0003*")
    trace = json.loads(path.read_text())
    host = ("cpu_op", "python_function", "cuda_runtime", "fwdbwd", "ac2g")
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") not in host]
    path.write_text(json.dumps(trace))


def _without_micro_batches(folder: Path) -> None:
    """Pipelines of two stages whose kernels nothing puts into a forward or a backward step."""
    for rank in range(4):
        file = KinetoFile(rank=rank, world_size=4, groups=groups_of(rank, 4))
        file.annotation("ProfilerStep#7", 0, 100_000)
        for place in range(4):
            at = 1_000 + place * 10_000
            file.kernel(GEMM, at + 100, at + 9_000 + rank * 100, launched=at)
        file.kernel(GEMM, 99_000, 119_000, launched=98_000)
        file.write(folder / f"iteration_7/rank_{rank:04d}_iter_7.pt.trace.json")


JOBS: dict[str, Callable[[Path], None]] = {
    "healthy": _simulated(_PLAIN),
    "slow_rank": _simulated(replace(_PLAIN, tp=2, faults=Faults(slow_gpu=5), clock_skew_ms=3.0)),
    "bad_split": _simulated(replace(_PLAIN, layers=8, faults=Faults(bad_stage_split=2))),
    "alone_in_stage": _simulated(replace(_PLAIN, dp=1, pp=4, faults=Faults(slow_gpu=1))),
    "two_steps": _two_steps_in_a_file,
    "with_sizes": _simulated(replace(_PLAIN, shapes=True, recompute=Recompute.FULL)),
    "two_iterations": _simulated(replace(_PLAIN, iterations=2)),
    "one_rank": _one_rank,
    "slow_link": _simulated(replace(_PLAIN, tp=2, node_size=4, hidden=2048, faults=Faults(slow_link=3))),
    "uneven_experts": _simulated(replace(_PLAIN, pp=1, dp=4, ep=2, faults=Faults(expert_imbalance=0.7))),
    "without_clocks": lambda folder: too_few_matches().write(folder) and None,
    "clock_ahead": lambda folder: one_clock_ahead().write(folder) and None,
    "scattered": lambda folder: unsolvable_clocks().write(folder) and None,
    "split_pipelines": _split_pipelines,
    "blind_rank": _blind_rank,
    "missing_stage": _simulated(replace(_PLAIN, edges=Edges(missing_rank=2))),
    "without_topology": _without_topology,
    "dp_only": _simulated(replace(_PLAIN, pp=1, dp=4, faults=Faults(graph_break=1))),
    "bursts": _simulated(replace(_PLAIN, tp=2, hidden=2048, faults=Faults(bursts=0.3, bursts_every_ms=3.0))),
    "without_stacks": _simulated(replace(_PLAIN, stacks=False)),
    "without_micro_batches": _without_micro_batches,
}


@cache
def traces_of(name: str) -> Path:
    """The job's run folder."""
    return made_once(f"traces_{name}", lambda folder: _in(folder / name, JOBS[name])) / name


def _in(folder: Path, make: Callable[[Path], None]) -> None:
    folder.mkdir()
    make(folder)


class Analysed(StoredIteration):
    """An iteration whose tables are all in its lake."""

    def table(self, name: str) -> pa.Table:
        """A stored table."""
        return self.lake.table(name, self.run, self.iteration).arrow()


@cache
def analysed_at(path: Path) -> tuple[Analysed, ...]:
    """The iterations of a path, with every table that ``traceviz analyze`` writes of them, in a home of their own."""
    home = made_once(f"home_{sha256(str(path).encode()).hexdigest()[:16]}", lambda folder: _analyse(path, folder))
    found = [(inputs.run, inputs.iteration, inputs) for inputs in inputs_below([path])]
    return tuple(Analysed(open_lake(home), *each) for each in found)


def _analyse(path: Path, home: Path) -> None:
    with ranks_in_this_process():
        analyse(AnalysisSettings(home, allow_partial=True), inputs_below([path]))


def home_of(name: str) -> Path:
    """The job's home; iterations of one run share it."""
    return analysed_at(traces_of(name))[0].lake.home
