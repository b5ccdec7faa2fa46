"""A package of somebody else, installed as far as entry points go, and programs that run beside it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.damage import Answer
from traceviz_dag.pipeline.formats.registry import trace_formats
from traceviz_dag.read.formats import all_suffixes, file_formats, folder_marks, plugin_formats, suffix_inside
from traceviz_dag.show.registry import figure_kinds
from traceviz_dag.tables import all_tables, derived_tables

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


@contextmanager
def installed(package: Path, code: str, points: str) -> Iterator[None]:
    """A package in this process, which saves the imports of a new one: all but help and assets, made at import, see it.

    Args: as those of :func:`environment`.
    """
    # Made without the package, so that they stay as they are for other tests.
    import traceviz_dag.commands.figures
    import traceviz_dag.definitions  # noqa: F401

    environment(package, code, points)
    before = set(sys.modules)
    try:
        with patch.object(sys, "path", [str(package), *sys.path]):
            _forget()
            yield
    finally:
        _forget()
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(package)):
                del sys.modules[name]


def _forget() -> None:
    for kept in (
        *(all_tables, derived_tables, figure_kinds, trace_formats),
        *(all_suffixes, file_formats, folder_marks, plugin_formats, suffix_inside),
    ):
        kept.cache_clear()


def run(environment: dict[str, str], *command: object) -> subprocess.CompletedProcess[str]:
    """Run Python in it."""
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, check=False, timeout=300
    )


_COMMANDS = """
import json, sys
from tests.damage import call
answers, told = [call(*words) for words in json.loads(sys.argv[1])], None
exec(sys.argv[2])
print(json.dumps([answers, told]))
"""


def traceviz(environment: dict[str, str], *commands: list[object], look: str = "") -> tuple[list[Answer], Any]:
    """What the program answers in it to some commands, all in one process.

    Args:
        look: Python code that then looks around there.

    Returns:
        The answers, and what the code calls ``told``.
    """
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = run(environment, "-c", _COMMANDS, words, look)
    assert done.returncode == 0, done.stderr
    answers, told = json.loads(done.stdout)
    return [Answer(*answer) for answer in answers], told
