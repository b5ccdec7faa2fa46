"""Opening what screens walk through: an iteration of a home, or a profile of Nsight Systems."""

from __future__ import annotations

from pathlib import Path

from traceviz_dag.classify.rules import load_rules
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.report import StoredReportSource
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.show.page.alignment import TimeAlignment
from traceviz_dag.show.screens.iteration_model import IterationModel
from traceviz_dag.show.screens.model import ScreenModel
from traceviz_dag.show.screens.profile_model import ProfileModel


def iteration_model(
    lake: Lake, run: str, iteration: int, alignment: TimeAlignment = TimeAlignment.SOLVED
) -> ScreenModel:
    """An iteration of a home with all its ranks.

    Raises:
        UsageError: the iteration has no kernels.
    """
    return IterationModel(StoredReportSource(lake, run, iteration), alignment)


def profile_model(path: Path, home: Path | None, rules: Path | None = None) -> ScreenModel:
    """A profile; it is read and kept in the home where that is the first time.

    Args:
        home: None keeps nothing.
        rules: file of rules that are tried before the built-in ones.

    Raises:
        BadInputError: the export or the rules cannot be used.
    """
    return ProfileModel(open_profile(path, home), load_rules(rules))
