"""Which kernels of a rank wait for which of its other streams: the truth about edges between streams."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from traceviz_dag.arrays import Int64
from traceviz_dag.simulate.files.identity import Identity
from traceviz_dag.simulate.settings import Format
from traceviz_dag.simulate.timing.streams import DependencyKind

EDGE_SCHEMA = pa.schema(
    [
        *[(name, pa.int64()) for name in ("rank", "iteration", "step")],
        *[(name, pa.int64()) for name in ("waiting", "waiting_graph_node", "waited_for", "waited_for_graph_node")],
        ("kind", pa.dictionary(pa.int32(), pa.string())),
        ("recorded", pa.bool_()),
    ]
)
"""A row per pair of kernels of one rank on different streams, of which one must not start before the other has ended.

step: of the kernel that waits. waiting, waited_for: correlations; with the graph nodes beside them (-1: none) they are
the correlation and graph_node_id of the two rows in ``rank_*.parquet``, also where a kernel's launch row is lost.
kind: the first that applies of
- event_wait: its stream, or the launch, waits for an event recorded behind the other kernel;
- passed_on_wait: the stream on which that event was recorded had itself waited, and has run nothing since;
- cuda_graph: either of these inside a CUDA graph, where the program makes no call;
- communicator_order: the other is the collective before on the same communicator;
- host_synchronisation: the host waited for the other's stream before it launched this one, the first on its own since.
recorded: whether the file's ``cuda_sync`` rows show it (a passed-on wait by two rows); false without such rows.

In are also dependencies that another implies or that were met long before. Out are the order within a stream, which the
streams show, what crosses the files of two iterations, and kernels from before the first step."""


@dataclass
class EdgeTable:
    """Collects the edges of one file; ``earlier`` of its kernels are from before the first step."""

    earlier: int = 0
    steps: list[Int64] = field(default_factory=list)
    parts: list[Int64] = field(default_factory=list)

    def add(self, step: int, edges: Int64) -> None:
        """Add a step's edges as ``StepTimes.edges`` has them."""
        self.steps.append(np.full(len(edges), step, np.int64))
        self.parts.append(edges)

    def table(self, identity: Identity, kernels: dict[str, Int64]) -> pa.Table:
        """The edges as a table of ``EDGE_SCHEMA``.

        Args:
            kernels: columns of all kernels of the file, in the model's order.
        """
        step, edges = np.concatenate(self.steps), np.concatenate(self.parts)
        waiting, waited_for = edges[:, 0] + self.earlier, edges[:, 1] + self.earlier
        traced = identity.settings.format is Format.KINETO
        columns = {
            "rank": np.full(len(step), identity.rank),
            "iteration": step if traced else np.full(len(step), -1),
            "step": step,
            "waiting": kernels["correlation"][waiting],
            "waiting_graph_node": kernels["graph_node_id"][waiting],
            "waited_for": kernels["correlation"][waited_for],
            "waited_for_graph_node": kernels["graph_node_id"][waited_for],
        }
        words = pa.array([kind.name.lower() for kind in DependencyKind], pa.string())
        kinds = pa.DictionaryArray.from_arrays(pa.array(edges[:, 2], pa.int32()), words)
        recorded = pa.array(edges[:, 3].astype(bool))
        return pa.Table.from_arrays([*map(pa.array, columns.values()), kinds, recorded], schema=EDGE_SCHEMA)
