"""Options that ``traceviz lake status`` and ``traceviz lake pack`` share."""

from __future__ import annotations

from typing import Annotated

import typer

RunOption = Annotated[str | None, typer.Option("--run", help="Only this run.")]
IterationOption = Annotated[int | None, typer.Option("--iteration", min=0, help="Only this iteration.")]
AtLeastOption = Annotated[
    int, typer.Option("--at-least", min=1, help="Pack a table of an iteration that has so many unpacked files.")
]
