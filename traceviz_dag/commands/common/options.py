"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag import vocabulary

DEFAULT_HOME = Path(vocabulary.DEFAULT_HOME)

HomeOption = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="TRACEVIZ_HOME",
        file_okay=False,
        help="Folder for everything written: tables, catalogue, figures, exports, downloads and Dagster's records.",
    ),
]

LimitOption = Annotated[
    int, typer.Option("--limit", min=0, help="Print at most this many rows of a table; 0 = all. JSON always has all.")
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
