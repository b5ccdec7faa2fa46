"""What containers and batch systems allow: read as both versions of control groups write it, and kept to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from traceviz_dag.pipeline.engines import default_workers
from traceviz_dag.system import control_groups
from traceviz_dag.system.control_groups import memory_bytes, processors

UNLIMITED_V1 = "9223372036854771712"
GB = 10**9


def written(folder: Path, own: str, files: Mapping[str, str]) -> tuple[Path, Path]:
    """A mount of control groups with these files, and the file that says which groups are the process's."""
    for name, text in files.items():
        path = folder / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (folder / "own").write_text(own)
    return folder / "mount", folder / "own"


@pytest.mark.parametrize(
    ("own", "files", "memory", "cores"),
    [
        pytest.param("0::/\n", {}, None, None, id="none"),
        pytest.param("0::/\n", {"memory.max": "max", "cpu.max": "max 100000"}, None, None, id="unlimited"),
        pytest.param("0::/\n", {"memory.max": f"{8 * GB}", "cpu.max": "150000 100000"}, 8 * GB, 2, id="container"),
        pytest.param(
            "0::/job/step\n",
            {"job/memory.max": f"{4 * GB}", "job/step/memory.max": f"{6 * GB}", "job/cpu.max": "400000 100000"},
            *(4 * GB, 4),
            id="a lower limit around it",
        ),
        pytest.param("0::/user.slice\n", {"cpu.max": "5000 100000"}, None, 1, id="less than a processor"),
        pytest.param(
            "5:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n0::/\n",
            {
                "memory/memory.limit_in_bytes": UNLIMITED_V1,
                "memory/docker/1f/memory.limit_in_bytes": f"{2 * GB}",
                "cpu/docker/1f/cpu.cfs_quota_us": "250000",
                "cpu/docker/1f/cpu.cfs_period_us": "100000",
            },
            *(2 * GB, 3),
            id="first version",
        ),
        pytest.param(
            "5:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n",
            {"memory/memory.limit_in_bytes": f"{GB}", "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            *(GB, None),
            id="first version, seen from within",
        ),
    ],
)
def test_the_lowest_limit_counts(tmp_path, own, files, memory, cores):
    places = written(tmp_path, own, files)
    assert (memory_bytes(*places), processors(*places)) == (memory, cores)


def test_workers_keep_to_the_share_that_slurm_gave_a_task(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(control_groups, "processors", lambda: None)
    monkeypatch.setattr(control_groups, "memory_bytes", lambda: None)
    found = []
    for share in ("3", "128", "", "many"):
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", share)
        found.append(default_workers())
    assert found == [3, 64, 64, 64]


TOLD = """
import os
from traceviz_dag.pipeline.engines import default_workers
from traceviz_dag.system.duckdb_memory import connect_in_memory
from traceviz_dag.system.memory_limit import adapt
adapt()
connection = connect_in_memory()
[(threads, memory)] = connection.sql("SELECT current_setting('threads'), current_setting('memory_limit')").fetchall()
print(default_workers(), threads, memory.endswith("MiB"))
"""


def test_a_process_in_a_small_group_starts_few_workers_and_threads():
    group = f"traceviz-test-{os.getpid()}"
    memory, cpu = (Path("/sys/fs/cgroup") / name / group for name in ("memory", "cpu"))
    try:
        for folder, setting, value in (
            (memory, "memory.limit_in_bytes", 1 << 30),
            (cpu, "cpu.cfs_quota_us", 100_000),
        ):
            folder.mkdir()
            (folder / setting).write_text(str(value))
    except OSError as error:
        pytest.skip(f"no control groups to make here: {error}")
    enter = f'echo $$ > {memory}/cgroup.procs; echo $$ > {cpu}/cgroup.procs; exec "$0" -c "$1"'
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = ["sh", "-c", enter, sys.executable, TOLD]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    finally:
        for folder in (memory, cpu):
            folder.rmdir()
    assert (answer.stdout.split(), answer.stderr) == (["1", "1", "True"], "")
