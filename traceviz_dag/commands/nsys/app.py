"""The subcommands of ``traceviz nsys``."""

from __future__ import annotations

import typer

from traceviz_dag.commands.nsys.diff import diff
from traceviz_dag.commands.nsys.download import download
from traceviz_dag.commands.nsys.exports import export_csv, export_json
from traceviz_dag.commands.nsys.gaps import gaps
from traceviz_dag.commands.nsys.info import info
from traceviz_dag.commands.nsys.iterations import iterations
from traceviz_dag.commands.nsys.nccl import nccl
from traceviz_dag.commands.nsys.overlap import overlap
from traceviz_dag.commands.nsys.perfetto import perfetto
from traceviz_dag.commands.nsys.search import search
from traceviz_dag.commands.nsys.summary import summary
from traceviz_dag.commands.nsys.tree import tree
from traceviz_dag.commands.nsys.viewer import viewer

nsys_app = typer.Typer(
    name="nsys",
    help="Nsight Systems profiles: .sqlite exports, folders of Parquet files, .nsys-rep where nsys is installed.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
for _command in (
    info,
    summary,
    tree,
    overlap,
    nccl,
    iterations,
    gaps,
    search,
    export_csv,
    export_json,
    diff,
    perfetto,
    viewer,
    download,
):
    nsys_app.command()(_command)
