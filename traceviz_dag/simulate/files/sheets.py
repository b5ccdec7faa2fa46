"""A template as text for one rank: Kineto's JSON with slots, filled by one ``%`` operation per segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import Int64
from traceviz_dag.simulate.files import row_text
from traceviz_dag.simulate.files.identity import Identity
from traceviz_dag.simulate.files.row_text import PYTHON_ROWS
from traceviz_dag.simulate.files.stated_inputs import stated_inputs
from traceviz_dag.simulate.settings import Era
from traceviz_dag.simulate.templates import FlatRow, Template, spelled
from traceviz_dag.simulate.tree import Collective, RowKind

Slot = tuple[str, int]
"""Where a value of the text comes from: a column of the pool and an index in it."""


@dataclass(slots=True)
class Bases:
    """First free number of each kind of identifier, what surrounds a segment, and the last graph launch."""

    python: int = 1
    external: int = 1
    event: int = 0
    correlation: int = 1000
    outer_python: int = 0
    outer_external: int = 0
    graph_correlation: int = 0
    graph_external: int = 0
    graph_node: int = 1


@dataclass(frozen=True, slots=True)
class Fill:
    """What one segment puts into its template's text.

    Attributes:
        begins, ends: of all rows; starts, finishes: of all kernels; on the trace's clock.
        makes, refers: first autograd sequence numbers. modules: instance number of each of ``Sheet.modules``.
        graph: number of the CUDA graph.
        numbers: sequence number of each communication that a row describes.
        uneven: gives an uneven communication's sizes as text.
        waits: for each of the template's waits: stream waited for, correlation of the record, id of the event.
    """

    begins: Int64
    ends: Int64
    starts: Int64
    finishes: Int64
    makes: int
    refers: int
    modules: list[int]
    graph: int
    numbers: list[int]
    uneven: Callable[[str, Collective], str]
    waits: Int64


class Sheet:
    """One template's text for one rank.

    The values that a segment fills in are gathered from a pool of columns (times, identifiers) by a permutation that
    is computed once.
    """

    def __init__(self, template: Template, identity: Identity) -> None:
        self.template, self.identity = template, identity
        self.begins = np.array([row.begin for row in template.rows], np.int64)
        self.ends = np.array([row.end for row in template.rows], np.int64)
        self.facts = [facts for row in template.rows if (facts := row.facts) is not None]
        settings = identity.settings
        self._inputs = stated_inputs(template, settings.hidden, settings.vocabulary) if settings.shapes else {}
        self._number_rows()
        self._number_modules()
        self._told = [*template.waiting, *template.holding]
        self._told_rows = np.array([row for row, _ in self._told], np.int64)
        self._twin_last = np.arange(len(template.kernels))
        self._patches: list[tuple[int, str, Collective]] = []
        self._slots: list[Slot] = []
        parts = [self._row(index) for index in self._shown()]
        parts += [self._kernel(index) for index in range(len(template.kernels))]
        parts += [self._annotation_twin(index) for index in self._shown()]
        parts += [self._synchronisation(place) for place in range(len(self._told))]
        self._format = "".join(parts)
        self._permutation = self._permute()

    def render(self, fill: Fill, bases: Bases) -> str:
        """The text of one segment; identifiers are taken from ``bases``."""
        spans, runs = fill.ends - fill.begins, fill.finishes - fill.starts
        twins = fill.finishes[self._twin_last] - fill.starts
        told = _within(fill.begins[self._told_rows], spans[self._told_rows])
        columns = (fill.begins, spans, fill.starts, runs, twins, *told)
        times = [part for column in columns for part in np.divmod(column, 1000)]
        outer = (bases.outer_python, bases.outer_external)
        pool = np.concatenate(
            (
                *times,
                bases.python + np.arange(len(self._python)),
                bases.external + np.arange(len(self._external)),
                bases.event + np.arange(len(self.begins)),
                bases.correlation + np.arange(len(self._correlation)),
                fill.makes + np.arange(self.template.nodes + 1),
                fill.refers + np.arange(self._referred),
                np.array(fill.modules, np.int64),
                np.array(fill.numbers, np.int64),
                np.array((*outer, bases.graph_correlation, bases.graph_external, fill.graph), np.int64),
                bases.graph_node + np.arange(len(fill.starts)),
                fill.waits.ravel(),
            )
        )
        values = pool[self._permutation].tolist()
        for position, what, collective in self._patches:
            values[position] = fill.uneven(what, collective)
        self._count(bases)
        return self._format % tuple(values)

    def kernel_numbers(self, bases: Bases) -> tuple[Int64, Int64]:
        """Correlations of the kernels, and their nodes where they belong to a graph (-1 elsewhere)."""
        count = len(self.template.kernels)
        if self.template.ghost:
            return np.full(count, bases.graph_correlation), bases.graph_node + np.arange(count)
        return bases.correlation + self._launches, np.full(count, -1)

    def records(self, bases: Bases) -> list[tuple[int, int]]:
        """Stream and correlation of each row that records an event."""
        return [
            (self.identity.stream(stream), bases.correlation + self._correlation[row])
            for row, stream in self.template.recording
        ]

    def _permute(self) -> Int64:
        """The place in the pool of each slot; the columns are in the order of ``render``."""
        rows, kernels, told = len(self.template.rows), len(self.template.kernels), len(self._told)
        sizes = dict.fromkeys(("begin_us", "begin_ns", "span_us", "span_ns"), rows)
        sizes |= dict.fromkeys(("start_us", "start_ns", "run_us", "run_ns", "twin_us", "twin_ns"), kernels)
        sizes |= dict.fromkeys(("told_us", "told_ns", "lasted_us", "lasted_ns"), told)
        sizes |= {"python": len(self._python), "external": len(self._external), "event": rows}
        sizes |= {"correlation": len(self._correlation), "makes": self.template.nodes + 1, "refers": self._referred}
        sizes |= {"module": len(self.modules), "number": len(self.facts), "outer": 5, "node": kernels}
        sizes |= {"wait": 3 * len(self.template.waiting)}
        firsts = dict(zip(sizes, np.concatenate(([0], np.cumsum(list(sizes.values())))).tolist(), strict=False))
        return np.array([firsts[column] + index for column, index in self._slots], np.int64)

    def _count(self, bases: Bases) -> None:
        """Move the bases past the numbers that a segment has used."""
        if self.template.ghost:
            bases.graph_node += len(self.template.kernels)
        if self._graph_row >= 0:
            owner = self.template.rows[self._graph_row].owner
            bases.graph_correlation = bases.correlation + self._correlation[self._graph_row]
            bases.graph_external = bases.external + self._external[owner] if owner >= 0 else bases.outer_external
            bases.graph_node = 1
        bases.python += len(self._python)
        bases.external += len(self._external)
        bases.event += len(self.begins)
        bases.correlation += len(self._correlation)

    def _number_rows(self) -> None:
        """Give rows their ordinals among those with the same kind of identifier."""
        self._python: dict[int, int] = {}
        self._external: dict[int, int] = {}
        self._correlation: dict[int, int] = {}
        self._fact: dict[int, int] = {}
        self._launch_row: dict[int, int] = {}
        for index, row in enumerate(self.template.rows):
            if row.kind in PYTHON_ROWS:
                self._python[index] = len(self._python)
            elif row.kind is RowKind.RUNTIME:
                self._correlation[index] = len(self._correlation)
                if row.kernel >= 0:
                    self._launch_row[row.kernel] = index
            else:
                self._external[index] = len(self._external)
            if row.facts is not None:
                self._fact[index] = len(self._fact)
        rows = self.template.rows
        self._launches = np.array([self._correlation[row] for _, row in sorted(self._launch_row.items())], np.int64)
        self._graph_row = next((index for index in self._correlation if rows[index].name == "cudaGraphLaunch"), -1)
        self._referred = 1 + max((row.sequence for row in rows if row.backward and not row.nested), default=-1)

    def _number_modules(self) -> None:
        """List the modules as (class, ordinal among those of its class in this template)."""
        self.modules: list[tuple[str, int]] = []
        self._module: dict[int, int] = {}
        counts: dict[str, int] = {}
        for index, row in enumerate(self.template.rows):
            if row.kind is RowKind.MODULE:
                self._module[index] = len(self.modules)
                self.modules.append((row.name, counts.get(row.name, 0)))
                counts[row.name] = counts.get(row.name, 0) + 1

    def _shown(self) -> list[int]:
        """Rows that are in the trace: Python only with stacks, launches only where the profiler kept them."""
        template, stacks = self.template, self.identity.settings.stacks
        return [
            index
            for index, row in enumerate(template.rows)
            if (stacks or row.kind not in PYTHON_ROWS) and not (row.kernel >= 0 and template.kernels[row.kernel].lost)
        ]

    def _time(self, columns: tuple[str, str], index: int) -> None:
        for column in columns:
            self._slots += ((f"{column}_us", index), (f"{column}_ns", index))

    def _row(self, index: int) -> str:
        row, identity = self.template.rows[index], self.identity
        thread = identity.autograd_thread if self.template.autograd else identity.main_thread
        name = row_text.escaped(row_text.quoted(spelled(identity.settings, row.name)))
        category = row_text.CATEGORY[row.kind]
        if row.kind is RowKind.MODULE:
            name = f'"nn.Module: {name[1:-1]}_%d"'
            self._slots.append(("module", self._module[index]))
        elif row.kind is RowKind.RUNTIME and not row.name.startswith("cuda"):
            category = "cuda_driver"
        self._time(("begin", "span"), index)
        text = row_text.complete(category, name, identity.process, thread, self._arguments(index, row))
        return text + self._flow(index, row, thread)

    def _arguments(self, index: int, row: FlatRow) -> str:
        if row.kind in PYTHON_ROWS:
            return self._python_arguments(index, row)
        if row.kind is RowKind.RUNTIME:
            external = self._external_of(row.owner)
            self._slots.append(("correlation", self._correlation[index]))
            return f'{external}"cbid": {row_text.CALLBACK_ID.get(row.name, 0)}, "correlation": %d'
        self._slots.append(("external", self._external[index]))
        pieces = ['"External id": %d,"Record function id": 0']
        if row.facts is not None:
            pieces.append(self._facts(index, row.facts))
        if row.sequence >= 0:
            self._slots.append(("refers" if row.backward and not row.nested else "makes", row.sequence))
            # The engine names the thread that made the node: 1 is the main thread, 2 the engine's own.
            maker = (2 if row.nested else 1) if row.backward else 0
            pieces.append(f'"Sequence number": %d, "Fwd thread id": {maker}')
        elif row.reads >= 0:
            self._slots.append(("makes", row.reads))
            pieces.append('"Sequence number": %d, "Fwd thread id": 0')
        if self.identity.settings.shapes:
            pieces.append(self._inputs[index])
        self._slots.append(("event", index))
        return ", ".join([*pieces, '"Ev Idx": %d'])

    def _python_arguments(self, index: int, row: FlatRow) -> str:
        parent = "%d"
        if row.parent >= 0:
            self._slots.append(("python", self._python[row.parent]))
        elif self.template.autograd:
            parent = "null"
        else:
            self._slots.append(("outer", 0))
        self._slots.append(("python", self._python[index]))
        extra = ""
        if row.kind is RowKind.MODULE:
            self._slots.append(("module", self._module[index]))
            extra = '"Python module id": %d, '
        self._slots.append(("event", index))
        return f'"Python parent id": {parent}, "Python id": %d, {extra}"Ev Idx": %d'

    def _external_of(self, owner: int) -> str:
        self._slots.append(("external", self._external[owner]) if owner >= 0 else ("outer", 1))
        return '"External id": %d, '

    def _facts(self, row: int, what: Collective) -> str:
        if what.uneven:
            for key in ("in_elements", "out_elements", "in_split", "out_split"):
                self._patches.append((len(self._slots), key, what))
                self._slots.append(("outer", 0))
        if self.identity.settings.era is Era.TORCH_2_7:
            self._slots.append(("number", self._fact[row]))
        return row_text.facts(what, self.identity)

    def _flow(self, index: int, row: FlatRow, thread: int) -> str:
        """The start of a launch's arrow, or an end of the arrow from a forward to a backward node."""
        if row.kind is RowKind.RUNTIME and (row.kernel >= 0 or index in self._told_rows):
            phase, name, number = "s", "ac2g", ("correlation", self._correlation[index])
        elif row.kind is not RowKind.OPERATOR or row.sequence < 0 or row.nested:
            return ""
        elif row.backward:
            if not row.name.startswith("autograd::engine::"):
                return ""
            phase, name, number = "f", "fwdbwd", ("refers", row.sequence)
        else:
            phase, name, number = "s", "fwdbwd", ("makes", row.sequence)
        self._slots += (number, ("begin_us", index), ("begin_ns", index))
        return row_text.flow(phase, name, self.identity.process, thread)

    def _kernel(self, index: int) -> str:
        kernel, identity = self.template.kernels[index], self.identity
        stream = identity.stream(kernel.stream)
        place = f'"device": {identity.device}, "context": 1, "stream": {stream}, "correlation": %d'
        name = row_text.escaped(row_text.quoted(kernel.name))
        self._time(("start", "run"), index)
        if self.template.ghost:
            self._slots += (("outer", 3), ("outer", 2), ("outer", 4), ("node", index))
            place += ', "graph id": %d, "graph node id": %d'
            category, arguments = row_text.kernel_arguments(kernel, '"External id": %d, ', place)
            return row_text.complete(category, name, identity.device, stream, arguments)
        owner = self.template.rows[self._launch_row[index]].owner
        external = self._external_of(owner)
        correlation = ("correlation", self._correlation[self._launch_row[index]])
        self._slots.append(correlation)
        category, arguments = row_text.kernel_arguments(kernel, external, place)
        described = self.template.rows[owner].facts if owner >= 0 else None
        if described is not None:
            arguments += ", " + self._facts(owner, described)
        text = row_text.complete(category, name, identity.device, stream, arguments)
        self._slots += (correlation, ("start_us", index), ("start_ns", index))
        return text + row_text.flow("f", "ac2g", identity.device, stream)

    def _annotation_twin(self, index: int) -> str:
        """An annotation's shadow on the GPU: from its first kernel to the end of its last."""
        row = self.template.rows[index]
        if row.kind is not RowKind.ANNOTATION:
            return ""
        launched = sorted(self._launch_row.items())
        inside = [kernel for kernel, at in launched if row.begin <= self.template.rows[at].begin < row.end]
        if not inside:
            return ""
        first, last = inside[0], inside[-1]
        self._twin_last[first] = last
        stream = self.identity.stream(self.template.kernels[first].stream)
        self._time(("start", "twin"), first)
        self._slots.append(("external", self._external[index]))
        name, device = row_text.quoted(row.name), self.identity.device
        return row_text.complete("gpu_user_annotation", name, device, stream, '"External id": %d')

    def _synchronisation(self, place: int) -> str:
        """What the device has to say of a row that waits: its row of synchronisation, and the end of an arrow to it."""
        (row, waiting), identity = self._told[place], self.identity
        stream = identity.stream(waiting) if waiting else row_text.NO_STREAM
        waits = place < len(self.template.waiting)
        kind = row_text.STREAM_WAIT if waits else row_text.STREAM_SYNC if waiting else row_text.CONTEXT_SYNC
        self._time(("told", "lasted"), place)
        self._external_of(self.template.rows[row].owner)
        if waits:
            self._slots += (("wait", 3 * place), ("wait", 3 * place + 1), ("wait", 3 * place + 2))
        correlation = ("correlation", self._correlation[row])
        self._slots += (correlation, correlation, ("told_us", place), ("told_ns", place))
        text = row_text.synchronisation(kind, identity.device, stream)
        return text + row_text.flow("f", "ac2g", identity.device, stream)


def _within(begins: Int64, spans: Int64) -> tuple[Int64, Int64]:
    """When rows of synchronisation begin and how long they last: a little less than the calls that they are about."""
    lead = np.minimum(spans // 4, 1_000)
    return begins + lead, spans - lead - lead // 2
