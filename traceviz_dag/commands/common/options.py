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


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
