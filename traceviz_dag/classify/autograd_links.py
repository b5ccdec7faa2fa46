"""Which operator made which node of the autograd graph: the link from a backward step to its forward step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.read.events import CPU_OP, TraceEvents
from traceviz_dag.read.host_tree import HostTree

AUTOGRAD_NODE = "autograd::engine::evaluate_function: "
_ENGINES_OWN = AUTOGRAD_NODE + "torch::autograd::GraphRoot"


class AutogradNodes(NamedTuple):
    """Per tree position whether it is a node that the engine runs, whether it is one inside no other, and the position
    of the innermost node around it, NONE where there is none.

    Nodes inside another belong to a nested run of the engine: their makers were recomputed in there.
    """

    node: Bool
    outermost: Bool
    around: Int64


def autograd_nodes(trace: TraceEvents, tree: HostTree) -> AutogradNodes:
    """The nodes of the autograd graph that a trace shows."""
    named = np.array([name.startswith(AUTOGRAD_NODE) for name in trace.strings], dtype=bool)
    node = (trace.host.category[tree.rows] == CPU_OP) & named.take(trace.host.name[tree.rows])
    around = tree.nearest(node)
    return AutogradNodes(node, node & (lookup(around, tree.parent) == NONE), around)


def makers_of_nodes(trace: TraceEvents, tree: HostTree, nodes: Bool, operators: Bool) -> tuple[Int64, Int64]:
    """(nodes, makers): tree positions of nodes, each with the operator that made it.

    A node carries the sequence number of its maker. Of several operators with one number the last made the node;
    earlier ones only read the counter. The root that the engine itself puts above several outputs has a number from the
    moment when the engine started, and no maker.

    Args:
        nodes: which positions are nodes to find makers for. operators: which positions may be makers.
    """
    host = trace.host
    wanted, makers = numbered_nodes(trace, tree, nodes), np.flatnonzero(operators)
    number, rows = host.sequence_number[tree.rows[wanted]], tree.rows[makers]
    may_be = (host.sequence_number[rows] >= 0) & (host.category[rows] == CPU_OP)
    makers, numbers = makers[may_be], host.sequence_number[rows[may_be]]
    nothing = np.array([], dtype=np.int64)
    if not len(wanted) or not len(makers):
        return nothing, nothing
    order = np.lexsort((tree.start_ns[makers], numbers))
    makers, numbers = makers[order], numbers[order]
    last = np.append(numbers[1:] != numbers[:-1], True)
    makers, numbers = makers[last], numbers[last]
    at = np.clip(np.searchsorted(numbers, number), 0, len(makers) - 1)
    linked = numbers[at] == number
    return wanted[linked], makers[at[linked]]


def numbered_nodes(trace: TraceEvents, tree: HostTree, nodes: Bool) -> Int64:
    """Tree positions of those nodes that an operator made."""
    made = np.array([name != _ENGINES_OWN for name in trace.strings], dtype=bool)
    places = np.flatnonzero(nodes)
    rows = tree.rows[places]
    return places[(trace.host.sequence_number[rows] >= 0) & made[trace.host.name[rows]]]
