"""The lake of a job for as long as the job is open."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.lake import Lake


@dataclass(frozen=True)
class Held:
    """A home, or traces that were analysed into a folder; whoever holds it keeps that folder.

    Attributes:
        traces: what was analysed, where there is no home that stays. opened: closed with it, or once nobody holds it.
        changed: run and iteration → what that analysis says of files that changed, or are gone, since the one before.
    """

    _lake: Lake
    traces: Path | None = None
    opened: ExitStack = field(default_factory=ExitStack, compare=False, repr=False)
    changed: Mapping[tuple[str, int], Sequence[str]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_closing", weakref.finalize(self, self.opened.close))

    _closing: Any = field(init=False, compare=False, repr=False)

    @property
    def home(self) -> Path:
        """The folder of the lake, which may be gone."""
        return self._lake.home

    @property
    def lake(self) -> Lake:
        """The lake.

        Raises:
            UsageError: the job was closed.
        """
        if self.traces is not None and not self._closing.alive:
            raise UsageError(f"the job of {self.traces} is closed, and its tables are gone; open it again")
        return self._lake

    def close(self) -> None:
        """Remove what was analysed; of a home, nothing."""
        self._closing()
