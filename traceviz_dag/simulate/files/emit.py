"""Writes one rank's trace file from the model's times, segment by segment, and collects its truth on the way."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import igzip

from traceviz_dag.arrays import Int64
from traceviz_dag.simulate.durations import routing
from traceviz_dag.simulate.files import row_text
from traceviz_dag.simulate.files.edges import EdgeTable
from traceviz_dag.simulate.files.identity import Identity
from traceviz_dag.simulate.files.metadata import closing, metadata_rows
from traceviz_dag.simulate.files.sheets import Bases, Fill, Sheet
from traceviz_dag.simulate.files.spans import HostSpans, StageMeasures, span_table, stage_measures
from traceviz_dag.simulate.files.truth import TruthTable
from traceviz_dag.simulate.files.windows import Held, cut_trace
from traceviz_dag.simulate.items import Close, Context, Open, Segment
from traceviz_dag.simulate.program.program import step_items
from traceviz_dag.simulate.program.stage import StageProgram
from traceviz_dag.simulate.rank_grids import RankGrids
from traceviz_dag.simulate.settings import JobSettings
from traceviz_dag.simulate.templates import Library, Template, spelled
from traceviz_dag.simulate.timing.host import FRAME_NS
from traceviz_dag.simulate.timing.streams import StepTimes
from traceviz_dag.simulate.tree import Collective, Nodes, Row, RowKind
from traceviz_dag.simulate.work.stepping import early_work
from traceviz_dag.system.whole_files import whole_file
from traceviz_dag.vocabulary import Phase

_WRITE_AT = 1 << 20
_UNRESOLVED = (row_text.NO_STREAM, -1)


@dataclass(slots=True)
class _Frame:
    """A frame that the host has entered and not left; ``python`` and ``external`` are 0 where it has no such number."""

    row: Row
    name: str
    begin: int
    python: int
    parent: int
    external: int


@dataclass(frozen=True, slots=True)
class Written:
    """The truth of one file: its kernels, what they wait for on other streams, and the spans of its micro-batches.

    Attributes:
        measures: step → what its pipelines need of this rank's kernels.
        held: which of the kernels the file holds; None: all. The other tables are of whole steps.
    """

    kernels: pa.Table
    edges: pa.Table
    spans: pa.Table
    measures: dict[int, StageMeasures]
    held: pa.ChunkedArray | None = None

    @property
    def written_kernels(self) -> pa.Table:
        """The kernels that the file holds."""
        return self.kernels if self.held is None else self.kernels.filter(self.held)


class RankWriter:
    """Writes the files of one rank; templates' texts are kept between files."""

    def __init__(self, settings: JobSettings, grids: RankGrids, rank: int, library: Library) -> None:
        self.settings, self.library = settings, library
        self.identity = Identity(settings, grids, rank)
        self.program = StageProgram(settings, grids.coordinates(rank)["pp"], library)
        self._sheets: dict[int, Sheet] = {}

    def write(self, path: Path, steps: Iterable[tuple[int, StepTimes]]) -> Written:
        """Write one file that holds some steps; it appears under its name only when it is whole.

        Args:
            steps: number and times of each step; one at a time is in memory.
        """
        file, coming = _File(self, path), iter(steps)
        number, times = next(coming)
        begin = int(times.marks[0])
        with file.open(begin):
            if self.settings.edges.early_kernels:
                file.early_kernels(number, begin)
            file.step(number, times)
            for number, times in coming:
                file.step(number, times)
        return file.written()

    def sheet(self, template: Template) -> Sheet:
        """The text of a template for this rank."""
        found = self._sheets.get(id(template))
        if found is None:
            found = self._sheets[id(template)] = Sheet(template, self.identity)
        return found


