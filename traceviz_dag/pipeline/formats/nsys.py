"""Profiles of Nsight Systems as a source of the pipeline: a file may hold the ranks of a whole node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import RankInput
from traceviz_dag.pipeline.captures.capture import Capture, Examination
from traceviz_dag.pipeline.formats.trace_format import Headers, PlaceRequest, RankTrace, Windows
from traceviz_dag.read.events import TraceEvents
from traceviz_dag.read.nsys.files import NsysFiles
from traceviz_dag.read.nsys.open import is_report
from traceviz_dag.read.placement import Placement


class NsysFormat(NsysFiles):
    """Reports, SQLite exports and folders of Parquet files; a part is a process with its GPU.

    What reads them is imported once there is one: forty modules that traces of PyTorch do not need.
    """

    extra_tables: tuple[str, ...] = ("nvtx_ranges",)
    several_ranks = True
    perfetto_imports = False

    def place(self, request: PlaceRequest) -> Placement:
        """Place exports by what they hold: jobs by evidence, ranks by node and GPU."""
        from traceviz_dag.pipeline.nsys.placement import place_exports

        return place_exports(
            request.files,
            request.home,
            rank=request.rank,
            known=request.known(),
            ranks=request.ranks,
            taken_by=request.taken_by,
        )

    def headers(self, entries: Sequence[RankInput], home: Path | None) -> Headers:
        """What replaces headers; where an export cannot be read, the step that reads its kernels reports it."""
        from traceviz_dag.pipeline.nsys.ranks import export_headers

        try:
            return Headers(export_headers([(one.rank, Path(one.path), one.part) for one in entries], home))
        except BadInputError:
            return Headers({})

    def expected_ranks(self, entries: Sequence[RankInput]) -> Collection[int]:
        """Exports do not state them."""
        return ()

    def events(
        self, trace: RankTrace, topology: Topology, rules: Rules, *, every_annotation: bool = False
    ) -> TraceEvents:
        """The events of one process on its GPU.

        Raises:
            BadInputError: the export cannot be read, or does not hold the part.
        """
        from traceviz_dag.pipeline.nsys.ranks import export_events

        return export_events(
            trace.path, trace.part, trace.rank, topology, trace.home, rules, every_annotation=every_annotation
        )

    def tables(self, trace: RankTrace, windows: Windows) -> Mapping[str, pa.Table]:
        """The rank's NVTX ranges."""
        from traceviz_dag.pipeline.nsys.ranks import export_ranges

        return {"nvtx_ranges": export_ranges(trace.path, trace.part, trace.home, windows)}

    def memory(self, trace: RankTrace) -> pa.Table:
        """What the rank allocates by calls of the driver; totals are unknown."""
        from traceviz_dag.pipeline.nsys.ranks import export_memory

        return export_memory(trace.path, trace.part, trace.home)

    def word(self, path: Path) -> str:
        """In which of its forms the profile is."""
        return "nsys_parquet" if path.is_dir() else "nsys_rep" if is_report(path) else "nsys_sqlite"

    def examine(self, request: Examination) -> Capture:
        """What each export holds and lacks.

        Raises:
            BadInputError: an export cannot be read.
        """
        from traceviz_dag.pipeline.captures.exports import capture_of_exports
        from traceviz_dag.pipeline.nsys.facts import export_facts

        return capture_of_exports(request, export_facts(request.inputs, request.home, request.rules))
