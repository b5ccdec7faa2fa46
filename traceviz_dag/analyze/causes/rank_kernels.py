"""The kernels of one rank in one step as arrays: what the graph of a step is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.kernel_intervals import codes, integers
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.matching.operations import OPERATIONS, operation_of
from traceviz_dag.analyze.products import products
from traceviz_dag.analyze.work_evidence import work_by_grid
from traceviz_dag.arrays import NONE, Bool, Int32, Int64, UInt64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Kind, Phase

KERNEL_COLUMNS = (
    *("kernel_id", "name", "start_ns", "duration_ns", "device", "stream", "kind", "phase", "dimension", "category"),
    *("chunk", "microbatch", "step", "launch_start_ns", "launch_duration_ns", "launch_thread", "collective"),
    *("group_name", "operator", "input_sizes", "grid_x", "grid_y", "grid_z", "in_elements", "out_elements"),
    *("layer", "graph_node_id", "phase_rule"),
)
"""Columns of ``kernels`` that the graph of a step is made of."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd number by which digests are mixed."""

_TO_HOST, _FROM_HOST = re.compile("DtoH|DeviceToHost"), re.compile("HtoD|HostToDevice")
"""In the names of copies; the first of CUDA, of Kineto and Nsight Systems alike, the second of ROCm."""

_USUAL_LATENCY = 0.01
"""Quantile of the time from launch to start that counts as the launch's own: kernels that waited for nothing else."""


@dataclass(frozen=True, slots=True)
class RankKernels:
    """Kernels of one rank, stream by stream in the order of start; one entry per kernel.

    Attributes:
        kernel_id: in table ``kernels``.
        start_ns, end_ns: on the rank's clock.
        stream: number of its device and stream. name: a digest of its name.
        launch_ns, thread: start and thread of the call that launched it; ``MISSING`` where unknown.
        launched_ns: when this call returned; ``MISSING`` where unknown.
        communicates, computes: by kind.
        dimension, category: codes into ``dimensions`` and ``categories``; -1 for none.
        phase: code into ``phases``; chunk, microbatch: ``MISSING`` where none.
        what: number of its class of communication: operation, dimension, group and phase.
        group: number of the process group of a communication; -1 where unknown.
        operation: of a communication, code into ``OPERATIONS``.
        in_graph: whether a CUDA graph launched it.
        layer: number of the transformer layer that launched it; ``MISSING`` where none.
        signature: of its name, operator, phase, grid, message and the sizes of inputs, as far as these are recorded:
            equal on all ranks for kernels that do the same.
        sizes: of the sizes alone; 0 where unknown.
        by_grid: whether memory bounds it and its grid shows how much it has to do.
        in_elements, out_elements: of its message; ``MISSING`` where unknown.
        to_host, from_host: whether it copies between the GPU and the host, by the way.
        latency_ns: what passes at least from a launch to the start of its kernel.
        queues: device and stream behind each number of ``stream``.
        product: codes of ``products``; none where unknown.
        beside_layers: what the rank runs that kernels alone do not distinguish from more layers, ``MULTI_TOKEN`` or
            ``SEVERAL_KINDS``; None: nothing known.
    """

    kernel_id: Int64
    start_ns: Int64
    end_ns: Int64
    stream: Int64
    name: Int64
    launch_ns: Int64
    launched_ns: Int64
    thread: Int64
    communicates: Bool
    computes: Bool
    dimension: Int64
    category: Int64
    phase: Int64
    chunk: Int64
    microbatch: Int64
    layer: Int64
    what: Int64
    group: Int64
    operation: Int64
    in_graph: Bool
    signature: Int64
    sizes: Int64
    by_grid: Bool
    in_elements: Int64
    out_elements: Int64
    to_host: Bool
    from_host: Bool
    latency_ns: int
    dimensions: tuple[str, ...]
    categories: tuple[str, ...]
    queues: tuple[str, ...] = ()
    product: Int64 = field(default_factory=lambda: np.zeros(1, np.int64))
    beside_layers: str | None = None

    def __len__(self) -> int:
        return len(self.kernel_id)

    @property
    def duration_ns(self) -> Int64:
        """How long each kernel ran."""
        return self.end_ns - self.start_ns

    @property
    def program(self) -> bytes:
        """Equal for ranks that run the same kernels in the same order."""
        return blake2b(self.stream.tobytes() + self.name.tobytes(), digest_size=16).digest()

    def marked(self, places: Int64) -> Bool:
        """Mark some kernels; one entry more, which ``NONE`` picks, is for no kernel."""
        mark = np.zeros(len(self) + 1, dtype=bool)
        mark[places] = True
        return mark

    def places(self, kernel_id: Int64) -> Int64:
        """Places of kernels by their id; ``NONE`` for those that are not here."""
        order = np.argsort(self.kernel_id)
        if not len(order):
            return np.full(len(kernel_id), NONE)
        found = np.minimum(np.searchsorted(self.kernel_id[order], kernel_id), len(order) - 1)
        return np.where(self.kernel_id[order][found] == kernel_id, order[found], NONE)


PHASES = tuple(phase.value for phase in Phase)
"""The phase behind each code of ``RankKernels.phase``."""


