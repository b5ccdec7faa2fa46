"""``traceviz skill``: the folder that teaches an agent how to work with the program."""

from __future__ import annotations

import shutil
from hashlib import sha256
from json import dumps, loads
from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.shipped import shipped
from traceviz_dag.system.whole_files import write_atomically

NAME = "traceviz"

_INSTALLED = ".installed.json"
"""In the copy: each file and the digest it was installed with, so that only what is unchanged is replaced."""


def skill(
    install: Annotated[
        str | None, typer.Option("--install", metavar="FOLDER", help="Copy it into this folder, as FOLDER/traceviz.")
    ] = None,
) -> None:
    """Print the skill for agents, or copy it with its references into a folder.

    It says which command answers which question, what not to conclude, and how to quote evidence.
    """
    source = shipped(f"skills/{NAME}")
    if install is None:
        typer.echo((source / "SKILL.md").read_text(encoding="utf-8"))
        return
    if not install:
        raise UsageError("--install: name a folder; . is the current one")
    target = real_path(Path(install)) / NAME
    if target.is_symlink() or (target.exists() and not _is_ours(target)):
        fault = "is there, and is not as traceviz installed it"
        raise BadInputError(target, fault, "choose another folder, or move it away")
    shutil.rmtree(target, ignore_errors=True)
    contents = {file.relative_to(source).as_posix(): file.read_bytes() for file in _files(source)}
    for name, content in contents.items():
        write_atomically(target / name, content)
    digests = {name: sha256(content).hexdigest() for name, content in contents.items()}
    write_atomically(target / _INSTALLED, dumps(digests, indent=1).encode())
    typer.echo(f"written: {target}")


def _is_ours(target: Path) -> bool:
    """Whether a folder holds what was installed, unchanged, and nothing else."""
    try:
        digests = loads((target / _INSTALLED).read_bytes())
    except (OSError, ValueError):
        return False
    found = {path.relative_to(target).as_posix(): path for path in _files(target)}
    found.pop(_INSTALLED, None)
    return digests == {name: sha256(path.read_bytes()).hexdigest() for name, path in found.items()}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
