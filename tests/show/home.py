"""A home whose lake is filled in the process of the test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.in_process import ranks_in_this_process
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.discovery import inputs_below


def fill_home(home: Path, paths: Sequence[Path], iteration: int | None = None) -> list[IterationInputs]:
    """Analyse traces into a home and register them: all iterations, or one alone."""
    found = [inputs for inputs in inputs_below(paths) if iteration in (None, inputs.iteration)]
    with ranks_in_this_process():
        analyse(AnalysisSettings(home, allow_partial=True), found)
    return found
