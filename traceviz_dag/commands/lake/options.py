"""What the commands of ``traceviz lake`` share: options, and the lake that they look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.lake.lake import Lake, open_lake

RunOption = Annotated[str | None, typer.Option("--run", help="Only this run.")]
IterationOption = Annotated[int | None, typer.Option("--iteration", min=0, help="Only this iteration.")]
AtLeastOption = Annotated[
    int, typer.Option("--at-least", min=1, help="Pack a table of an iteration that has so many unpacked files.")
]


def lake_at(home: Path) -> Lake:
    """The lake of a home.

    Raises:
        BadInputError: it holds none.
    """
    lake = open_lake(home, refresh=False)
    if not lake.tables_folder.is_dir():
        raise lake.is_empty()
    return lake
