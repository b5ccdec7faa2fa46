"""The environment that holds torch and Megatron-core, and jobs run in it."""

from __future__ import annotations

import json
import os
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest

from traceviz_dag.capture.patch import plugin_text

HERE = Path(__file__).parent
WORLD = 4


@pytest.fixture(scope="session")
def capture_python() -> Path:
    """The interpreter of the environment that ``make capture-environment`` makes."""
    named = os.environ.get("TRACEVIZ_CAPTURE_PYTHON")
    if named is None:
        words = "no torch to train with: make capture-environment, then set TRACEVIZ_CAPTURE_PYTHON to its bin/python"
        if os.environ.get("TRACEVIZ_REQUIRE_CAPTURE"):
            pytest.fail(words)
        warnings.warn(words, stacklevel=1)
        pytest.skip(words)
    return Path(named).absolute()


@pytest.fixture(scope="session")
def plugin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the plugin as a job would import it."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "traceviz_capture.py").write_text(plugin_text())
    return folder


class Trained:
    """What a training job of several scenarios left behind."""

    def __init__(self, folder: Path, said: str) -> None:
        self.folder = folder
        self.said = said

    def seen(self, scenario: str, rank: int) -> dict[str, Any]:
        """What a rank saw of itself: losses, groups, coordinates."""
        found: dict[str, Any] = json.loads((self.folder / f"{scenario}.{rank}.json").read_text())
        return found

    def losses(self, scenario: str) -> list[Any]:
        """Losses of every rank and iteration."""
        return [self.seen(scenario, rank)["losses"] for rank in range(WORLD)]

    def out(self, scenario: str) -> Path:
        """Where the scenario's capture was to go."""
        return self.folder / "out" / scenario

    def files(self, scenario: str) -> dict[int, list[int]]:
        """Iteration → ranks that have a trace."""
        found: dict[int, list[int]] = {}
        for path in sorted(self.out(scenario).glob("iteration_*/rank_*_iter_*.pt.trace.json.gz")):
            _, rank, _, rest = path.name.split("_")
            iteration = int(rest.split(".")[0])
            assert path.parent.name == f"iteration_{iteration}"
            found.setdefault(iteration, []).append(int(rank))
        return found


def train(python: Path, plugin_folder: Path, folder: Path, job: dict[str, Any]) -> Trained:
    """Run ``megatron_job.py``; every scenario must train to its end."""
    for scenario in job["scenarios"]:
        scenario.setdefault("first", 1)
        scenario.setdefault("count", 5)
        if scenario["capture"]:
            scenario["capture"].setdefault("out", str(folder / "out" / scenario["name"]))
    given = {"world": WORLD, "microbatches": 4, "folder": str(folder), "plugin_folder": str(plugin_folder), **job}
    (folder / "job.json").write_text(json.dumps(given))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACEVIZ_CAPTURE_")}
    result = subprocess.run(
        [python, HERE / "megatron_job.py", folder / "job.json"],
        env={**environment, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return Trained(folder, result.stderr)
