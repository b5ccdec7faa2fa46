"""The file that ``--figure`` names."""

from __future__ import annotations

from pathlib import Path

from traceviz_dag.commands.common.overwriting import check_output
from traceviz_dag.errors import UsageError


def check_figure(figure: Path, *read: Path) -> None:
    """Refuse a file that no figure can be, or that is read.

    Raises:
        UsageError: it is one of these.
    """
    from traceviz_dag.vocabulary import FIGURE_FORMATS

    if figure.suffix.removeprefix(".") not in FIGURE_FORMATS:
        formats = ", ".join(f".{name}" for name in FIGURE_FORMATS)
        raise UsageError(f"--figure {figure}: name a file that ends in {formats}")
    if read:
        check_output(figure, *read, option="--figure", what="what is compared")
