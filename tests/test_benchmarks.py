"""Benchmarks are run by hand: whatever they take from the package is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

OURS = ("traceviz_dag", "assets", "sensors", "tests")


def taken(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of what a file imports of ours, at its beginning and within functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS:
            yield from ((str(node.module), one.name) for one in node.names)


def is_there(module: str, name: str) -> bool:
    found = import_module(module)
    return hasattr(found, name) or Path(found.__file__).with_name(f"{name}.py").is_file()


def test_every_name_that_benchmarks_take_is_there():
    found = {each: path.name for path in Path(__file__).parents[1].glob("benchmarks/**/*.py") for each in taken(path)}
    assert len(found) > 100
    assert not {each: file for each, file in found.items() if not is_there(*each)}