class _File:
    """One trace file being written."""

    def __init__(self, writer: RankWriter, path: Path) -> None:
        self.writer, self.path = writer, path
        self.identity, self.settings = writer.identity, writer.settings
        self.truth = TruthTable(self.identity)
        self.bases = Bases()
        self.frames: list[_Frame] = []
        self.spans: HostSpans = {}
        self.modules: dict[str, dict[tuple[int, int, int], int]] = {}
        self.records: list[tuple[int, int]] = []
        self.edges = EdgeTable()
        self.last = 0
        self.is_cut = self.settings.edges.cuts and self.settings.edges.window_rank in (None, self.identity.rank)
        self.held: Held | None = None
        self._pieces: list[str] = []
        self._size = 0

    @contextmanager
    def open(self, begin: int) -> Iterator[None]:
        """Open the file, let the caller write its steps, close it; ``begin`` is when the profiler started, true ns."""
        with whole_file(self.path) as raw:
            with self._packed(raw) as packed:
                self._out = io.BytesIO() if self.is_cut else packed
                self._put(self.identity.header(self.path.name))
                yield
                for text in metadata_rows(self.identity, self._local(begin), self._streams()):
                    self._put(text)
                self._put(closing(self.path.name, self._local(begin), self._local(self.last)))
                self._flush()
                if isinstance(self._out, io.BytesIO):
                    text, self.held = cut_trace(self._out.getvalue().decode(), self.settings.edges)
                    packed.write(text.encode())
            if self.settings.edges.truncated_rank == self.identity.rank:
                raw.truncate(raw.seek(0, 2) * 2 // 3)

    @contextmanager
    def _packed(self, raw: IO[bytes]) -> Iterator[IO[bytes]]:
        if self.path.suffix != ".gz":
            yield raw
            return
        with igzip.IGzipFile(filename="", fileobj=raw, mode="wb", compresslevel=1, mtime=0) as packed:
            yield cast("IO[bytes]", packed)

    def _put(self, text: str) -> None:
        self._pieces.append(text)
        self._size += len(text)
        if self._size > _WRITE_AT:
            self._flush()

    def _flush(self) -> None:
        self._out.write("".join(self._pieces).encode())
        self._pieces.clear()
        self._size = 0

    def _streams(self) -> list[int]:
        parts = self.truth.parts.get("stream", [])
        return sorted({int(number) for part in parts for number in np.unique(part)})

    def _local(self, true_ns: int) -> int:
        return int(self.identity.on_trace(np.array(true_ns, np.int64)))

    def step(self, number: int, times: StepTimes) -> None:
        """Write one step."""
        marks = iter(times.marks.tolist())
        stalls = iter(times.stalls.tolist())
        waits = iter(times.waits.tolist())
        kernel = 0
        self.edges.add(number, times.edges)
        self.bases.correlation = max(self.bases.correlation, 1000 + number * 200_000)
        calls: dict[str, int] = {}
        for item in step_items(self.writer.program, self.identity.rank, number):
            if isinstance(item, Open):
                self._enter(item, next(marks))
            elif isinstance(item, Close):
                self._leave(item.count, next(marks))
            else:
                held = [next(stalls) for _ in item.template.synchronisations]
                begin, length = next(marks), next(marks)
                window = slice(kernel, kernel + len(item.template.kernels))
                kernel = window.stop
                self.truth.matches += times.match[window]
                gpu = times.starts[window], times.ends[window], times.ready[window]
                told = [next(waits) for _ in item.template.waiting]
                self._segment(item, number, (begin, length, held), gpu, (calls, told))
        self._step_twin(number, times)
        self.last = max(int(times.marks[-1]), int(times.ends.max()))

    def _segment(
        self,
        item: Segment,
        number: int,
        host: tuple[int, int, list[int]],
        gpu: tuple[Int64, Int64, Int64],
        facts: tuple[dict[str, int], list[list[int]]],
    ) -> None:
        """Write a segment.

        Args:
            host: begin, length without stalls, and stalls, true ns. gpu: starts, ends and last arrivals of its kernels.
            facts: how many collectives each group has seen in this step; the file's record that each row waits for,
                with its event.
        """
        calls, waits = facts
        template, context, identity = item.template, item.context, self.identity
        sheet = self.writer.sheet(template)
        correlations, graph_nodes = sheet.kernel_numbers(self.bases)
        self.records += sheet.records(self.bases)
        # CUPTI numbers graphs and their nodes from 1.
        graph = context.slot * 2 + (context.phase is not Phase.FORWARD) + 1
        self._surround()
        fill = Fill(
            begins=identity.on_trace(_on_time_line(template, sheet.begins, host)),
            ends=identity.on_trace(_on_time_line(template, sheet.ends, host)),
            starts=identity.on_trace(gpu[0]),
            finishes=identity.on_trace(gpu[1]),
            makes=context.makes,
            refers=context.refers,
            modules=self._module_numbers(sheet, context),
            graph=graph,
            numbers=[self._call_number(calls, what, number) for what in sheet.facts],
            uneven=lambda what, collective: self._uneven(what, collective, context, number),
            waits=np.array([self._resolved(*wait) for wait in waits], np.int64),
        )
        self._put(sheet.render(fill, self.bases))
        self.truth.add(template, context, number, correlations, (graph if template.ghost else -1, graph_nodes), gpu)
        if context.microbatch >= 0:
            begin, length, held = host
            key = (number, context.chunk, context.microbatch, str(context.phase))
            span = self.spans.setdefault(key, [begin, begin])
            span[0], span[1] = min(span[0], begin), max(span[1], begin + length + sum(held))

    def _resolved(self, record: int, event: int) -> tuple[int, int, int]:
        """Stream and correlation of the record that a row waits for, and its event; the file may have none."""
        return (*(self.records[record] if record >= 0 else _UNRESOLVED), event)

    def _module_numbers(self, sheet: Sheet, context: Context) -> list[int]:
        """The profiler numbers the instances of each class as it meets them in a file; what is no layer's (embedding,
        last norm, output layer) is its chunk's."""
        numbers = []
        for name, ordinal in sheet.modules:
            instances = self.modules.setdefault(name, {})
            chunk = context.chunk if context.layer < 0 else -1
            numbers.append(instances.setdefault((context.layer, chunk, ordinal), len(instances)))
        return numbers

    def _call_number(self, calls: dict[str, int], what: Collective, step: int) -> int:
        """The sequence number of a collective in its group; messages count apart."""
        key = self.identity.group(what).name + ("p2p" if what.peer else "")
        calls[key] = calls.get(key, 0) + 1
        return step * 10_000 + calls[key]

    def _uneven(self, what: str, collective: Collective, context: Context, number: int) -> str:
        """Sizes of an all-to-all of tokens: elements, or tokens to and from each member."""
        group = self.identity.group(collective).ranks
        route = routing(self.settings, (number, context.microbatch, context.layer, group[0]))
        place = group.index(self.identity.rank)
        sent, received = route[place], route[:, place]
        if collective.uneven == "combine":
            sent, received = received, sent
        side = sent if what.startswith("in") else received
        return str(int(side.sum()) * collective.row_elements) if what.endswith("elements") else f'"{side.tolist()}"'

    def _surround(self) -> None:
        self.bases.outer_python = self.frames[-1].python if self.frames else 0
        self.bases.outer_external = next((frame.external for frame in reversed(self.frames) if frame.external), 0)

    def _enter(self, item: Open, now: int) -> None:
        bases = self.bases
        for depth, row in enumerate(item.rows):
            name = spelled(self.settings, row.name)
            if row.kind is RowKind.MODULE:
                name = f"nn.Module: {name}_{item.chunk}"
            parent = self.frames[-1].python if self.frames else 0
            python = external = 0
            if row.kind in row_text.PYTHON_ROWS:
                python, bases.python = bases.python, bases.python + 1
            else:
                external, bases.external = bases.external, bases.external + 1
            begin = self._local(now - (FRAME_NS - 100) * (len(item.rows) - depth) // len(item.rows))
            self.frames.append(_Frame(row, name, begin, python or parent, parent, external))

    def _leave(self, count: int, now: int) -> None:
        for depth in range(count):
            frame = self.frames.pop()
            end = self._local(now - (FRAME_NS - 100) * (count - 1 - depth) // count)
            if self.settings.stacks or frame.row.kind not in row_text.PYTHON_ROWS:
                self._put(self._frame_text(frame, end))

    def _frame_text(self, frame: _Frame, end: int) -> str:
        identity, bases = self.identity, self.bases
        bases.event += 1
        arguments = (
            f'"Python parent id": {frame.parent or "null"}, "Python id": {frame.python}, "Ev Idx": {bases.event}'
        )
        if frame.external:
            arguments = f'"External id": {frame.external},"Record function id": 0, "Ev Idx": {bases.event}'
        name = row_text.escaped(row_text.quoted(frame.name))
        category = row_text.CATEGORY[frame.row.kind]
        text = row_text.complete(category, name, identity.process, identity.main_thread, arguments)
        return text % (*divmod(frame.begin, 1000), *divmod(end - frame.begin, 1000))

    def _step_twin(self, number: int, times: StepTimes) -> None:
        """The step's annotation on the GPU: from its first kernel to the end of its last."""
        begin, end = self._local(int(times.starts.min())), self._local(int(times.ends.max()))
        arguments = f'"External id": {self.bases.outer_external}'
        name = json.dumps(f"ProfilerStep#{number}")
        text = row_text.complete("gpu_user_annotation", name, self.identity.device, 7, arguments)
        self._put(text % (*divmod(begin, 1000), *divmod(end - begin, 1000)))

    def early_kernels(self, number: int, begin: int) -> None:
        """The tail of work from before the profiler started: kernels without a launch row."""
        library, job = self.writer.library, self.writer.program.job
        template = library.unlaunched("early", lambda: ((early_work(job),), Nodes()))
        count = len(template.kernels)
        ends = begin - 20_000 - 60_000 * np.arange(count, dtype=np.int64)[::-1]
        starts, correlations = ends - 50_000, 100 + np.arange(count, dtype=np.int64)
        for kernel, start, correlation in zip(template.kernels, starts.tolist(), correlations.tolist(), strict=True):
            place = f'"device": {self.identity.device}, "context": 1, "stream": 7, "correlation": {correlation}'
            category, arguments = row_text.kernel_arguments(kernel, "", place)
            name = row_text.escaped(row_text.quoted(kernel.name))
            text = row_text.complete(category, name, self.identity.device, 7, arguments)
            span = self._local(start), self._local(start + 50_000)
            self._put(text % (*divmod(span[0], 1000), *divmod(span[1] - span[0], 1000)))
        self.edges.earlier = count
        self.truth.matches += [""] * count
        nodes = np.full(count, -1)
        self.truth.add(template, Context(Phase.OPTIMIZER), number, correlations, (-1, nodes), (starts, ends, starts))

    def written(self) -> Written:
        """The truth of what was written."""
        data = self.truth.joined()
        spans = span_table(self.identity.rank, self.writer.program.stage, self.spans, data, self.truth)
        kernels, edges = self.truth.table(data), self.edges.table(self.identity, data)
        measures = {step: stage_measures(kernels, step) for step in np.unique(data["step"]).tolist()}
        if self.held is None:
            return Written(kernels, edges, spans, measures)
        names = zip(kernels["correlation"].to_pylist(), kernels["graph_node_id"].to_pylist(), strict=True)
        held = pa.array([name in self.held.kernels for name in names])
        launched = pc.is_in(kernels["correlation"], value_set=pa.array(sorted(self.held.launches), pa.int64()))
        kernels = kernels.set_column(kernels.schema.get_field_index("launched"), "launched", launched)
        correlations = pc.filter(kernels["correlation"], held)
        both = (pc.is_in(edges[name], value_set=correlations) for name in ("waiting", "waited_for"))
        return Written(kernels, edges.filter(pc.and_(*both)), spans, measures, held)


def _on_time_line(template: Template, offsets: Int64, host: tuple[int, int, list[int]]) -> Int64:
    """Where offsets of a template lie on the true clock, with what the host was held up before them."""
    begin, length, stalls = host
    times = begin + offsets * length // template.total_ns
    for offset, stall in zip(template.synchronisations, stalls, strict=True):
        times = times + np.where(offsets > offset, stall, 0)
    return times
