"""What is no cluster, and what would let others run programs, is refused in a line with what to do."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from distributed import Security

from tests.damage import call
from tests.pipeline.cluster import works
from tests.small_run import write_run
from traceviz_dag.errors import BadInputError, ClusterError
from traceviz_dag.pipeline.cluster import clients, job_array
from traceviz_dag.pipeline.cluster.opening import open_cluster
from traceviz_dag.pipeline.cluster.settings import load_cluster


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (
            "tcp://head:8786",
            "tcp://head:8786: whoever .* this one has none; start it with --protocol tls",
        ),
        (
            "head:8786",
            "tls://head:8786: whoever .* no TLS files are named; name ca_file, cert_file",
        ),
        ("tls://head:8786", "no TLS files are named"),
        *(
            (word, f"{word}: is not the address .* name that, local, or a file")
            for word in ("slurm", "Local", "a.TOML")
        ),
    ],
)
def test_an_address_without_tls_is_refused_before_anything_is_sent(tmp_path: Path, address: str, told: str):
    with pytest.raises(ClusterError, match=told), open_cluster(address, tmp_path):
        pytest.fail("it was used")


def test_the_command_refuses_it_in_one_line_and_analyses_nothing(tmp_path: Path):
    answer = call("analyze", write_run(tmp_path / "job"), "--home", tmp_path / "home", "--cluster", "head:8786")
    assert answer.code == 2 and len(answer.err.splitlines()) == 1 and "no TLS files are named" in answer.err
    assert not (tmp_path / "home/lake").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no cluster, or several; give it address, scheduler_file or \\[slurm\\]"),
        ('address = "tls://head"\n[slurm]\n', "names no cluster, or several"),
        ('adress = "tls://head"\n', "unknown field `adress`.*; see docs/cluster.md"),
        ('scheduler_file = "none.json"\n', "none.json: no such file, and scheduler_file of .*cluster.toml names it"),
        ('[slurm]\nmemory = "much"\n', "memory"),
        ("[slurm]\nworkers = 0\n", "workers"),
        ('[slurm]\narray = true\ninterface = "ib0"\n', "a job array listens on no interface; leave out"),
        ('[slurm]\noptions = ["--qos=x\\n--uid=0"]\n', "options"),
        ('[slurm]\noptions = ["--qos=x", "--clusters=b"]\n', "would be neither watched nor cancelled; leave it out"),
        ('[slurm]\noptions = ["--wait-all-nodes=1", "-Jmine"]\n', "-Jmine in options is not --NAME or --NAME=VALUE"),
        ('[slurm]\noptions = ["--job-na=mine"]\n', "--job-na=mine in options: such a job would be neither watched"),
        ('[slurm]\noptions = ["--output=x"]\n', "would not write to its log in HOME/logs; leave it out"),
    ],
)
def test_a_file_that_describes_no_cluster_says_why(tmp_path: Path, text: str, told: str):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(BadInputError, match=told):
        load_cluster(path)


def described(folder: Path, address: str) -> Path:
    security = Security.temporary()
    for name in ("ca_file", "client_cert", "client_key"):
        (folder / name).write_text(getattr(security, f"tls_{name}"))
    path = folder / "cluster.toml"
    path.write_text(f'address = "{address}"\nca_file = "ca_file"\ncert_file = "client_cert"\nkey_file = "client_key"\n')
    return path


def test_no_scheduler_and_files_that_are_none_of_tls_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clients, "_CONNECT_SECONDS", 1)
    path = described(tmp_path, "tls://127.0.0.1:1")
    with (
        open_cluster(str(path), tmp_path) as engine,
        pytest.raises(ClusterError, match=r":1: no scheduler answers .*; check that it runs there"),
    ):
        list(engine.spread(works.double, works.traces(tmp_path / "t", 1), None, (tmp_path,)))
    (tmp_path / "ca_file").write_text("none")
    with pytest.raises(ClusterError, match="its TLS files cannot be used"), open_cluster(str(path), tmp_path):
        pytest.fail("it was used")


@pytest.mark.parametrize("more", ["", "array = true\n"])
def test_slurm_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str):
    (tmp_path / "slurm.toml").write_text(f"[slurm]\n{more}")
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        open_cluster(str(tmp_path / "slurm.toml"), tmp_path) as engine,
        pytest.raises(ClusterError, match="there is no sbatch here; run this where jobs are submitted"),
    ):
        list(engine.spread(works.double, works.traces(tmp_path / "t", 1), None, (tmp_path,)))


class Planted:
    """Whatever reads it back makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return (Path.touch, (self.mark,))


def test_a_task_runs_nothing_from_a_folder_that_others_may_write(tmp_path: Path):
    (tmp_path / "work").write_bytes(pickle.dumps(Planted(tmp_path / "ran")))
    tmp_path.chmod(0o770)
    with pytest.raises(ClusterError, match="is not yours alone; see who else may write to the home"):
        job_array.work_off(tmp_path)
    assert not (tmp_path / "ran").exists()


WITHOUT_DASK = """
import sys
from pathlib import Path
import traceviz_dag.commands.analyze
from traceviz_dag.pipeline.cluster.opening import open_cluster
with open_cluster(None, Path()) as engine:
    assert engine is None and "distributed" not in sys.modules
sys.modules["distributed"] = None
with open_cluster("local", Path()):
    pass
"""


def test_without_the_extra_a_cluster_is_refused_and_nothing_else(tmp_path: Path):
    told = subprocess.run([sys.executable, "-c", WITHOUT_DASK], capture_output=True, text=True, check=False)
    assert "a cluster needs Dask, and distributed is not installed" in told.stderr.splitlines()[-1]
    assert "pip install 'traceviz-dag[distributed]'" in told.stderr.splitlines()[-1]
