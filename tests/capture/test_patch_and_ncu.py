"""The patch applies with git and switches the plugin on; the ncu script names the kernels that cost most."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.conftest import traceviz
from tests.show.home import fill_home
from tests.small_run import GEMM, write_run

STAND_IN = Path(__file__).with_name("stand_in")


@pytest.fixture
def checkout(tmp_path) -> Path:
    folder = tmp_path / "Megatron-LM"
    shutil.copytree(STAND_IN, folder, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


@pytest.mark.parametrize(
    "head",
    ["", "# Copyright\nfrom __future__ import annotations\n", '"""Text."""\nimport os\n\nVALUE = os.sep'],
    ids=["as it is", "future", "no newline at the end"],
)
def test_git_applies_the_patch_and_importing_the_package_switches_it_on(checkout, head):
    package = checkout / "megatron/training/__init__.py"
    if head:
        body = "" if head.startswith('"""') else package.read_text().split('"""')[-1]
        package.write_text(head + body)
    patch = traceviz("capture", "patch", "--megatron", checkout).stdout
    assert "traceviz_capture" not in package.read_text()
    subprocess.run(["git", "-C", checkout, "apply", "--check", "-"], input=patch, text=True, check=True)
    subprocess.run(["git", "-C", checkout, "apply", "-"], input=patch, text=True, check=True)
    check = (
        "import sys, megatron.training as t; c = t.traceviz_capture.install(); "
        "print(c.settings.iterations, type(sys.meta_path[0]).__name__)"
    )
    environment = {"PYTHONPATH": str(checkout), "TRACEVIZ_CAPTURE_ITERATIONS": "4,6", "PATH": "/usr/bin:/bin"}
    import sys

    said = subprocess.run([sys.executable, "-c", check], env=environment, text=True, capture_output=True, check=True)
    assert said.stdout.split("\n")[0] == "4,6 _AfterImport"
    again = traceviz("capture", "patch", "--megatron", checkout, code=2)
    assert "already" in again.stderr


def test_a_folder_that_is_no_megatron_is_refused(tmp_path):
    assert "megatron/training/__init__.py" in traceviz("capture", "patch", "--megatron", tmp_path, code=2).stderr


def test_ncu_takes_the_hottest_computation_kernels_and_the_rank_where_they_take_longest(tmp_path):
    home = tmp_path / "home"
    fill_home(home, [write_run(tmp_path / "job", {6: 1, 7: 4}, world=4)])
    call = ["capture", "ncu", "python train.py --profile", "--home", home, "--top", "2"]
    hot = json.loads(traceviz(*call, "--json").stdout)
    assert [one["name"] for one in hot] == [GEMM, "multi_tensor_apply_kernel"]
    assert hot[0]["launches"] == 4 * 6, "of the last iteration"
    assert not any("nccl" in one["name"] for one in hot)
    assert "--profile-from-start off" in hot[0]["line"]
    assert f"regex:^{GEMM}$" in hot[0]["line"]
    script = traceviz(*call).stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert f"1:{hot[0]['rank']}) exec ncu" in script
    assert "no such analysed iteration" in traceviz(*call, "--iteration", "9", code=2).stderr
