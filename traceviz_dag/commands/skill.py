"""``traceviz skill``: the folder that teaches an agent how to work with the program."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.errors import BadInputError
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.shipped import shipped
from traceviz_dag.system.whole_files import write_atomically

NAME = "traceviz"


def skill(
    install: Annotated[
        Path | None, typer.Option("--install", help="Copy it into this folder, as FOLDER/traceviz.", file_okay=False)
    ] = None,
) -> None:
    """Print the skill for agents, or copy it with its references into a folder.

    It says which command answers which question, what not to conclude, and how to quote evidence.
    """
    source = shipped(f"skills/{NAME}")
    if install is None:
        typer.echo((source / "SKILL.md").read_text(encoding="utf-8"))
        return
    target = real_path(install) / NAME
    if target.exists() and not (target / "SKILL.md").is_file():
        raise BadInputError(target, "is there, and is no skill", "choose another folder, or move it away")
    shutil.rmtree(target, ignore_errors=True)
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        write_atomically(target / file.relative_to(source), file.read_bytes())
    typer.echo(f"written: {target}")
