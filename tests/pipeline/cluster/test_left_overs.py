"""What a killed process leaves in HOME/cluster goes with the next use, and what another one uses stays."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from traceviz_dag.pipeline.cluster.fitness import requirements
from traceviz_dag.pipeline.cluster.slurm import private_folder

LEFT, USED, NEW, OF_A_USER = (f"{name}.token" for name in ("1" * 16, "2" * 16, "3" * 16, "mine"))


def test_what_killed_processes_left_is_removed_unless_a_job_or_a_process_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    names = {what: f"traceviz_{number:016x}" for number, what in enumerate(("left", "of a job", "new", "of a process"))}
    squeue, cluster = tmp_path / "squeue", tmp_path / "home/cluster"
    squeue.write_text(f"#!/bin/bash\n[[ $* != *--name=traceviz-{names['of a job']} ]] || echo RUNNING\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in (*names.values(), "of another program"):
        (cluster / name).mkdir(parents=True)
    for name in (LEFT, USED, NEW, OF_A_USER):
        (cluster / name).write_text("")
    for path in cluster.iterdir():
        if path.name not in (names["new"], NEW):
            os.utime(path, (0, 0))
    locked = [os.open(cluster / name, os.O_RDONLY) for name in (names["of a process"], USED)]
    for descriptor in locked:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    before = {path.name for path in cluster.iterdir()}
    with requirements(tmp_path / "home", []) as needed, private_folder(tmp_path / "home") as folder:
        assert needed.token_file.parent == folder.parent == cluster
    assert before - {path.name for path in cluster.iterdir()} == {names["left"], LEFT}
    squeue.write_text("#!/bin/bash\nexit 1\n")
    for descriptor in locked:
        os.close(descriptor)
    with private_folder(tmp_path / "home"):
        assert (cluster / names["of a process"]).exists(), "a controller that does not answer has not ended the job"
    squeue.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with private_folder(tmp_path / "home"):
        assert (cluster / names["of a process"]).exists()
