"""What commands that show iterations share: which ones they show, new traces analysed first, and their options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceviz_dag.commands.common.across import refuse_run
from traceviz_dag.commands.common.failures import (
    end_failed,
    end_gone,
    end_half_renewed,
    gone_iterations,
    tell_results,
)
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.vocabulary import TimeAlignment

if TYPE_CHECKING:
    from traceviz_dag.pipeline.analysis import IterationResult
    from traceviz_dag.pipeline.completeness import Completeness
    from traceviz_dag.pipeline.lake_source import LakeSource

ShownPathsArgument = Annotated[
    list[Path] | None,
    typer.Argument(help="Run folders, iteration folders or trace files; default: what the home holds."),
]
AlignmentOption = Annotated[
    TimeAlignment,
    typer.Option(
        "--time-alignment",
        help="global: one time axis, clocks as recorded; individual: each rank starts at its first kernel; "
        "solved: one time axis, on clocks solved from matched communications.",
    ),
]
ProcessesOption = Annotated[
    int,
    typer.Option(
        "--processes", "-p", "--workers", min=0, help="Number of processes; 0 = as many as cores and memory allow."
    ),
]


@contextmanager
def iterations_of(
    home: Path, paths: Sequence[Path], run: str | None, iteration: int | None
) -> Iterator[list[LakeSource]]:
    """The iterations that a command is to show; traces below the paths are analysed first.

    Raises:
        BadInputError: the home, or what is left of it, holds no analysed traces.
        IncompleteError: at the end, where a step of that analysis failed, or the last one was cut off, or somebody
            deleted the topology of an iteration; at once where nothing else is there.
    """
    from traceviz_dag.pipeline.lake_source import LakeSource

    for path in paths:
        refuse_run(path, home)
    results = _analysed(home, paths) if paths else []
    keys = {(result.run, result.iteration) for result in results}
    lake = Lake(home) if not (home / "lake").is_dir() else open_lake(home, refresh=False)
    gone = {} if paths else gone_iterations(lake, run, iteration, "topology")
    found = [
        LakeSource(lake, partition.run, partition.iteration)
        for partition in lake.partitions("topology", run, iteration)
        if not paths or (partition.run, partition.iteration) in keys
    ]
    if not found:
        raise BadInputError(
            home, "holds no such iteration", "name traces to analyse, or another run, iteration or home"
        )
    yield found
    end_failed(results)
    end_half_renewed(home, [(source.run, source.iteration) for source in found])
    end_gone(gone)


def completeness_of(sources: Sequence[LakeSource], paths: Sequence[Path]) -> list[Completeness]:
    """What of the shown iterations was not read; where the user named each rank's file, the others are not missed."""
    from traceviz_dag.lake.inputs import registered_if_any
    from traceviz_dag.lake.partition_keys import iteration_key
    from traceviz_dag.pipeline.completeness import ranks_chosen_by_name, stored_completeness

    found = []
    for source in sources:
        inputs = registered_if_any(source.lake.home, iteration_key(source.run, source.iteration))
        one = stored_completeness(source.lake, source.run, source.iteration, inputs)
        meant = inputs is not None and ranks_chosen_by_name(inputs, paths)
        found.append(replace(one, missing=()) if meant else one)
    return found


def _analysed(home: Path, paths: Sequence[Path]) -> list[IterationResult]:
    """What became of the traces below the paths; what is there and unchanged is not analysed again."""
    from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
    from traceviz_dag.pipeline.discovery import inputs_below

    inputs = inputs_below(paths, home=home, with_known=True)
    results = analyse(AnalysisSettings(home, allow_partial=True), inputs)
    tell_results(inputs, results, partial(typer.echo, err=True))
    return results
