"""After a kill at any boundary of an analysis, with inputs changed before, the next one gives what a clean home has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import program
from tests.small_run import rank_file, write_run

STEP = 13
"""Every so-many-th boundary is tried here; ``python -m benchmarks.boundaries`` tries them all."""


@pytest.mark.long
def test_the_next_analysis_gives_the_tables_of_a_clean_home(tmp_path):
    names, lines = try_boundaries(tmp_path, STEP)
    for kind in ("rename to kernels", "rename to iterations", "rename to findings"):
        assert any(name.startswith(kind) for name in names), f"no boundary {kind} was seen"
    assert len(lines) == len(range(0, len(names), STEP))
    assert [line for line in lines if not line.endswith(": equal")] == []


def try_boundaries(folder: Path, step: int) -> tuple[list[str], list[str]]:
    """Names of all boundaries, and a line for each that was tried."""
    home, copies = folder / "home", folder / "copies"
    run = write_run(folder / "job", world=2)
    program("analyze", run, "--home", home)
    rank_file(1, 2, scale=2).write(run / "iteration_7/rank_0001_iter_7.pt.trace.json")
    copies.mkdir()
    _boundaries("record", run, home, copies)
    names = (copies / "names").read_text().splitlines()
    return names, _boundaries("go-on", run, home, copies, step).splitlines()


def _boundaries(*arguments: str | int | Path) -> str:
    command = [sys.executable, "-m", "tests.end_to_end.boundaries", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
