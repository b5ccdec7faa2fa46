"""The handbooks name commands and options that exist, and an example that is accepted."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from tests.damage import call
from traceviz_dag.capture.configuration import read_configuration
from traceviz_dag.capture.plan import plan
from traceviz_dag.commands.main import app

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["capture.md", "reading-traces.md"])
def test_every_command_of_the_handbook_exists_with_its_options(name):
    text = (DOCS / name).read_text()
    lines = [*text.splitlines(), *re.findall(r"`(traceviz [^`]*)`", text)]
    calls = [shlex.split(re.split(r" [|>] ", line)[0], comments=True) for line in lines if line.startswith("traceviz ")]
    assert len(calls) > 8
    for line in calls:
        command = get_command(app)
        words = line[1:]
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        end = words.index("--") if "--" in words else len(words)
        assert {word for word in words[:end] if word.startswith("--")} <= options, line


def test_a_plan_without_a_configuration_writes_one_to_begin_with_and_keeps_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = call("capture", "plan", "--target", "slurm")
    assert first.code == 0 and "wrote capture.toml" in first.err and "#SBATCH" in first.out
    own = (tmp_path / "capture.toml").read_text().replace("world_size = 8", "world_size = 64")
    (tmp_path / "capture.toml").write_text(own)
    second = call("capture", "plan", "--json")
    assert second.code == 0 and not second.err and json.loads(second.out)["ranks"][-1] > 7
    assert (tmp_path / "capture.toml").read_text() == own


def test_the_example_configuration_is_accepted(tmp_path):
    [example] = re.findall(r"```toml\n(.*?)```", (DOCS / "capture.md").read_text(), re.DOTALL)
    path = tmp_path / "capture.toml"
    path.write_text(example)
    assert {"plugin", "megatron", "slurm"} <= {rendering.target for rendering in plan(read_configuration(path))}
