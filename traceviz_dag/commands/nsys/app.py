"""The subcommands of ``traceviz nsys``."""

from __future__ import annotations

from typing import ClassVar

import typer

from traceviz_dag.commands.common.lazy import LazyGroup

_COMMANDS = (
    *("info", "summary", "tree", "overlap", "nccl", "iterations", "gaps", "search"),
    *("export-csv", "export-json", "diff", "perfetto", "viewer", "download"),
)


class _NsysGroup(LazyGroup):
    places: ClassVar = {
        **{name: f"traceviz_dag.commands.nsys.{name}:{name}" for name in _COMMANDS},
        "export-csv": "traceviz_dag.commands.nsys.exports:export_csv",
        "export-json": "traceviz_dag.commands.nsys.exports:export_json",
    }


nsys_app = typer.Typer(
    name="nsys",
    cls=_NsysGroup,
    help="Examine Nsight Systems profiles: .sqlite exports, folders of Parquet files, .nsys-rep if nsys is installed.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
