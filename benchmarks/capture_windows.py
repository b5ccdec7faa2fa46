"""Does a job with two recorded windows ever lose a rank? Trains it again and again, with call stacks on.

    make capture-environment
    python benchmarks/capture_windows.py --python .venv-capture/bin/python --jobs 1000

Each job is four new processes that train five iterations of a tiny Megatron-core model and record the second and the
fourth. A rank that a signal ends is named, and its stack printed. A job takes 1 to 2 s on two cores.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from tests.capture.conftest import train
from traceviz_dag.capture.patch import plugin_text

_AT_ONCE = 50
_EVERYBODY = [0, 1, 2, 3]


def jobs(python: Path, plugin: Path, packages: list[str], count: int) -> None:
    """Train some jobs; fails where a rank dies or a file is missing."""
    scenarios = [
        {"name": f"windows{number}", "capture": {"iterations": "2,4", "ranks": "all", "shapes": "0"}}
        for number in range(count)
    ]
    layout = {"pp": 4, "vpp": None, "order": "tp-cp-ep-pp-dp", "packages": packages, "install_before_import": False}
    with tempfile.TemporaryDirectory() as folder:
        trained = train(python, plugin, Path(folder), {**layout, "scenarios": scenarios})
        for scenario in scenarios:
            assert trained.files(str(scenario["name"])) == {2: _EVERYBODY, 4: _EVERYBODY}, scenario["name"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="interpreter of the capture environment")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--oldest", action="store_true", help="with the oldest Megatron-core instead of the newest")
    given = parser.parse_args()
    python = given.python.absolute()
    packages = [str(python.parents[1] / "oldest")] if given.oldest else []
    plugin = Path(tempfile.mkdtemp())
    started = time.perf_counter()
    try:
        (plugin / "traceviz_capture.py").write_text(plugin_text())
        for first in range(0, given.jobs, _AT_ONCE):
            jobs(python, plugin, packages, min(_AT_ONCE, given.jobs - first))
            done = min(first + _AT_ONCE, given.jobs)
            print(f"{done} jobs, none died, {time.perf_counter() - started:.0f} s", flush=True)
    finally:
        shutil.rmtree(plugin)


if __name__ == "__main__":
    main()
