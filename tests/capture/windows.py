"""Jobs that record many windows, on every path of the plugin, under glibc's heap checker.

A window is one iteration of one rank. The checker looks at every block that is freed, and freed memory is overwritten,
so that a write into it does not go unnoticed for long.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from traceviz_dag.capture.plugin import Numbers

HERE = Path(__file__).parent
CHECKER = "libc_malloc_debug.so.0"
CHECKED = {
    "LD_PRELOAD": CHECKER,
    "GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.perturb=165",
    "PYTHONFAULTHANDLER": "1",
    "OMP_NUM_THREADS": "1",
}
UNCHECKED = {"LD_PRELOAD": ""}
"""For jobs that fork: where another thread is in the checker's malloc, the child waits for its lock for ever."""


@dataclass(frozen=True)
class Case:
    """One job.

    Attributes:
        wanted: iterations to record.
        count: iterations that the job trains.
        capture: further variables of the plugin, without their prefix.
        ways: words for windows_job.py; None trains with Megatron-core.
        megatron: the scenario's and the job's further settings.
        ranks: number of processes.
    """

    name: str
    wanted: str
    count: int
    capture: Mapping[str, str] = field(default_factory=dict)
    ways: Sequence[str] | None = ()
    megatron: Mapping[str, object] = field(default_factory=dict)
    ranks: int = 1

    @property
    def expected(self) -> set[tuple[int, int]]:
        """Iteration and rank of every window."""
        wanted = Numbers.of(self.wanted)
        return {(number, rank) for number in range(1, self.count + 1) if number in wanted for rank in range(self.ranks)}


BARE = {"stacks": "0", "shapes": "0"}
CASES = (
    Case("optimizer steps, 2-40", "2-40", 42),
    Case("optimizer steps, 2-40, no stacks", "2-40", 42, BARE),
    Case("optimizer steps, 2-40, memory", "2-40", 42, {"memory": "1"}),
    Case("optimizer steps, 6-7", "6-7", 9),
    Case("optimizer steps, list, warm-up 0", "2,4-9,12,14-16", 18, {"warmup": "0"}),
    Case("optimizer steps, list, warm-up 3", "3,6-7,12-20,29", 31, {"warmup": "3"}),
    Case("optimizer steps inside record_function", "2-30", 32, {}, ["recorded"]),
    Case("record_function around epochs", "2-9,13,16-30", 32, {}, ["epochs", "recorded"]),
    Case("DataLoader, 2-30", "2-30", 32, {}, ["loader"]),
    Case("DataLoader, list, no stacks", "2,4-9,11-21", 24, BARE, ["loader", "epochs"]),
    Case("script, 1-30", "1-30", 31, {}, ["script"]),
    Case("script inside record_function, warm-up 3", "3,6-7,9-30", 31, {"warmup": "3"}, ["script", "epochs", "loader"]),
    Case("torchrun, 3,6-7", "3,6-7", 9, {"ranks": "all"}, (), ranks=2),
    Case("torchrun, 2-20, memory", "2-20", 22, {"ranks": "all", "memory": "1"}, (), ranks=2),
    Case("torchrun, DataLoader, 2-20, no stacks", "2-20", 22, {"ranks": "all", **BARE}, ["loader"], ranks=2),
    Case("Megatron's train_step, 2,4-12", "2,4-12", 13, {"ranks": "all"}, None, ranks=4),
    Case(
        "Megatron's train_step, warm-up 3, memory",
        "3,6-7,9-12",
        13,
        {"ranks": "all", "warmup": "3", "memory": "1"},
        None,
        {"pp": 4, "vpp": None},
        ranks=4,
    ),
    Case("Megatron, optimizer steps", "2-12", 13, {"ranks": "all"}, None, {"without": "train_step"}, ranks=4),
    Case(
        "Megatron, calls of train_step, no stacks",
        "2-12",
        13,
        {"ranks": "all", "warmup": "0", **BARE},
        None,
        {"without": "curr_iteration"},
        ranks=4,
    ),
    Case(
        "oldest Megatron-core, 1-12",
        "1-12",
        13,
        {"ranks": "all"},
        None,
        {"pp": 4, "vpp": None, "oldest": True},
        ranks=4,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        windows: that it recorded.
        fault: how it died or what it lacks; None where all is well.
        said: its standard error.
    """

    windows: int
    fault: str | None
    said: str


def run(case: Case, python: Path, plugin_folder: Path, folder: Path) -> Outcome:
    """Run a job in an empty folder."""
    out = folder / "out"
    capture = {"iterations": case.wanted, "out": str(out), **case.capture}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACEVIZ_CAPTURE_")}
    environment |= {**CHECKED, "PYTHONPATH": "" if case.ways is None else str(plugin_folder)}
    if case.ways is None:
        command = _megatron(case, capture, python, plugin_folder, folder)
    else:
        environment |= {f"TRACEVIZ_CAPTURE_{name.upper()}": value for name, value in capture.items()}
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
        launcher = [*(torchrun if case.ranks > 1 else []), "-m", "traceviz_capture"]
        command = [str(python), *launcher, str(HERE / "windows_job.py"), str(case.count), *case.ways]
    result = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    found = {
        (int(path.parent.name.removeprefix("iteration_")), int(path.name.split("_")[1]))
        for path in out.glob("iteration_*/rank_*.pt.trace.json.gz")
    }
    return Outcome(len(found), _fault(result, case.expected, found), result.stderr)


def _megatron(case: Case, capture: Mapping[str, str], python: Path, plugin_folder: Path, folder: Path) -> list[str]:
    given = dict(case.megatron)
    packages = [str(python.parents[1] / "oldest")] if given.pop("oldest", False) else []
    scenario = {"name": "windows", "first": 1, "count": case.count, "capture": capture}
    scenario |= {name: given.pop(name) for name in ("without",) if name in given}
    job = {
        "world": case.ranks,
        "microbatches": 2,
        "folder": str(folder),
        "plugin_folder": str(plugin_folder),
        "pp": 2,
        "vpp": 2,
        "order": "tp-cp-ep-dp-pp",
        "packages": packages,
        "install_before_import": False,
        **given,
        "scenarios": [scenario],
    }
    (folder / "job.json").write_text(json.dumps(job))
    return [str(python), str(HERE / "megatron_job.py"), str(folder / "job.json")]


def _fault(
    result: subprocess.CompletedProcess[str], expected: set[tuple[int, int]], found: set[tuple[int, int]]
) -> str | None:
    died = [name for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL") if name in result.stderr]
    if result.returncode < 0:
        died = [signal.Signals(-result.returncode).name]
    if result.returncode or died:
        return f"killed by {died[0]}" if died else f"left with {result.returncode}"
    missing = sorted(expected - found)
    return f"{len(missing)} windows are missing, first iteration, rank: {missing[0]}" if missing else None
