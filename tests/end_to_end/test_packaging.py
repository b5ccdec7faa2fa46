"""The built wheel works on its own, also from a folder that holds an ``assets/`` of somebody else."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]


def _run(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", *map(str, words)], check=True, capture_output=True, text=True, timeout=120)


def _wheel_of(source: Path, folder: Path) -> Path:
    _run("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The wheel's contents in a folder of their own."""
    work = tmp_path_factory.mktemp("wheel")
    wheel = _wheel_of(REPOSITORY, work)
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


@pytest.mark.long
def test_the_source_distribution_makes_the_same_wheel(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=REPOSITORY, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        assert not [name for name in archive.getnames() if name.split("/")[1:2] == ["tests"]]
    wheels = (_wheel_of(REPOSITORY, tmp_path / "here"), _wheel_of(source, tmp_path / "there"))
    one, other = ({each.filename: each.CRC for each in zipfile.ZipFile(wheel).infolist()} for wheel in wheels)
    assert one == other and len(one) > 500


@pytest.mark.long
def test_the_demo_runs_where_nothing_is_installed_but_what_the_package_declares(installed, tmp_path):
    venv.create(tmp_path / "empty", symlinks=True)
    (packages,) = (tmp_path / "empty").glob("lib/python*/site-packages")
    for each in _declared("traceviz-dag").values():
        for top in {Path(file).parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(each.locate_file(top))))
    for path in installed.iterdir():
        if path.name != "bin":
            (packages / path.name).unlink(missing_ok=True)
            (packages / path.name).symlink_to(path)
    result = subprocess.run(
        [tmp_path / "empty/bin/python", "-m", "traceviz_dag.commands.main", "demo", "--home", tmp_path / "home"],
        cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "computes slowly" in result.stdout


def _declared(name: str) -> dict[str, Distribution]:
    """The packages that a package demands, and those that they demand; extras only where one demands them."""
    found: dict[str, Distribution] = {}
    waiting, seen = [(name, "")], set()
    while waiting:
        package, extra = waiting.pop()
        if (package, extra) in seen:
            continue
        seen.add((package, extra))
        for wanted in map(Requirement, distribution(package).requires or ()):
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                found[wanted.name] = distribution(wanted.name)
                waiting += [(wanted.name, each) for each in ("", *wanted.extras)]
    return found
