"""The subcommands of ``traceviz memory``."""

from __future__ import annotations

from typing import ClassVar

import typer

from traceviz_dag.commands.common.lazy import LazyGroup
from traceviz_dag.system.memory_limit import keep_freed_memory

_COMMANDS = ("summary", "peak", "timeline", "fragmentation", "leak", "oom", "diff", "schedule", "export")


class _MemoryGroup(LazyGroup):
    places: ClassVar = {name: f"traceviz_dag.commands.memory.{name}:{name}" for name in _COMMANDS}


memory_app = typer.Typer(
    name="memory",
    cls=_MemoryGroup,
    help="Examine snapshots of CUDA memory, as torch.cuda.memory._dump_snapshot writes them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@memory_app.callback()
def _options() -> None:
    keep_freed_memory()
