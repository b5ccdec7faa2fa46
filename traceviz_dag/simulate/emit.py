"""Writes one rank's trace file from the model's times, segment by segment, and collects its truth on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
from isal import igzip

from traceviz_dag.simulate.durations import routing
from traceviz_dag.simulate.identity import Identity
from traceviz_dag.simulate.model import StepTimes
from traceviz_dag.simulate.items import Close, Context, Open, Segment
from traceviz_dag.simulate.program import StageProgram
from traceviz_dag.simulate.rank_grids import RankGrids
from traceviz_dag.simulate.settings import Settings
from traceviz_dag.simulate.sheets import TIME, Bases, Int64, Sheet
from traceviz_dag.simulate.templates import Library, Template, spelled
from traceviz_dag.simulate.tree import Collective, Row, RowKind
from traceviz_dag.simulate.truth import TruthTable
from traceviz_dag.vocabulary import Phase

_WRITE_AT = 1 << 20


@dataclass(slots=True)
class _Frame:
    """A frame that the host has entered and not left."""

    row: Row
    name: str
    begin: int
    python: int
    parent: int
    external: int


@dataclass(frozen=True, slots=True)
class Written:
    """What came of one file: its truth."""

    kernels: pa.Table
    spans: pa.Table
    busy: tuple[Int64, Int64]


class RankWriter:
    """Writes the files of one rank; templates' texts are kept between files."""

    def __init__(self, settings: Settings, grids: RankGrids, rank: int, library: Library) -> None:
        self.settings = settings
        self.identity = Identity(settings, grids, rank)
        stage = grids.coordinates(rank)["pp"]
        self.program = StageProgram(settings, stage, library)
        self._sheets: dict[int, Sheet] = {}

    def write(self, path: Path, steps: list[tuple[int, StepTimes]]) -> Written:
        """Write one file that holds some steps; it appears under its name only when it is whole.

        Args:
            steps: number and times of each step.
        """
        file = _File(self, path)
        with file.open():
            for number, times in steps:
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
        self.pieces: list[str] = []
        self.size = 0
        self.spans: dict[tuple[int, int, int, str], list[int]] = {}
        self.first_ns: int | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open the file, let the caller write its steps, close it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.part")
        with temporary.open("wb") as raw:
            if self.path.suffix == ".gz":
                with igzip.IGzipFile(filename="", fileobj=raw, mode="wb", compresslevel=1, mtime=0) as self.out:
                    self._put(self.identity.header(self.path.name))
                    yield
                    self._close()
            else:
                self.out: IO[bytes] = raw
                self._put(self.identity.header(self.path.name))
                yield
                self._close()
        if self.settings.edges.truncated_rank == self.identity.rank:
            with temporary.open("r+b") as raw:
                raw.truncate(temporary.stat().st_size * 2 // 3)
        temporary.replace(self.path)

    def _put(self, text: str) -> None:
        self.pieces.append(text)
        self.size += len(text)
        if self.size > _WRITE_AT:
            self._flush()

    def _flush(self) -> None:
        self.out.write("".join(self.pieces).encode())
        self.pieces.clear()
        self.size = 0

    def _close(self) -> None:
        first = self.first_ns or 0
        for text in _metadata_rows(self.identity, first, self._streams()):
            self._put(text)
        end = f'  {{\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", "ts": {_us(first)}\n  }}\n'
        self._put(f'{end}  ],\n  "traceName": {json.dumps(self.path.name)}\n}}')
        self._flush()

    def _streams(self) -> list[int]:
        found = self.truth.parts.get("stream", [])
        return sorted({int(number) for part in found for number in np.unique(part)})

    def step(self, number: int, times: StepTimes) -> None:
        """Write one step."""
        marks, stalls = times.marks, times.stalls
        mark = stall = kernel = 0
        self.bases.correlation = max(self.bases.correlation, 1000 + number * 200_000)
        calls: dict[str, int] = {}
        begin = end = 0
        for item in self.writer.program.step(self.identity.rank, number):
            if isinstance(item, Segment):
                template = item.template
                count, held = len(template.kernels), len(template.synchronisations)
                begin, length = int(marks[mark]), int(marks[mark + 1])
                mark += 2
                span = slice(kernel, kernel + count)
                end = self._segment(
                    item, number, begin, length, stalls[stall : stall + held], _window(times, span), calls
                )
                self.truth.matches += times.match[span]
                stall += held
                kernel += count
                continue
            now = self._local(int(marks[mark]))
            mark += 1
            if isinstance(item, Open):
                self._enter(item, now)
            else:
                assert isinstance(item, Close)
                self._leave(item.count, now)
        self._step_twin(number, times)

    def _local(self, true_ns: int) -> int:
        return int(self.identity.clock.local(np.int64(true_ns))) + self.identity.time_shift  # type: ignore[arg-type]

    def _segment(
        self,
        item: Segment,
        number: int,
        begin: int,
        length: int,
        stalls: Int64,
        times: tuple[Int64, Int64, Int64],
        calls: dict[str, int],
    ) -> int:
        template, context = item.template, item.context
        sheet = self.writer.sheet(template)
        clock, shift = self.identity.clock, self.identity.time_shift
        places = (_on_time_line(template, offsets, begin, length, stalls) for offsets in (sheet.begins, sheet.ends))
        begins, ends = (clock.local(place) + shift for place in places)
        starts, finishes = clock.local(times[0]) + shift, clock.local(times[1]) + shift
        correlations, graph_nodes = sheet.kernel_numbers(self.bases)
        self._surround()
        group_numbers = [_next_number(calls, what, self.identity, number) for what in sheet.facts]

        def patch(what: str, collective: Collective) -> str:
            return self._uneven(what, collective, context, number)

        text = sheet.render(
            begins,
            ends,
            starts,
            finishes,
            self.bases,
            context.makes,
            context.refers,
            context.slot,
            context.slot * 2 + (context.phase is not Phase.FORWARD),
            group_numbers,
            patch,
        )
        self._put(text)
        if self.first_ns is None and len(begins):
            self.first_ns = int(begins[0])
        iteration = number
        graph = context.slot * 2 + (context.phase is not Phase.FORWARD) if template.ghost else -1
        self.truth.add(template, context, number, iteration, correlations, (graph, graph_nodes), times)
        end = begin + length + int(stalls.sum())
        self._span(number, context, begin, end)
        return end

    def _span(self, number: int, context: Context, begin: int, end: int) -> None:
        if context.microbatch < 0:
            return
        key = (number, context.chunk, context.microbatch, str(context.phase))
        found = self.spans.setdefault(key, [begin, end])
        found[0], found[1] = min(found[0], begin), max(found[1], end)

    def _uneven(self, what: str, collective: Collective, context: Context, number: int) -> str:
        group = self.identity.group(collective).ranks
        route = routing(self.settings, (number, context.microbatch, context.layer, group[0]))
        place = group.index(self.identity.rank)
        sent, received = route[place], route[:, place]
        if collective.uneven == "combine":
            sent, received = received, sent
        side = sent if what.startswith("in") else received
        if what.endswith("elements"):
            return str(int(side.sum()) * collective.row_elements)
        return f'"{side.tolist()}"'

    def _surround(self) -> None:
        bases = self.bases
        bases.outer_python = self.frames[-1].python if self.frames else 0
        bases.outer_external = next((frame.external for frame in reversed(self.frames) if frame.external), 0)

    def _enter(self, item: Open, now: int) -> None:
        bases = self.bases
        for depth, row in enumerate(item.rows):
            name = spelled(self.settings, row.name)
            if row.kind is RowKind.MODULE:
                name = f"nn.Module: {name}_{item.chunk}"
            parent = next((frame.python for frame in reversed(self.frames) if frame.python), 0)
            python = external = 0
            if row.kind in (RowKind.PYTHON, RowKind.MODULE):
                python, bases.python = bases.python, bases.python + 1
            else:
                external, bases.external = bases.external, bases.external + 1
            # Frames of one Open start one after the other, within what the host spends on it.
            begin = now - 600 + 600 * depth // len(item.rows)
            self.frames.append(_Frame(row, name, begin, python or parent, parent, external))

    def _leave(self, count: int, now: int) -> None:
        for depth in range(count):
            frame = self.frames.pop()
            end = now - 600 + 600 * (depth + 1) // count
            if frame.row.kind in (RowKind.PYTHON, RowKind.MODULE) and not self.settings.stacks:
                continue
            self._put(self._frame_text(frame, end))

    def _frame_text(self, frame: _Frame, end: int) -> str:
        identity, bases = self.identity, self.bases
        bases.event += 1
        head = f'"pid": {identity.process}, "tid": {identity.main_thread}'
        time = TIME % (frame.begin // 1000, frame.begin % 1000, *divmod(end - frame.begin, 1000))
        if frame.external:
            category = "user_annotation"
            arguments = f'"External id": {frame.external},"Record function id": 0, "Ev Idx": {bases.event}'
        else:
            category = "python_function"
            parent = frame.parent or "null"
            arguments = f'"Python parent id": {parent}, "Python id": {frame.python}, "Ev Idx": {bases.event}'
        name = json.dumps(frame.name)
        start = f'  {{\n    "ph": "X", "cat": "{category}", "name": {name}, {head},\n    {time},\n'
        return f'{start}    "args": {{\n      {arguments}\n    }}\n  }},\n'

    def _step_twin(self, number: int, times: StepTimes) -> None:
        if not len(times.starts):
            return
        identity = self.identity
        first, last = self._local(int(times.starts.min())), self._local(int(times.ends.max()))
        time = TIME % (first // 1000, first % 1000, *divmod(last - first, 1000))
        head = f'"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#{number}", "pid": {identity.device}'
        arguments = f'"External id": {self.bases.outer_external}'
        self._put(f'  {{\n    {head}, "tid": 7,\n    {time},\n    "args": {{\n      {arguments}\n    }}\n  }},\n')

    def written(self) -> Written:
        """The truth of what was written."""
        data = self.truth.joined()
        work = data["dimension"] != self.truth.code("dimension", "pp")
        return Written(self.truth.table(), self._span_table(data), (data["start"][work], data["end"][work]))

    def _span_table(self, data: dict[str, Int64]) -> pa.Table:
        from traceviz_dag.simulate.spans import span_table

        return span_table(self.identity.rank, self.writer.program.stage, self.spans, data, self.truth)


def _window(times: StepTimes, span: slice) -> tuple[Int64, Int64, Int64]:
    return times.starts[span], times.ends[span], times.ready[span]


def _on_time_line(template: Template, offsets: Int64, begin: int, length: int, stalls: Int64) -> Int64:
    """Where offsets of a template lie on the true clock, with what the host was held up before them."""
    times = begin + offsets * length // template.total_ns
    for offset, stall in zip(template.synchronisations, stalls, strict=True):
        times = times + np.where(offsets > offset, stall, 0)
    return times


def _next_number(calls: dict[str, int], what: Collective, identity: Identity, step: int) -> int:
    """The sequence number of a collective in its group; messages count apart."""
    key = identity.group(what).name + ("p2p" if what.peer else "")
    calls[key] = calls.get(key, 0) + 1
    return step * 10_000 + calls[key]


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _metadata_rows(identity: Identity, first_ns: int, streams: list[int]) -> Iterator[str]:
    """Names and order of processes and threads; Kineto repeats some and leaves a blank after a stream's name."""
    at = _us(first_ns)

    def row(name: str, process: int, thread: int, key: str, value: object) -> str:
        head = f'"name": "{name}", "ph": "M", "ts": {at}, "pid": {process}, "tid": {thread}'
        return f'  {{\n    {head},\n    "args": {{\n      "{key}": {json.dumps(value)}\n    }}\n  }},\n'

    processes = [(identity.process, "CPU", identity.process)]
    processes += [(device, f"GPU {device}", 16_777_216 + device) for device in range(identity.settings.node_size)]
    for process, label, order in processes:
        yield row("process_name", process, 0, "name", "python3.12")
        yield row("process_labels", process, 0, "labels", label)
        yield row("process_sort_index", process, 0, "sort_index", order)
    threads = [(identity.device, stream, f"stream {stream} ") for stream in streams]
    main, autograd = identity.main_thread, identity.autograd_thread
    threads += [(identity.process, main, f"thread {main} (python3.12)")]
    threads += [(identity.process, main, f"thread {main} (pt_main_thread)")]
    threads += [(identity.process, autograd, f"thread {autograd} (pt_autograd_0)")]
    for process, thread, name in threads:
        yield row("thread_name", process, thread, "name", name)
        yield row("thread_sort_index", process, thread, "sort_index", thread)


