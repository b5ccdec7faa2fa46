"""The subcommands of ``traceviz nsys``."""

from __future__ import annotations

from itertools import chain
from typing import ClassVar

import typer

from traceviz_dag.commands.common.lazy import LazyGroup
from traceviz_dag.system.memory_limit import keep_freed_memory

_PANELS = {
    "What is in it": ("info", "suggest", "search", "diff"),
    "GPUs": ("summary", "overlap", "map", "gaps", "nccl", "copies", "launches", "flops", "instructions"),
    "Host, NVTX ranges and iterations": (
        *("timeline", "timeline-web", "tui", "tree", "ranges", "pace", "iterations", "calls", "stalls", "threads"),
    ),
    "Files": ("viewer", "web", "perfetto", "export-csv", "export-json", "download"),
}
"""Heading in the help → its commands."""

_ELSEWHERE = {
    "export-csv": "exports:export_csv",
    "export-json": "exports:export_json",
    "map": "map:utilization_map",
    "pace": "ranges:pace",
    "stalls": "calls:stalls",
    "timeline-web": "web:timeline_web",
}
"""Commands that are in no module or function of their name."""


class _NsysGroup(LazyGroup):
    places: ClassVar = {
        name: f"traceviz_dag.commands.nsys.{_ELSEWHERE.get(name, f'{name}:{name}')}"
        for name in chain.from_iterable(_PANELS.values())
    }
    panels: ClassVar = {name: heading for heading, names in _PANELS.items() for name in names}


nsys_app = typer.Typer(
    name="nsys",
    cls=_NsysGroup,
    help="Examine Nsight Systems profiles: .sqlite exports, folders of Parquet files, .nsys-rep if nsys is installed.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@nsys_app.callback()
def _options() -> None:
    keep_freed_memory()
