"""How commands end that could not read all: every fault is a line on stderr, and the exit code is 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from traceviz_dag.errors import IncompleteError

if TYPE_CHECKING:
    from traceviz_dag.pipeline.completeness import Completeness


def end_partial(found: Sequence[Completeness]) -> None:
    """Say what was not read, after the answer was printed; does nothing where all was.

    Raises:
        IncompleteError: something was not read.
    """
    counted = tell_partial(found)
    if counted:
        named = ", ".join(f"{each.run} {each.iteration}" for each in counted[:3])
        more = f" and {len(counted) - 3} more" if len(counted) > 3 else ""
        what = "stale" if all(each.is_stale_alone for each in counted) else "partial"
        raise IncompleteError(f"{what} result for {named}{more} (see above)")


def tell_partial(found: Sequence[Completeness]) -> list[Completeness]:
    """Print a line for each thing that was not read; returns the iterations that are partial."""
    counted = [each for each in found if each.partial]
    for line in dict.fromkeys(line for each in counted for line in each.lines):
        typer.echo(f"traceviz: {line}", err=True)
    return counted
