"""The files under deploy/ fit together: programs that exist, one port, settings that Dagster reads."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import yaml
from dagster._core.workspace.load import location_origins_from_yaml_paths
from typer.testing import CliRunner

from traceviz_dag.commands.main import app

PROJECT = Path(__file__).parents[1]
DEPLOY = PROJECT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def commands(text: str) -> list[list[str]]:
    return [line.partition("=")[2].split() for line in text.splitlines() if line.startswith("ExecStart")]


def test_units_start_programs_that_come_with_the_package():
    ours = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["scripts"]
    known = {entry.name for entry in entry_points(group="console_scripts")} | set(ours)
    started = {Path(command[0]).name for unit in UNITS for command in commands(unit.read_text())}
    assert started == {"traceviz", "dagster", "dagster-daemon"} and started <= known


def test_the_code_server_listens_where_daemon_and_web_server_look_for_it():
    for workspace, server in (
        ("workspace.yaml", (DEPLOY / "systemd/traceviz-code.service").read_text()),
        ("workspace.container.yaml", (DEPLOY / "Containerfile").read_text()),
    ):
        (origin,) = location_origins_from_yaml_paths([str(DEPLOY / workspace)])
        ports = re.findall(r"--port[\" ,=]+(\d+)", server)
        assert origin.location_name == "traceviz_dag" and str(origin.port) in ports


def test_nothing_listens_beyond_loopback_by_default():
    for path in (*UNITS, DEPLOY / "Containerfile", DEPLOY / "workspace.container.yaml", DEPLOY / "workspace.yaml"):
        text = path.read_text()
        assert "0.0.0.0" not in text and "EXPOSE" not in text
        assert set(re.findall(r"(?:--host|host:) (\S+)", text)) <= {"127.0.0.1"}


def test_what_the_container_file_copies_is_there():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    paths = [path for line in copied for path in line.split()]
    assert len(paths) >= 8 and all((PROJECT / path).exists() for path in paths)


def test_a_home_can_be_prepared_without_starting_anything(tmp_path):
    result = CliRunner().invoke(app, ["dev", "--home", str(tmp_path / "home"), "--prepare-only"])
    folder = tmp_path / "home/dagster"
    assert result.exit_code == 0 and result.output.strip() == f"DAGSTER_HOME={folder}"
    settings = yaml.safe_load((folder / "dagster.yaml").read_text())
    records = yaml.safe_load((DEPLOY / "dagster.postgresql.yaml").read_text())
    assert not settings.keys() & records.keys(), "the file is appended, so no section may stand twice"
