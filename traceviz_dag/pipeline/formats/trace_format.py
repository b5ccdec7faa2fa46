"""What a trace format is to the pipeline: the protocol that every format fulfils, and what it is asked with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import pyarrow as pa

from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.lake.inputs import RankInput
from traceviz_dag.pipeline.captures.capture import Capture, Examination
from traceviz_dag.read.events import TraceEvents, TraceHeader
from traceviz_dag.read.formats import FileFormat
from traceviz_dag.read.layouts import TraceFile
from traceviz_dag.read.placement import Placement

Windows = Sequence[tuple[int, int, int]]
"""(number, start_ns, end_ns) of iterations, on the rank's clock."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's part of an iteration.

    Attributes:
        path: the trace file.
        name: how tables and messages call the file: its path relative to the run's folder.
        rank: the global rank.
        step: the ProfilerStep that is the iteration, where the file holds several; None takes the whole file.
        part: which part of a file that holds several ranks is the rank, as its format names it; empty takes the whole
            file.
        home: where profiles that were read once are kept; None keeps nothing.
        refusal: why the file is not taken for this rank; empty where it is.
        format: name of its trace format; empty where the file itself is to show it.
        version: of the file as it was registered. is_digest: whether that is of its content, so that what is read
            counts: the file may have changed in between.
    """

    path: Path
    name: str
    rank: int
    step: int | None = None
    part: str = ""
    home: Path | None = None
    refusal: str = ""
    format: str = ""
    version: str = ""
    is_digest: bool = False


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    """The files of one format in a run's folder, and what helps to place them.

    Attributes:
        home: where profiles are kept once they were read; None keeps nothing.
        rank: the rank of the one file that does not say its own.
        ranks: path → its rank, of files for which ``rank`` is not meant.
        known: gives the run that each file of the format was registered for.
        taken_by: what the traces of another format are called that are the run of the folder's name already; empty
            where none is.
    """

    files: Sequence[TraceFile]
    home: Path | None = None
    rank: int | None = None
    ranks: Mapping[Path, int] = field(default_factory=dict)
    known: Callable[[], Mapping[Path, str]] = dict
    taken_by: str = ""


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of the ranks of an iteration.

    Attributes:
        found: rank → header.
        faults: rank → one line, of ranks whose header cannot be read.
    """

    found: Mapping[int, TraceHeader]
    faults: Mapping[int, str] = field(default_factory=dict)


@runtime_checkable
class TraceFormat(FileFormat, Protocol):
    """All that the pipeline asks of a format, on top of what its files look like.

    Attributes:
        extra_tables: those of EXTRA_TABLES that its ranks become.
        several_ranks: a file may hold several ranks.
        perfetto_imports: Perfetto's trace processor reads its files.
    """

    extra_tables: tuple[str, ...]
    several_ranks: bool
    perfetto_imports: bool

    def place(self, request: PlaceRequest) -> Placement:
        """Place files in runs, iterations and ranks."""

    def headers(self, entries: Sequence[RankInput], home: Path | None) -> Headers:
        """The headers of ranks of one iteration, from which its topology is made."""

    def expected_ranks(self, entries: Sequence[RankInput]) -> Collection[int]:
        """Ranks that should have a trace, as the readable files state them; none where no file does."""

    def events(
        self, trace: RankTrace, topology: Topology, rules: Rules, *, every_annotation: bool = False
    ) -> TraceEvents:
        """The events of a rank.

        Args:
            every_annotation: keep annotations that no rule gives a meaning, for what asks for them by name.

        Raises:
            BadInputError: nothing of the file can be used.
        """

    def tables(self, trace: RankTrace, windows: Windows) -> Mapping[str, pa.Table]:
        """The rank's rows of each of ``extra_tables``.

        Args:
            windows: of the iterations wanted; empty takes everything.
        """

    def memory(self, trace: RankTrace) -> pa.Table:
        """What each device of a rank has allocated over time (``MEMORY``); no rows where the file does not say.

        Raises:
            BadInputError: the file cannot be read.
        """

    def word(self, path: Path) -> str:
        """What column ``format`` of table ``traces`` calls the file."""

    def examine(self, request: Examination) -> Capture:
        """What the files of an iteration hold, and which questions they can answer.

        Raises:
            BadInputError: nothing can be said of them.
        """
