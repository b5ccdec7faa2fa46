"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_HOME = Path("traceviz_home")

HomeOption = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="TRACEVIZ_HOME",
        file_okay=False,
        help="Folder that holds everything written: the lake, its catalogue, reports and Dagster's records.",
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")]
