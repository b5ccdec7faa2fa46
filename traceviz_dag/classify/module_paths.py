"""The modules around each launch, from the outermost to the innermost; of a backward step those of its forward step."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from traceviz_dag.arrays import NONE, Int64, lookup
from traceviz_dag.classify.autograd_links import AutogradNodes, makers_of_nodes
from traceviz_dag.read.events import CPU_OP, TraceEvents
from traceviz_dag.read.host_tree import HostTree

_PREFIX = "nn.Module: "
_NUMBERED_LAYER = re.compile(r"Layer_\d+\Z")
_NUMBER = re.compile(r"_\d+\Z")
_MOST_DEPTHS = 64


def module_paths(
    trace: TraceEvents, tree: HostTree, graph: AutogradNodes, module: Int64, launched_at: Int64
) -> tuple[Int64, list[str]]:
    """Of each launch the number of its path, NONE where no module is known; and the paths.

    Instances of a class are one, but for the layers of the model, whose numbers are kept:
    ``GPTModel/TransformerBlock/TransformerLayer_3/MLP``.

    Args:
        module: of each tree position, that of the innermost module around it. launched_at: position of each launch.
    """
    if not (module != NONE).any():
        return np.full(len(launched_at), NONE, dtype=np.int64), []
    of_node = _of_forward_steps(trace, tree, graph, module)

    def around(position: Int64) -> Int64:
        own = lookup(module, position)
        return np.where(own == NONE, lookup(of_node, position), own)

    path, names = _paths(trace, tree, module, around)
    return lookup(path, around(launched_at)), names


def _of_forward_steps(trace: TraceEvents, tree: HostTree, graph: AutogradNodes, module: Int64) -> Int64:
    """Of each tree position inside a node of the autograd graph the module around the operator that made the node."""
    # The backward step's own operators carry the number, too, and lie in no module.
    operators = (trace.host.category[tree.rows] == CPU_OP) & (module != NONE)
    found, makers = makers_of_nodes(trace, tree, graph.node, operators)
    of_node = np.full(len(tree), NONE, dtype=np.int64)
    of_node[found] = module[makers]
    return lookup(of_node, graph.around)


def _paths(
    trace: TraceEvents, tree: HostTree, module: Int64, around: Callable[[Int64], Int64]
) -> tuple[Int64, list[str]]:
    """Of each position of a module the number of its path, and the paths.

    Args:
        around: of positions, the module around each; of what is computed again, the one around its checkpoint.
    """
    own = np.flatnonzero(module == np.arange(len(tree)))
    code = trace.host.name[tree.rows[own]]
    words: dict[str, int] = {}
    plain = np.full(len(trace.strings), NONE, dtype=np.int64)
    for each in np.unique(code).tolist():
        name = trace.strings[each].removeprefix(_PREFIX)
        plain[each] = words.setdefault(name if _NUMBERED_LAYER.search(name) else _NUMBER.sub("", name), len(words))
    texts = [word.replace("/", "_") for word in words]
    parent = around(tree.parent[own])
    path = np.full(len(tree), NONE, dtype=np.int64)
    names: list[str] = []
    left = np.ones(len(own), dtype=bool)
    # Level by level from the outside, so that all modules of a level are numbered at once.
    for _ in range(_MOST_DEPTHS):
        ready = left & ((parent == NONE) | (lookup(path, parent) != NONE))
        if not ready.any():
            break
        outer, word = lookup(path, parent[ready]), plain[code[ready]]
        keys, which = np.unique((outer + 1) * len(texts) + word, return_inverse=True)
        path[own[ready]] = len(names) + which.reshape(-1)
        for key in keys.tolist():
            above, last = divmod(key, len(texts))
            names.append(texts[last] if above == 0 else f"{names[above - 1]}/{texts[last]}")
        left &= ~ready
    return path, names
