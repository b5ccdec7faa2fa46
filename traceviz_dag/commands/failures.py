"""How commands end of whose steps one failed: each is a line on stderr, and the exit code is 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from traceviz_dag.errors import IncompleteError

if TYPE_CHECKING:
    from traceviz_dag.orchestrate import IterationResult


def tell_failures(results: Sequence[IterationResult]) -> None:
    """Print a line for each step that failed: the partition, the reason, the remedy."""
    for line in _lines(results):
        typer.echo(f"traceviz: {line}", err=True)


def end_failed(results: Sequence[IterationResult]) -> None:
    """End a command, after it said what is known all the same; does nothing where no step failed.

    Raises:
        IncompleteError: a step failed.
    """
    count = len(_lines(results))
    if count:
        steps = "a step" if count == 1 else f"{count} steps"
        raise IncompleteError(f"{steps} failed, see above; what was computed is kept, and the same command goes on")


def _lines(results: Sequence[IterationResult]) -> list[str]:
    return list(dict.fromkeys(line for result in results for line in result.failures))
