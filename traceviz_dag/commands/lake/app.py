"""The subcommands of ``traceviz lake``."""

from __future__ import annotations

from typing import ClassVar

import typer

from traceviz_dag.commands.common.lazy import LazyGroup

_COMMANDS = ("status", "pack", "verify", "clean")


class _LakeGroup(LazyGroup):
    places: ClassVar = {name: f"traceviz_dag.commands.lake.{name}:{name}" for name in _COMMANDS}


lake_app = typer.Typer(
    name="lake",
    cls=_LakeGroup,
    help="Examine, pack, verify and clean the files that hold the tables of a home.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
