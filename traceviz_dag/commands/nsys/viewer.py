"""``traceviz nsys viewer``: one HTML file that shows a profile in any browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.commands.common.overwriting import check_output
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, RulesOption, TrimOption, opened
from traceviz_dag.show.nsys.viewer import MOST_SLICES, viewer_page
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.whole_files import write_atomically


def viewer(
    path: ProfileArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.", dir_okay=False)] = Path(
        "report.html"
    ),
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    show: Annotated[bool, typer.Option("--open", help="Open the file in a browser.")] = False,
    most: Annotated[int, typer.Option(min=1, help="Most slices to put on the timeline.")] = MOST_SLICES,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Write one self-contained HTML file: timeline with search and measures, overlap, kernels, NVTX tree.

    It needs no server and no network. If there are more slices than --most, the timeline leaves out the shortest, and
    the page says so; its numbers cover all of them.
    """
    check_output(output, path)
    with opened(path, home, trim, rules) as given:
        page = viewer_page(given.profile, given.gpus(gpu), given.rules, given.window, most)
        write_atomically(real_path(output), pa.py_buffer(page.encode()))
        typer.echo(f"{len(page) / 1e6:.1f} MB: {output}")
        if show:
            import webbrowser

            if not webbrowser.open(real_path(output).as_uri()):
                typer.echo("traceviz: no browser can be opened here; open the file yourself", err=True)
