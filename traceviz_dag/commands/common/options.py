"""Options that several commands share."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag import vocabulary
from traceviz_dag.errors import UsageError

DEFAULT_HOME = Path(vocabulary.DEFAULT_HOME)

HomeOption = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="TRACEVIZ_HOME",
        file_okay=False,
        help="Folder for everything written: tables, catalogue, figures, exports, downloads, Dagster's records; or "
        "s3://BUCKET/PREFIX for tables, with --state.",
    ),
]


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def check_number(option: str, value: float | None) -> None:
    """Refuse a number that is none, such as nan or inf.

    Raises:
        UsageError: it is.
    """
    if value is not None and not math.isfinite(value):
        raise UsageError(f"{option} {value}: give a number")


def in_bytes(option: str, gib: float | None) -> int | None:
    """So many GiB in bytes.

    Raises:
        UsageError: it is no number, such as nan or inf.
    """
    check_number(option, gib)
    return None if gib is None else int(Fraction(gib) * (1 << 30))
