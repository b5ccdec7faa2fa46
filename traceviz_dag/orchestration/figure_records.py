"""Figures that a command drew, reported to Dagster, so that the asset graph shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from assets.drawn_by_hand import events_of, tags_of_inputs
from assets.resources import TracevizHome
from assets.unreported import unreported
from traceviz_dag.errors import TracevizError
from traceviz_dag.lake.conversion import DAMAGED
from traceviz_dag.lake.inputs import registered_if_any
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.orchestration.instance import open_instance

if TYPE_CHECKING:
    from traceviz_dag.pipeline.figures import DrawnFigure, FigureTask


def figure_inputs(home: Path, run: str, iteration: int) -> dict[str, dict[str, str]]:
    """Which tables of an iteration there are to draw from, as ``record_figures`` wants it: ask before drawing.

    The tables are reported first: a figure that was made before its tables would never count as stale.
    """
    inputs = registered_if_any(home, iteration_key(run, iteration))
    with open_instance(home) as instance:
        # What cannot be reported is no reason not to draw the rest: the sensor ``computed`` names it.
        with suppress(TracevizError, *DAMAGED):
            for event in unreported(instance, TracevizHome(home=str(home)), inputs) if inputs is not None else ():
                instance.report_runless_asset_event(event)
        return tags_of_inputs(instance)


def record_figures(
    home: Path,
    asked: Sequence[FigureTask],
    drawn: Sequence[DrawnFigure],
    inputs: Mapping[str, Mapping[str, str]],
) -> None:
    """Record figures that a command drew.

    Args:
        asked: all that were to be drawn. drawn: those that were; one of which the tables show nothing is not.
        inputs: what ``figure_inputs`` gave before.
    """
    with open_instance(home) as instance:
        for event in events_of(home, asked, drawn, inputs):
            instance.report_runless_asset_event(event)
