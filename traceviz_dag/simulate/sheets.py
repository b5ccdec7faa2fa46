"""A template as text for one rank: Kineto's JSON with slots, filled by one ``%`` operation per segment."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.simulate.identity import Identity
from traceviz_dag.simulate.settings import Era
from traceviz_dag.simulate.templates import FlatRow, Template, spelled
from traceviz_dag.simulate.tree import Collective, Kernel, RowKind
from traceviz_dag.vocabulary import Kind

Int64 = npt.NDArray[np.int64]
TIME = '"ts": %d.%03d, "dur": %d.%03d'
_CBID = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cuLaunchKernel": 307,
    "cuLaunchKernelEx": 652,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaGraphLaunch": 311,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaStreamWaitEvent": 147,
    "cudaEventRecord": 135,
    "cudaStreamIsCapturing": 317,
    "cudaEventQuery": 136,
}


@dataclass(slots=True)
class Bases:
    """First free number of each kind of identifier, and what surrounds a segment."""

    python: int = 1
    external: int = 1
    event: int = 0
    correlation: int = 1000
    outer_python: int = 0
    outer_external: int = 0
    graph_correlation: int = 0
    graph_external: int = 0
    graph_node: int = 0


@dataclass(slots=True)
class _Slot:
    """Where a value of the text comes from: a column of the pool and an index in it."""

    column: str
    index: int


class Sheet:
    """One template's text for one rank.

    The values that a segment fills in are gathered from a pool of columns (times, identifiers) by a permutation that
    is computed once.
    """

    def __init__(self, template: Template, identity: Identity) -> None:
        self.template, self.identity = template, identity
        self.begins = np.array([row.begin for row in template.rows], np.int64)
        self.ends = np.array([row.end for row in template.rows], np.int64)
        self._number_rows()
        slots: list[_Slot] = []
        self.patches: list[tuple[int, str, Collective]] = []
        self._twin_last = np.arange(len(template.kernels))
        parts = [self._row(index, slots) for index in self.shown]
        parts += [self._kernel(index, slots) for index in range(len(template.kernels))]
        parts += [text for text in (self._annotation_twin(index, slots) for index in self.shown) if text]
        self.format = "".join(parts)
        self._place(slots)

    def _number_rows(self) -> None:
        template, stacks = self.template, self.identity.settings.stacks
        self.shown = [
            index
            for index, row in enumerate(template.rows)
            if (stacks or row.kind not in _PYTHON) and not (row.kernel >= 0 and template.kernels[row.kernel].lost)
        ]
        self.python_ids: dict[int, int] = {}
        self.external_ids: dict[int, int] = {}
        self.correlations: dict[int, int] = {}
        self.kernel_rows: dict[int, int] = {}
        for index, row in enumerate(template.rows):
            if row.kind in _PYTHON:
                self.python_ids[index] = len(self.python_ids)
            elif row.kind is RowKind.RUNTIME:
                self.correlations[index] = len(self.correlations)
                if row.kernel >= 0:
                    self.kernel_rows[row.kernel] = index
            else:
                self.external_ids[index] = len(self.external_ids)
        order = [] if template.ghost else [self.kernel_rows[kernel] for kernel in range(len(template.kernels))]
        self._launches = np.array([self.correlations[row] for row in order], np.int64)
        graphs = [index for index in self.correlations if template.rows[index].name == "cudaGraphLaunch"]
        self._graph_row = graphs[0] if graphs else -1
        described = [index for index, row in enumerate(template.rows) if row.facts is not None]
        self.fact_ordinals = {index: ordinal for ordinal, index in enumerate(described)}
        self.facts = [facts for row in template.rows if (facts := row.facts) is not None]
        referred = [row.sequence for row in template.rows if row.backward and not row.nested]
        self._refers = np.arange(max(referred, default=-1) + 1, dtype=np.int64)

    def kernel_numbers(self, bases: Bases) -> tuple[Int64, Int64]:
        """Correlations of the kernels, and their nodes where they belong to a graph (-1 elsewhere)."""
        count = len(self.template.kernels)
        if self.template.ghost:
            return np.full(count, bases.graph_correlation), bases.graph_node + np.arange(count)
        return bases.correlation + self._launches, np.full(count, -1)

    def _place(self, slots: list[_Slot]) -> None:
        rows, kernels = len(self.template.rows), len(self.template.kernels)
        sizes = {
            "begin_us": rows,
            "begin_ns": rows,
            "span_us": rows,
            "span_ns": rows,
            "start_us": kernels,
            "start_ns": kernels,
            "run_us": kernels,
            "run_ns": kernels,
            "twin_us": kernels,
            "twin_ns": kernels,
            "python": len(self.python_ids),
            "external": len(self.external_ids),
            "event": rows,
            "correlation": len(self.correlations),
            "made": self.template.nodes,
            "refers": len(self._refers),
            "module": rows,
            "group": len(self.facts),
            "outer": 2,
            "graph": 3,
            "node": kernels,
        }
        starts, position = {}, 0
        for column, size in sizes.items():
            starts[column] = position
            position += size
        self.permutation = np.array([starts[slot.column] + slot.index for slot in slots], np.int64)
        self._events = np.arange(rows, dtype=np.int64)
        self._modules = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._number_modules()

    def _number_modules(self) -> None:
        counts: dict[str, int] = {}
        for index, row in enumerate(self.template.rows):
            if row.kind is RowKind.MODULE:
                self._modules[1][index] = counts.get(row.name, 0)
                counts[row.name] = counts.get(row.name, 0) + 1
        for index, row in enumerate(self.template.rows):
            if row.kind is RowKind.MODULE:
                self._modules[0][index] = counts[row.name]

    def render(
        self,
        begins: Int64,
        ends: Int64,
        starts: Int64,
        finishes: Int64,
        bases: Bases,
        made: int,
        refers: int,
        slot: int,
        graph: int,
        group_numbers: list[int],
        patch: Callable[[str, Collective], str],
    ) -> str:
        """The text of one segment; times are on the trace's clock, identifiers are taken from ``bases``."""
        spans, runs = ends - begins, finishes - starts
        twins = self._twin_runs(starts, finishes)
        pool = np.concatenate(
            (
                begins // 1000,
                begins % 1000,
                spans // 1000,
                spans % 1000,
                starts // 1000,
                starts % 1000,
                runs // 1000,
                runs % 1000,
                twins // 1000,
                twins % 1000,
                np.arange(bases.python, bases.python + len(self.python_ids)),
                np.arange(bases.external, bases.external + len(self.external_ids)),
                bases.event + self._events,
                np.arange(bases.correlation, bases.correlation + len(self.correlations)),
                np.arange(made, made + self.template.nodes),
                refers + self._refers,
                slot * self._modules[0] + self._modules[1],
                np.array(group_numbers, np.int64),
                np.array((bases.outer_python, bases.outer_external), np.int64),
                np.array((bases.graph_correlation, bases.graph_external, graph), np.int64),
                bases.graph_node + np.arange(len(starts)),
            )
        )
        values = pool[self.permutation].tolist()
        for position, what, collective in self.patches:
            values[position] = patch(what, collective)
        self._count(bases)
        return self.format % tuple(values)

    def _count(self, bases: Bases) -> None:
        """Move the bases past the numbers that a segment has used."""
        if self.template.ghost:
            bases.graph_node += len(self.template.kernels)
        if self._graph_row >= 0:
            owner = self.template.rows[self._graph_row].owner
            bases.graph_correlation = bases.correlation + self.correlations[self._graph_row]
            bases.graph_external = bases.external + self.external_ids[owner] if owner >= 0 else bases.outer_external
            bases.graph_node = 0
        bases.python += len(self.python_ids)
        bases.external += len(self.external_ids)
        bases.event += len(self._events)
        bases.correlation += len(self.correlations)

    def _twin_runs(self, starts: Int64, finishes: Int64) -> Int64:
        """For each kernel, from its start to the end of the last kernel of its annotation."""
        return finishes[self._twin_last] - starts if len(starts) else starts

    def _row(self, index: int, slots: list[_Slot]) -> str:
        row, identity = self.template.rows[index], self.identity
        thread = identity.autograd_thread if self.template.autograd else identity.main_thread
        category = _CATEGORY[row.kind]
        if row.kind is RowKind.RUNTIME and row.name.startswith("cu") and not row.name.startswith("cuda"):
            category = "cuda_driver"
        name = spelled(identity.settings, row.name)
        if row.kind is RowKind.MODULE:
            name = f"nn.Module: {name}_%MODULE%"
        quoted = json.dumps(name).replace("%MODULE%", "\0").replace("%", "%%").replace("\0", "%d")
        # Real traces hold raw control characters, which strict JSON forbids.
        quoted = quoted.replace("\\u0001", "\x01")
        if row.kind is RowKind.MODULE:
            slots.append(_Slot("module", index))
        slots += [_Slot(column, index) for column in ("begin_us", "begin_ns", "span_us", "span_ns")]
        arguments = self._arguments(index, row, slots)
        head = f'"ph": "X", "cat": "{category}", "name": {quoted}, "pid": {identity.process}, "tid": {thread}'
        text = f"  {{\n    {head},\n    {TIME},\n    \"args\": {{\n      {arguments}\n    }}\n  }},\n"
        return text + self._flow(index, row, thread, slots)

    def _arguments(self, index: int, row: FlatRow, slots: list[_Slot]) -> str:
        if row.kind in _PYTHON:
            return self._python_arguments(index, row, slots)
        if row.kind is RowKind.RUNTIME:
            external = self._external(row.owner, slots)
            slots.append(_Slot("correlation", self.correlations[index]))
            return f'{external}"cbid": {_CBID.get(row.name, 317)}, "correlation": %d'
        slots.append(_Slot("external", self.external_ids[index]))
        pieces = ['"External id": %d,"Record function id": 0']
        if row.facts is not None:
            pieces.append(self._facts(index, row.facts, slots))
        if row.sequence >= 0:
            slots.append(_Slot("refers" if row.backward and not row.nested else "made", row.sequence))
            owner = (2 if row.nested else 1) if row.backward else 0
            pieces.append(f'"Sequence number": %d, "Fwd thread id": {owner}')
        if row.shapes:
            pieces.append(f'"Input Dims": {row.shapes}')
        slots.append(_Slot("event", index))
        return ", ".join([*pieces, '"Ev Idx": %d'])

    def _python_arguments(self, index: int, row: FlatRow, slots: list[_Slot]) -> str:
        if row.parent >= 0:
            slots.append(_Slot("python", self.python_ids[row.parent]))
            parent = "%d"
        elif self.template.autograd:
            parent = "null"
        else:
            slots.append(_Slot("outer", 0))
            parent = "%d"
        slots.append(_Slot("python", self.python_ids[index]))
        extra = ""
        if row.kind is RowKind.MODULE:
            slots.append(_Slot("module", index))
            extra = '"Python module id": %d, '
        slots.append(_Slot("event", index))
        return f'"Python parent id": {parent}, "Python id": %d, {extra}"Ev Idx": %d'

    def _external(self, owner: int, slots: list[_Slot]) -> str:
        slots.append(_Slot("external", self.external_ids[owner]) if owner >= 0 else _Slot("outer", 1))
        return '"External id": %d, '

    def _facts(self, row: int, what: Collective, slots: list[_Slot]) -> str:
        identity, era = self.identity, self.identity.settings.era
        group = identity.group(what)
        uneven = what.uneven
        values = []
        for key, value in (
            ("in_elements", what.in_elements),
            ("out_elements", what.out_elements),
            ("in_split", '"[]"'),
            ("out_split", '"[]"'),
        ):
            if uneven:
                self.patches.append((len(slots), key, what))
                slots.append(_Slot("outer", 0))
            values.append("%s" if uneven else value)
        # The slots above are in the order in which the text below names them.
        pieces = [
            f'"Collective name": "{what.operation}"',
            f'"In msg nelems": {values[0]}, "Out msg nelems": {values[1]}',
            f'"In split size": {values[2]}, "Out split size": {values[3]}',
            f'"Group size": {len(group.ranks)}, "dtype": "{what.dtype}"',
            f'"Process Group Name": "{group.name}"',
        ]
        pieces.append(f'"Process Group Description": "{identity.description(group)}"')
        pieces.append(f'"Process Group Ranks": "{list(group.ranks)}"')
        if era is Era.TORCH_2_7:
            if what.peer:
                source, destination = identity.neighbour(what)
                pieces.append(f'"Src Rank": {source}, "Dst Rank": {destination}')
            slots.append(_Slot("group", self.fact_ordinals[row]))
            pieces.append('"Seq": %d')
        return ", ".join(pieces)

    def _flow(self, index: int, row: FlatRow, thread: int, slots: list[_Slot]) -> str:
        process = self.identity.process
        if row.kind is RowKind.RUNTIME and row.kernel >= 0:
            slots += [_Slot("correlation", self.correlations[index]), _Slot("begin_us", index), _Slot("begin_ns", index)]
            return _flow_text("s", "ac2g", process, thread)
        if row.kind is not RowKind.OPERATOR or row.sequence < 0 or row.nested:
            return ""
        engine = row.name.startswith("autograd::engine::")
        if row.backward and not engine:
            return ""
        slots.append(_Slot("refers" if row.backward else "made", row.sequence))
        slots += [_Slot("begin_us", index), _Slot("begin_ns", index)]
        return _flow_text("f" if row.backward else "s", "fwdbwd", process, thread)

    def _kernel(self, index: int, slots: list[_Slot]) -> str:
        kernel, identity, ghost = self.template.kernels[index], self.identity, self.template.ghost
        stream = identity.stream(kernel.stream)
        slots += [_Slot(column, index) for column in ("start_us", "start_ns", "run_us", "run_ns")]
        owner = -1 if ghost else self.template.rows[self.kernel_rows[index]].owner
        correlation = _Slot("graph", 0) if ghost else _Slot("correlation", self.correlations[self.kernel_rows[index]])
        if ghost:
            slots.append(_Slot("graph", 1))
            external = '"External id": %d, '
        else:
            external = self._external(owner, slots)
        slots.append(correlation)
        place = f'"device": {identity.device}, "context": 1, "stream": {stream}, "correlation": %d'
        if ghost:
            slots += [_Slot("graph", 2), _Slot("node", index)]
            place += ', "graph id": %d, "graph node id": %d'
        category, arguments = _kernel_arguments(kernel, external, place)
        facts = self.template.rows[owner].facts if owner >= 0 else None
        if facts is not None:
            arguments += ", " + self._facts(owner, facts, slots)
        head = f'"ph": "X", "cat": "{category}", "name": {json.dumps(kernel.name)}, "pid": {identity.device}'
        text = f"  {{\n    {head.replace('%', '%%')}, \"tid\": {stream},\n    {TIME},\n"
        text += f"    \"args\": {{\n      {arguments}\n    }}\n  }},\n"
        if ghost:
            return text
        slots += [correlation, _Slot("start_us", index), _Slot("start_ns", index)]
        return text + _flow_text("f", "ac2g", identity.device, stream)

    def _annotation_twin(self, index: int, slots: list[_Slot]) -> str:
        row = self.template.rows[index]
        if row.kind is not RowKind.ANNOTATION:
            return ""
        inside = [
            kernel
            for kernel, launched in self.kernel_rows.items()
            if row.begin <= self.template.rows[launched].begin < row.end
        ]
        if not inside:
            return ""
        first, last = inside[0], inside[-1]
        self._twin_last[first] = last
        stream = self.identity.stream(self.template.kernels[first].stream)
        slots += [_Slot(column, first) for column in ("start_us", "start_ns", "twin_us", "twin_ns")]
        slots.append(_Slot("external", self.external_ids[index]))
        head = f'"ph": "X", "cat": "gpu_user_annotation", "name": {json.dumps(row.name)}, "pid": {self.identity.device}'
        return f"  {{\n    {head}, \"tid\": {stream},\n    {TIME},\n    \"args\": {{\n      \"External id\": %d\n    }}\n  }},\n"


