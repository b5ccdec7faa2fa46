"""The base of one-rank-per-file formats: all that such a format need not define itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from filecmp import cmp
from pathlib import Path

import pyarrow as pa

from traceviz_dag.analyze.wording import counted
from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import RankInput
from traceviz_dag.pipeline.captures.capture import Capture, Examination
from traceviz_dag.pipeline.captures.traces import judge_traces
from traceviz_dag.pipeline.formats.jobs_apart import jobs_apart
from traceviz_dag.pipeline.formats.trace_format import Headers, PlaceRequest, RankTrace, Windows
from traceviz_dag.read.events import TraceEvents, TraceHeader, TracePeek, same_events
from traceviz_dag.read.kineto.memory import MEMORY
from traceviz_dag.read.layouts import TraceFile
from traceviz_dag.read.placement import Identity, Placement, resolve
from traceviz_dag.spans import expected_ranks


class OneRankAFile(ABC):
    """A one-rank-per-file trace format. A subclass defines the attributes without a value, and three methods.

    Files are placed by their paths, as PyTorch traces are: the iteration is that of the folder or the name, else the
    trace's own steps; the rank is the header's, else the name's.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    remedy: str
    folder_mark: str | None = None
    detectable_while_writing: bool = True
    extra_tables: tuple[str, ...] = ()
    several_ranks: bool = False
    perfetto_imports: bool = False
    rank_field: str = "its header"
    """What a file's own statement of its rank is called."""

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether a file with one of the suffixes is of this format by its content."""

    @abstractmethod
    def peek(self, path: Path) -> TracePeek:
        """What a look at a file shows, without reading its events.

        Raises:
            BadInputError: the file cannot be used.
        """

    @abstractmethod
    def read(self, path: Path) -> TraceEvents:
        """The events of a file.

        Raises:
            BadInputError: the file cannot be used.
        """

    def stands_aside(self, path: Path) -> bool:
        """No other file holds the same."""
        return False

    def is_whole(self, path: Path) -> bool:
        """Whether a file was written to its end: what a look at it says."""
        try:
            return self.peek(path).fault is None
        except BadInputError:
            return False

    def header(self, path: Path) -> TraceHeader:
        """The header of a file.

        Raises:
            BadInputError: the file cannot be used.
        """
        return self.peek(path).header

    def identity(self, file: TraceFile) -> Identity:
        """What a file shows of its own place.

        Raises:
            BadInputError: the file cannot be used.
        """
        peeked = self.peek(file.path)
        return Identity(peeked.header, peeked.first_ns, peeked.steps)

    def fault(self, path: Path, peeked: TracePeek) -> str | None:
        """What keeps a file from being read wholly, as far as a look at it shows; None where nothing does."""
        return peeked.fault

    def place(self, request: PlaceRequest) -> Placement:
        """Place files by their paths and headers; unrelated jobs in one folder are runs of their own,
        and a copy of a rank's file beside it is left out.

        Beside files that a home knows none is split off here: `named_files` decides which run a named file joins.
        """
        flat = {file.path: file.run for file in request.files if file.iteration is None}
        return resolve(
            request.files,
            rank=request.rank,
            ranks=request.ranks,
            look=self.identity,
            rank_field=self.rank_field,
            apart=None if request.ranks else lambda traces: jobs_apart(traces, flat, self._is_copy),
        )

    def _is_copy(self, one: Path, other: Path) -> bool:
        """Whether two files hold the same events, byte by byte or once they are read."""
        try:
            return cmp(one, other, shallow=False) or same_events(self.read(one), self.read(other))
        except (OSError, BadInputError):
            return False

    def headers(self, entries: Sequence[RankInput], home: Path | None) -> Headers:
        """The header of each file."""
        found, faults = {}, {}
        for entry in entries:
            try:
                found[entry.rank] = self.header(Path(entry.path))
            except BadInputError as error:
                faults[entry.rank] = str(error)
        return Headers(found, faults)

    def expected_ranks(self, entries: Sequence[RankInput]) -> Collection[int]:
        """Ranks that should have a trace, as the readable headers state them."""
        headers = self.headers(entries, None).found.values()
        worlds = [header.world_size for header in headers if header.world_size is not None]
        stated = (header.captured_ranks for header in headers)
        return expected_ranks(stated, max(worlds, default=None), {entry.rank for entry in entries})

    def events(
        self, trace: RankTrace, topology: Topology, rules: Rules, *, every_annotation: bool = False
    ) -> TraceEvents:
        """The events of a rank: those of its file."""
        return self.read(trace.path)

    def tables(self, trace: RankTrace, windows: Windows) -> Mapping[str, pa.Table]:
        """No tables besides those of every rank."""
        return {}

    def memory(self, trace: RankTrace) -> pa.Table:
        """No rows."""
        return MEMORY.empty_table()

    def word(self, path: Path) -> str:
        """The name of the format."""
        return self.name

    def examine(self, request: Examination) -> Capture:
        """What a look at each file and the classification of one of them show."""
        inputs, topology = request.inputs, request.topology
        peeks, problems, unread = [], list(inputs.problems), []
        for entry in inputs.ranks:
            try:
                if entry.refusal:
                    raise BadInputError(entry.path, entry.refusal, "give each job a separate folder")
                peeked = self.peek(Path(entry.path))
                fault = self.fault(Path(entry.path), peeked)
                peeks.append(peeked)
                if fault is not None:
                    raise BadInputError(entry.path, f"rank {entry.rank}: {fault}", "export it again")
            except BadInputError as error:
                unread.append(entry.rank)
                problems.append(str(error))
        sample = request.sample() if peeks else None
        if sample is not None:
            own = [(sample.rank, sample.fault)] if sample.fault is not None else []
            cut = [(rank, fault) for rank, fault in (*own, *sample.others) if rank not in unread]
            unread += [rank for rank, _ in cut]
            problems += [f"rank {rank}: {fault}" for rank, fault in cut]
        capture = _counted(request, peeks)
        known = {entry.rank for entry in inputs.ranks}
        stated = (peeked.header.captured_ranks for peeked in peeks)
        wanted = {*expected_ranks(stated, capture.world_size, known)}
        missing = () if request.chosen_by_name else sorted(wanted - known)
        capture = replace(
            capture,
            pipelines=len(topology.pipelines),
            stages=max(map(len, topology.pipelines), default=0),
            staged=sum(1 for rank in known if topology.stage_of(rank)[0] is not None),
            sample=sample,
            problems=tuple(problems),
            wanted_ranks=tuple(sorted(wanted)),
            missing_ranks=tuple(missing),
            unread_ranks=tuple(unread),
        )
        return replace(capture, answers=tuple(judge_traces(capture)))


def _counted(request: Examination, peeks: Sequence[TracePeek]) -> Capture:
    """What looks at the files add up to."""
    inputs = request.inputs
    worlds = {peeked.header.world_size for peeked in peeks} - {None}
    capture = Capture(
        run=inputs.run,
        iteration=inputs.iteration,
        ranks=len(peeks),
        world_size=worlds.pop() if len(worlds) == 1 else None,
        gpu=sum(peeked.has_kernels for peeked in peeks),
        stacks=sum(peeked.has_stacks for peeked in peeks),
        operators=sum(peeked.has_operators for peeked in peeks),
        shapes=sum(peeked.has_shapes for peeked in peeks),
        groups=sum(any(group.description for group in peeked.header.process_groups) for peeked in peeks),
        steps=max((len(peeked.steps) for peeked in peeks), default=0),
        pipelines=0,
        problems=(),
        warnings=inputs.warnings,
        described=inputs.topology_file is not None,
    )
    steps = counted(capture.steps, "profiler step", "profiler steps")
    summary = (
        f"; with GPU rows {capture.gpu}, call stacks {capture.stacks}, operators {capture.operators}, shapes "
        f"{capture.shapes}, described groups {capture.groups}; {steps} per file"
    )
    return replace(capture, summary=summary)
