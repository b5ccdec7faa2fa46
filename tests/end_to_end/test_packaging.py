"""The built wheel works on its own, also from a folder that holds an ``assets/`` of somebody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The wheel's contents in a folder of their own."""
    work = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(work)]
    subprocess.run([*build, str(REPOSITORY)], check=True, capture_output=True, text=True, timeout=120)
    (wheel,) = work.glob("*.whl")
    target = work / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, text=True, timeout=120)
    return target


@pytest.mark.long
def test_the_wheel_holds_the_rules_and_nothing_foreign(installed):
    top = {path.name for path in installed.iterdir() if path.is_dir() and not path.name.endswith(".dist-info")}
    assert top - {"bin"} == {"traceviz_dag", "assets", "sensors"}
    assert (installed / "traceviz_dag/classify/rules.toml").is_file()
    assert (installed / "traceviz_dag/orchestration/dagster.yaml").is_file()
    assert (installed / "traceviz_dag/py.typed").is_file()
    for name in ("skills/traceviz/SKILL.md", "skills/traceviz/references/commands.md", "docs/metrics.md"):
        assert (installed / "traceviz_dag/shipped" / name).read_bytes() == (REPOSITORY / name).read_bytes()
    [licence] = installed.glob("traceviz_dag-*.dist-info/licenses/LICENSE")
    assert "Apache License" in licence.read_text()


@pytest.mark.long
def test_it_loads_its_definitions_from_a_folder_with_foreign_assets(installed, tmp_path):
    foreign = tmp_path / "project"
    (foreign / "assets").mkdir(parents=True)
    (foreign / "assets/__init__.py").write_text("raise RuntimeError('these are the assets of somebody else')\n")
    script = installed / "bin" / "traceviz"
    environment = {**os.environ, "PYTHONPATH": str(installed), "TRACEVIZ_HOME": str(tmp_path / "home")}
    for arguments in (["--version"], ["doctor"]):
        result = subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=foreign, env=environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
    run = tmp_path / "job"
    program = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from tests.small_run import write_run
from pathlib import Path
write_run(Path({str(run)!r}), world=2)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    result = subprocess.run(
        [sys.executable, str(script), "analyze", str(run), "--tables"],
        cwd=foreign, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "2 ranks computed" in result.stdout
