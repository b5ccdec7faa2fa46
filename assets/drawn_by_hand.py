"""Records figures that the command line drew, so that the asset graph shows what there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from assets.figure_assets import asset_of, kinds_drawn_by
from assets.figure_metadata import event
from assets.iteration_figures import iteration_figures
from assets.lineage.provenance import input_tags
from assets.partitions import rank_trace_key
from assets.rank_figures import rank_figures
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key, rank_key
from traceviz_dag.show.registry import Scope

if TYPE_CHECKING:
    from traceviz_dag.pipeline.figures import DrawnFigure, FigureTask

_ASSETS = (rank_figures, *iteration_figures)


def events_of(
    home: Path,
    asked: Sequence[FigureTask],
    drawn: Sequence[DrawnFigure],
    inputs: Mapping[str, Mapping[str, str]],
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """What to record of figures that were drawn: a partition of which all were asked for is materialised.

    One of which only some were asked for, or on other clocks than the asset takes, is observed: it stays as current,
    or as missing, as it was.

    Args:
        inputs: what ``tags_of_inputs`` gave before the figures were drawn.
    """
    names: dict[tuple[str, str], set[str]] = {}
    for task in asked:
        names.setdefault(_partition(task), set()).add(task.name)
    ordered = sorted(drawn, key=lambda figure: _partition(figure.task))
    for (asset, partition), group in groupby(ordered, lambda figure: _partition(figure.task)):
        figures = list(group)
        made = event(asset, partition, home, figures, inputs[asset])
        if names[asset, partition] >= _expected(home, figures[0].task):
            yield made
        else:
            yield dg.AssetObservation(asset, partition=partition, metadata=made.metadata)


def tags_of_inputs(instance: dg.DagsterInstance) -> dict[str, dict[str, str]]:
    """Asset → tags of what its figures are drawn from, as it is now."""
    return {asset.key.to_user_string(): input_tags(instance, asset, asset.key.to_user_string()) for asset in _ASSETS}


def _partition(task: FigureTask) -> tuple[str, str]:
    """The asset and the partition that a figure belongs to."""
    key = iteration_key(task.run, task.iteration)
    if task.kind.scope is Scope.RANK:
        key = str(rank_trace_key(key, rank_key(task.number or 0)))
    return asset_of(task.kind), key


def _expected(home: Path, task: FigureTask) -> set[str]:
    """Names of all figures that the asset draws of the partition."""
    from traceviz_dag.pipeline.figures import figure_tasks
    from traceviz_dag.pipeline.lake_source import LakeSource

    source = LakeSource(Lake(home), task.run, task.iteration)
    ranks = [task.number] if task.kind.scope is Scope.RANK and task.number is not None else None
    return {one.name for one in figure_tasks(source, kinds_drawn_by(asset_of(task.kind)), ranks)}
