"""The format of a registered file that no installed package reads any more."""

from __future__ import annotations

from pathlib import Path

from traceviz_dag.errors import BadInputError
from traceviz_dag.pipeline.formats.one_rank_a_file import OneRankAFile
from traceviz_dag.read.events import TraceEvents, TracePeek
from traceviz_dag.read.formats import OF_OTHERS


class AbsentFormat(OneRankAFile):
    """Refuses every file, so that each costs its own rank and says why."""

    suffixes: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.title = f"traces of format {name}"
        self.remedy = f"install the package that brings trace format {name} (entry point of {OF_OTHERS.group})"

    def recognises(self, path: Path) -> bool:
        """No file."""
        return False

    def peek(self, path: Path) -> TracePeek:
        """Refuse the file.

        Raises:
            BadInputError: always.
        """
        raise self._refusal(path)

    def read(self, path: Path) -> TraceEvents:
        """Refuse the file.

        Raises:
            BadInputError: always.
        """
        raise self._refusal(path)

    def _refusal(self, path: Path) -> BadInputError:
        return BadInputError(path, f"it was registered as of trace format {self.name}, unknown here", self.remedy)
