"""``traceviz nsys search``: where a word occurs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from traceviz_dag.analyze.nsys.search import search as find
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, TrimOption, gpu_numbers, opened

_SHOWN = {"operations": "GPU", "calls": "call", "ranges": "NVTX range"}


def search(
    path: ProfileArgument,
    word: Annotated[str, typer.Argument(help="Part of a name, or a pattern with * and ? for all of it.")],
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    parent: Annotated[
        str | None,
        typer.Option(
            help="Only what lies inside NVTX ranges of such names, or was launched there.", show_default=False
        ),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Find kernels, calls and NVTX ranges by name, case-insensitive."""
    with opened(path, home, trim) as given:
        rows = find(given.profile, word, gpu_numbers(gpu), given.window, parent)
        if json:
            given.print_json([asdict(one) for one in rows])
            return
        inside = f" inside {parent}" if parent is not None else ""
        print_columns(
            f"{len(rows)} name{'s hold' if len(rows) != 1 else ' holds'} {word or 'any text'}{inside}",
            [{**asdict(one), "where": _SHOWN[one.table]} for one in rows],
            ["where", "name", "count", "total_ns", ("first_start_ns", "first")],
        )
