"""Every trace folder of the shared data, whole and with one rank damaged, through every command that reads traces.

    python benchmarks/partial_input.py SHARED_DATA [FOLDER ...]

Prints one line a folder and damage, with the commands that gave a wrong exit code or did not name the rank, and exits
with 1 where there was one. The whole matrix takes about a quarter of an hour on two idle cores; tests/commands has the
same on a small run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import damage
from tests.damage import Answer, call

FOLDERS = (
    "kineto/dlrm8",
    *(
        f"{kind}/{name}"
        for kind in ("megatron_gpu", "megatron_cpu")
        for name in ("pp4_1f1b", "pp2_ep2_moe", "pp2_dp2_distopt_overlap", "tp2_pp2_vpp2_full")
    ),
)
DAMAGES: dict[str, Callable[[Path], None] | None] = {
    "whole": None,
    "truncated": damage.truncate,
    "missing": damage.remove,
    "foreign": damage.of_a_larger_world,
    "odd": damage.times_as_text,
}
RANK = 1
_UNSOLVED = ("clocks", "waits", "waits of the lake")
WITHOUT_EVIDENCE = {
    "kineto/dlrm8": ("pipelines", "periods", "periods of the lake"),
    "megatron_cpu/pp4_1f1b": (*_UNSOLVED, "figures"),
    "megatron_cpu/pp2_ep2_moe": (*_UNSOLVED, "figures"),
    "megatron_cpu/pp2_dp2_distopt_overlap": _UNSOLVED,
    "megatron_cpu/tp2_pp2_vpp2_full": (*_UNSOLVED, "figures"),
}
"""What a job has no answer to, whole or not: exit 2. dlrm8 has no pipelines. Communication of CPU ranks does not end
together, so their clocks are not solved, no wait is certain, and there is no wait map; of a single replica, there is no
figure of all ranks, either."""


def commands(run: Path, home: Path, out: Path) -> dict[str, list[str | Path]]:
    """Name → arguments of each command that reads traces from a folder, and of some that read the lake."""
    stored = ["--home", home]
    return {
        "doctor": ["doctor", run],
        "analyze": ["analyze", run, *stored],
        "overlap": ["overlap", run, *stored],
        **{name: [name, run, *stored] for name in ("waits", "clocks", "pipelines", "periods")},
        **{f"{name} of the lake": [name, "--run", run.name, *stored] for name in ("waits", "periods")},
        "figures": ["figures", run, "--kind", "all_ranks,wait_map", "--formats", "svg", *stored],
        "perfetto export": ["perfetto", "export", run, "--out", out, *stored],
        "topology": ["topology", run],
    }


def fault(folder: str, name: str, kind: str, answer: Answer) -> str | None:
    """What is wrong with an answer; None where nothing is."""
    partial = kind != "whole" and (name != "topology" or kind == "foreign")
    if answer.code != (2 if partial or name in WITHOUT_EVIDENCE.get(folder, ()) else 0):
        return f"{name}: exit {answer.code}"
    if "Traceback" in answer.err + answer.out:
        return f"{name}: a traceback"
    if partial and f"rank {RANK}" not in answer.err + answer.out:
        return f"{name}: rank not named"
    return None


def main() -> int:
    """Run the matrix; the number of faults is the exit code."""
    data = Path(sys.argv[1])
    wrong = 0
    for name in sys.argv[2:] or FOLDERS:
        for kind, change in DAMAGES.items():
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder) / Path(name).name
                shutil.copytree(data / name, run, ignore=shutil.ignore_patterns("truth"))
                for path in run.rglob("*"):
                    path.chmod(0o755)
                if change is not None:
                    change(next(path for path in sorted(run.rglob("*.json.gz")) if _is_rank(path)))
                started = time.process_time()
                asked = commands(run, Path(folder) / "home", Path(folder) / "out.pftrace")
                found = [said for one, words in asked.items() if (said := fault(name, one, kind, call(*words)))]
                wrong += len(found)
                print(f"{name:44} {kind:10} {time.process_time() - started:6.1f} s  {'; '.join(found) or 'right'}")
    return 1 if wrong else 0


def _is_rank(path: Path) -> bool:
    return path.name.startswith((f"rank_{RANK:04d}", f"rank{RANK}."))


if __name__ == "__main__":
    sys.exit(main())
