"""Which operator made which node of the autograd graph: the link from a backward step to its forward step."""

from __future__ import annotations

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.read.events import CPU_OP, TraceEvents
from traceviz_dag.read.host_tree import HostTree

AUTOGRAD_NODE = "autograd::engine::evaluate_function: "
_ENGINES_OWN = AUTOGRAD_NODE + "torch::autograd::GraphRoot"


def autograd_nodes(trace: TraceEvents, tree: HostTree) -> tuple[Bool, Bool]:
    """(nodes that the engine runs, those of them inside no other node), per tree position.

    Nodes inside another belong to a nested run of the engine: their makers were recomputed in there.
    """
    named = np.array([name.startswith(AUTOGRAD_NODE) for name in trace.strings], dtype=bool)
    node = (trace.host.category[tree.rows] == CPU_OP) & named[trace.host.name[tree.rows]]
    return node, node & (lookup(tree.nearest(node), tree.parent) == NONE)


def makers_of_nodes(trace: TraceEvents, tree: HostTree, nodes: Bool, operators: Bool) -> tuple[Int64, Int64]:
    """(nodes, makers): tree positions of nodes, each with the operator that made it.

    A node carries the sequence number of its maker. Of several operators with one number the last made the node;
    earlier ones only read the counter. The root that the engine itself puts above several outputs has a number from the
    moment when the engine started, and no maker.

    Args:
        nodes: which positions are nodes to find makers for. operators: which positions may be makers.
    """
    sequence = trace.host.sequence_number[tree.rows]
    wanted = numbered_nodes(trace, tree, nodes)
    makers = np.flatnonzero(operators & (sequence >= 0) & (trace.host.category[tree.rows] == CPU_OP))
    nothing = np.array([], dtype=np.int64)
    if not len(wanted) or not len(makers):
        return nothing, nothing
    makers = makers[np.lexsort((tree.start_ns[makers], sequence[makers]))]
    makers = makers[np.append(sequence[makers][1:] != sequence[makers][:-1], True)]
    at = np.clip(np.searchsorted(sequence[makers], sequence[wanted]), 0, len(makers) - 1)
    linked = sequence[makers[at]] == sequence[wanted]
    return wanted[linked], makers[at[linked]]


def numbered_nodes(trace: TraceEvents, tree: HostTree, nodes: Bool) -> Int64:
    """Tree positions of those nodes that an operator made."""
    made = np.array([name != _ENGINES_OWN for name in trace.strings], dtype=bool)
    return np.flatnonzero(nodes & (trace.host.sequence_number[tree.rows] >= 0) & made[trace.host.name[tree.rows]])
