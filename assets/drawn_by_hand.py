"""Records figures that the command line drew, so that the asset graph shows what there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from assets.figure_metadata import event
from assets.partitions import rank_trace_key
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key, rank_key

if TYPE_CHECKING:
    from traceviz_dag.pipeline.figures import DrawnFigure, FigureTask


def events_of(
    home: Path, asked: Sequence[FigureTask], drawn: Sequence[DrawnFigure]
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """What to record of figures that were drawn: a partition of which all were asked for is materialised.

    One of which only some were asked for, or on other clocks than the asset takes, is observed: it stays as current,
    or as missing, as it was.
    """
    names: dict[tuple[str, str], set[str]] = {}
    for task in asked:
        names.setdefault(_partition(task), set()).add(task.name)
    ordered = sorted(drawn, key=lambda figure: _partition(figure.task))
    for (asset, partition), group in groupby(ordered, lambda figure: _partition(figure.task)):
        figures = list(group)
        made = event(asset, partition, home, figures)
        if names[asset, partition] >= _expected(home, figures[0].task):
            yield made
        else:
            yield dg.AssetObservation(asset, partition=partition, metadata=made.metadata)


def _partition(task: FigureTask) -> tuple[str, str]:
    """The asset and the partition that a figure belongs to."""
    from traceviz_dag.pipeline.figures import RANK_KINDS, FigureKind

    key = iteration_key(task.run, task.iteration)
    if task.kind in RANK_KINDS:
        return "rank_figures", str(rank_trace_key(key, rank_key(task.number or 0)))
    groups = {
        FigureKind.PIPELINE_GROUP: "pipeline_figures",
        FigureKind.MODEL_REPLICA: "replica_figures",
        FigureKind.ALL_RANKS: "replica_figures",
    }
    return groups.get(task.kind, "across_ranks_figures"), key


def _expected(home: Path, task: FigureTask) -> set[str]:
    """Names of all figures that the asset draws of the partition."""
    from traceviz_dag.pipeline.figures import LakeSource, across_ranks_tasks, group_tasks, rank_tasks

    asset, _ = _partition(task)
    source = LakeSource(Lake(home), task.run, task.iteration)
    if asset == "rank_figures":
        tasks = rank_tasks(source, [task.number or 0])
    elif asset == "across_ranks_figures":
        tasks = across_ranks_tasks(source)
    else:
        tasks = [one for one in group_tasks(source) if _partition(one)[0] == asset]
    return {one.name for one in tasks}