def rank_kernels(table: pa.Table) -> RankKernels:
    """Take one rank's kernels of one step.

    Args:
        table: of one rank, columns ``KERNEL_COLUMNS``.
    """
    device, devices = codes(table, "device")
    numbers = optional_integers(table, "stream")
    of_queue, stream = number_groups(device, numbers)
    queues = zip(device[of_queue].tolist(), numbers[of_queue].tolist(), strict=True)
    order = np.lexsort((integers(table, "kernel_id"), integers(table, "start_ns"), stream))
    table, stream = table.take(pa.array(order)), stream[order]
    start = integers(table, "start_ns")
    launch = optional_integers(table, "launch_start_ns")
    texts = {column: codes(table, column) for column in _TEXTS}
    (name, names), (kind, kinds) = texts["name"], texts["kind"]
    (dimension, dimensions), (category, categories) = texts["dimension"], texts["category"]
    collective, group = texts["collective"], texts["group_name"][0].astype(np.int64)
    phase = np.array([*(PHASES.index(each) for each in texts["phase"][1]), NO_PHASE])[texts["phase"][0]]
    digest = {column: _digests(*texts[column]) for column in ("name", "operator", "input_sizes")}
    copies = _is(kind, kinds, Kind.MEMORY)
    blocks = np.prod([optional_integers(table, each) for each in ("grid_x", "grid_y", "grid_z")], axis=0)
    waited = (start - launch)[launch != MISSING]
    return RankKernels(
        kernel_id=integers(table, "kernel_id"),
        start_ns=start,
        end_ns=start + integers(table, "duration_ns"),
        stream=stream.astype(np.int64),
        name=digest["name"].view(np.int64),
        launch_ns=launch,
        launched_ns=np.where(launch == MISSING, MISSING, launch + optional_integers(table, "launch_duration_ns")),
        thread=optional_integers(table, "launch_thread"),
        communicates=_is(kind, kinds, Kind.COMMUNICATION),
        computes=_is(kind, kinds, Kind.COMPUTATION),
        dimension=dimension.astype(np.int64),
        category=category.astype(np.int64),
        phase=phase,
        chunk=optional_integers(table, "chunk"),
        microbatch=optional_integers(table, "microbatch"),
        layer=optional_integers(table, "layer"),
        what=number_groups(collective[0], dimension, group, phase)[1],
        group=group,
        operation=_operations(*collective, name, names),
        in_graph=optional_integers(table, "graph_node_id") != MISSING,
        signature=_signatures(table, phase, digest.values()),
        sizes=digest["input_sizes"].view(np.int64),
        by_grid=work_by_grid(name, names, blocks),
        in_elements=optional_integers(table, "in_elements"),
        out_elements=optional_integers(table, "out_elements"),
        to_host=_is_named(name, names, _TO_HOST) & copies,
        from_host=_is_named(name, names, _FROM_HOST) & copies,
        latency_ns=max(0, int(np.quantile(waited, _USUAL_LATENCY, method="lower"))) if len(waited) else 0,
        dimensions=tuple(dimensions),
        categories=tuple(categories),
        queues=tuple(f"{[*devices, None][one]} {number}" for one, number in queues),
        product=products(name, names, *texts["operator"]),
        beside_layers=next((what for column, some, what in _BESIDE_LAYERS if some & set(texts[column][1])), None),
    )


_TEXTS = (
    *("name", "kind", "phase", "dimension", "category", "collective", "group_name", "operator", "input_sizes"),
    "phase_rule",
)


MULTI_TOKEN, SEVERAL_KINDS = "multi-token prediction", "layers of several kinds"
"""Values of ``RankKernels.beside_layers``."""

_BESIDE_LAYERS = (
    ("phase_rule", {"multi_token_prediction"}, MULTI_TOKEN),
    ("operator", {"MambaSplitConv1dScanCombinedFn", "MambaChunkScanCombinedFn"}, SEVERAL_KINDS),
)
"""Column of ``kernels``, what it says of some of them, and what that shows."""


NO_PHASE = PHASES.index(Phase.UNKNOWN)


def kernels_of_step(kernels: pa.Table, step: int) -> pa.Table:
    """The kernels of one ProfilerStep; of ``MISSING``, those without one."""
    wanted = pc.is_null(kernels["step"]) if step == MISSING else pc.equal(kernels["step"], step)
    return kernels if pc.all(wanted, skip_nulls=False).as_py() else kernels.filter(wanted)


def _operations(word: Int32, words: list[str], name: Int32, names: list[str]) -> Int64:
    first, number = number_groups(word, name)
    pairs = zip(word[first].tolist(), name[first].tolist(), strict=True)
    # Code -1, a NULL, picks the last entry.
    found = [OPERATIONS.index(operation_of([*words, None][one], [*names, None][other])) for one, other in pairs]
    return np.array(found, np.int64)[number] if found else np.empty(0, np.int64)


def _signatures(table: pa.Table, phase: Int64, digests: Iterable[UInt64]) -> Int64:
    """A number that two kernels share, whatever their ranks, where these are equal."""
    result = phase.astype(np.uint64)
    for each in digests:
        result = result * _MIX + each
    for column in ("grid_x", "grid_y", "grid_z", "in_elements"):
        result = result * _MIX + optional_integers(table, column).astype(np.uint64)
    return result.view(np.int64)


def _digests(code: Int32, words: list[str]) -> UInt64:
    """A number for each text of a column, 0 for none."""
    return np.array([*map(_digest, words), 0], np.uint64)[code]


@lru_cache(maxsize=1 << 14)  # The ranks of a job have the same names.
def _digest(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


def _is_named(code: Int32, names: list[str], pattern: re.Pattern[str]) -> Bool:
    return np.array([*(pattern.search(name) is not None for name in names), False])[code]


def _is(kind: np.ndarray, kinds: list[str], wanted: Kind) -> Bool:
    return kind == kinds.index(wanted.value) if wanted.value in kinds else np.zeros(len(kind), dtype=bool)
