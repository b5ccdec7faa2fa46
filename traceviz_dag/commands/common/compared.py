"""Another iteration of the home, to compare with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from traceviz_dag.errors import UsageError

if TYPE_CHECKING:
    from traceviz_dag.pipeline.lake_source import LakeSource

AgainstOption = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="RUN[:ITERATION]",
        help="Compare with another iteration of the home: its last by default; :ITERATION is one of the same run.",
    ),
]


def compared_with(chosen: LakeSource, text: str) -> LakeSource:
    """The iteration that an option names; of the run that is reported on, the last but the chosen one.

    Raises:
        UsageError: the home does not hold it, or it is the chosen one.
    """
    lake = chosen.lake
    held: dict[str, list[int]] = {}
    for each in lake.partitions("topology"):
        held.setdefault(each.run, []).append(each.iteration)
    run, _, number = (text, "", "") if text in held or ":" not in text else text.rpartition(":")
    run = run or chosen.run
    if run not in held:
        raise UsageError(f"--against {text}: the home holds no run {run}; it holds {', '.join(sorted(held)[:5])}")
    if number and not (number.isascii() and number.isdigit()):
        raise UsageError(f"--against {text}: {number} is no number of an iteration")
    others = sorted(set(held[run]) - ({chosen.iteration} if run == chosen.run else set()))
    if number and int(number) not in others:
        same = run == chosen.run and int(number) == chosen.iteration
        known = ", ".join(map(str, others[-5:])) or "none other"
        fault = "it would be compared with itself" if same else f"run {run} has no iteration {number}"
        raise UsageError(f"--against {text}: {fault}; there is {known}")
    if not others:
        raise UsageError(f"--against {text}: run {run} has no other iteration")
    return replace(chosen, run=run, iteration=int(number) if number else others[-1])