_PYTHON = (RowKind.PYTHON, RowKind.MODULE)
_CATEGORY = {
    RowKind.PYTHON: "python_function",
    RowKind.MODULE: "python_function",
    RowKind.OPERATOR: "cpu_op",
    RowKind.ANNOTATION: "user_annotation",
    RowKind.RUNTIME: "cuda_runtime",
}


def _flow_text(phase: str, name: str, process: int, thread: int) -> str:
    bind = ' "bp": "e",' if phase == "f" else ""
    head = f'"ph": "{phase}", "id": %d, "pid": {process}, "tid": {thread}, "ts": %d.%03d,'
    return f'  {{\n    {head}\n    "cat": "{name}", "name": "{name}",{bind}\n  }},\n'.replace(",\n  }", "\n  }")


def _kernel_arguments(kernel: Kernel, external: str, place: str) -> tuple[str, str]:
    """Category and arguments of a row on the GPU."""
    if kernel.kind is Kind.MEMORY:
        category = "gpu_memset" if kernel.name.startswith("Memset") else "gpu_memcpy"
        return category, f'{external}{place}, "bytes": {kernel.nbytes}, "memory bandwidth (GB/s)": 1.5'
    return "kernel", f'{external}"queued": 0, {place}, {_shape_of(kernel)}'


def _shape_of(kernel: Kernel) -> str:
    warps = kernel.grid * kernel.block / 32 / 132
    return (
        f'"registers per thread": {kernel.registers}, "shared memory": {kernel.shared_memory}, '
        f'"blocks per SM": {kernel.grid / 132:.6f}, "warps per SM": {warps:.6f}, '
        f'"grid": [{kernel.grid}, 1, 1], "block": [{kernel.block}, 1, 1], '
        f'"est. achieved occupancy %%": {min(100, int(warps * 1.4))}'
    )
