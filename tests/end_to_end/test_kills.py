"""A slice of benchmarks/kill.py: what is killed is fixed by the next run, to the byte, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KILL = Path(__file__).parents[2] / "benchmarks/kill.py"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_killed_commands_are_fixed_by_the_next_run(tmp_path: Path):
    command = [sys.executable, str(KILL), "--folder", str(tmp_path / "kill"), "--kills", "3", "--seed", "2"]
    done = subprocess.run(
        [*command, "--workload", "nsys perfetto"], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trials with faults: 0" in done.stdout
