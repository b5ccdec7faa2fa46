"""A package of somebody else, installed as far as entry points go, and programs that run beside it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def shown_in(page: str) -> tuple[str, str]:
    """The first Python code of a page of docs/ that begins with its file's name, and its entry points."""
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    code = re.search(r"```python\n(# \w+\.py\n.*?)```", text, re.DOTALL)
    points = re.search(r"```toml\n.*?(\[project.entry-points.*?)```", text, re.DOTALL)
    assert code and points, page
    return code[1], points[1]


def environment(package: Path, code: str, points: str) -> dict[str, str]:
    """The environment of a process that finds a package's entry points.

    Args:
        package: the folder to make.
        code: its one module, whose first line says how it is called.
        points: the table of entry points of its pyproject.toml.
    """
    module = re.match(r"# (\w+)\.py", code)
    assert module is not None
    name = module[1].replace("_", "-")
    information = package / f"{module[1]}-1.0.dist-info"
    information.mkdir(parents=True)
    (package / f"{module[1]}.py").write_text(code)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    # An installer writes the table of pyproject.toml with bare values.
    (information / "entry_points.txt").write_text(points.replace('"', "").replace("project.entry-points.", "") + "\n")
    return os.environ | {"PYTHONPATH": str(package)}


def run(environment: dict[str, str], *command: object) -> subprocess.CompletedProcess[str]:
    """Run Python in it."""
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def traceviz(environment: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    """Run the program in it."""
    return run(environment, "-m", "traceviz_dag.commands.main", *words)
