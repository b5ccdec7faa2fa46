"""CUDA graphs: one launch call, behind it the kernels of a layer or of a whole forward-backward pass.

A graph's kernels are segments without host rows ("ghosts"): the model runs them as usual, the trace shows them under
the correlation of the launch call, without an operator and without facts of their communication.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from traceviz_dag.simulate.items import Context, Item, Segment
from traceviz_dag.simulate.program.segments import Owner, StepSegments
from traceviz_dag.simulate.tree import Nodes, Row, builtin, call, evaluate, op, py
from traceviz_dag.simulate.work import layers
from traceviz_dag.simulate.work.gradients import accumulate, gather_hook
from traceviz_dag.simulate.work.layers import LayerVariant
from traceviz_dag.simulate.work.linears import APPLY, FUNCTION

CUDA_GRAPHS = "megatron/core/transformer/cuda_graphs.py"
FULL_GRAPH = "megatron/core/full_cuda_graph.py"


def _replay() -> Row:
    launched = builtin("method replay of CUDAGraph object at 0x", call("cudaGraphLaunch", 9_000))
    return py("torch/cuda/graphs.py", "replay", launched)


def layer_forward(step: StepSegments, variant: LayerVariant, context: Context, owner: Owner) -> Iterator[Item]:
    """A layer's forward as a graph replay; parameter hooks stay outside."""
    job = step.job
    inside = replace(variant, gathers="", gathers_next=False)

    def replayed() -> tuple[Row, Nodes]:
        nodes = Nodes()
        hook = gather_hook(job, variant.gathers, variant.gathers_next, variant.expert)
        node = op("_CudagraphReplayNode", py(CUDA_GRAPHS, "forward", _replay()), sequence=nodes.new("graph"))
        applied = py(FUNCTION, "apply", builtin(APPLY, node))
        body = py(CUDA_GRAPHS, "__call__", *hook, py(CUDA_GRAPHS, "replay_graph_capture", applied))
        return py("megatron/core/transformer/module.py", "__call__", body), nodes

    yield step.making(f"graph forward:{variant}", replayed, context, owner)
    yield step.plain(f"ghost forward:{inside}", lambda: (layers.layer_forward(job, inside)[0],), context, ghost=True)


def layer_backward(step: StepSegments, variant: LayerVariant, context: Context, owner: Owner) -> Iterator[Item]:
    """A layer's backward as a graph replay; gradient hooks follow outside."""
    job = step.job
    inside = replace(variant, reduces=False)
    body = py(FUNCTION, "apply", py(CUDA_GRAPHS, "backward", _replay()))
    yield step.engine("graph backward", lambda: (evaluate("_CudagraphReplayNodeBackward", 0, body),), context, owner)

    def rows() -> tuple[Row, ...]:
        return layers.layer_backward(job, inside, layers.layer_forward(job, inside)[1])

    yield step.engine(f"ghost backward:{inside}", rows, context, owner, ghost=True)
    hooks = accumulate(job, "dense", 3, variant.reduces, variant.expert)
    yield step.engine(f"graph hooks:{variant.reduces}", lambda: hooks, context, owner)


def iteration(step: StepSegments, inside: Iterator[Item]) -> Iterator[Item]:
    """A whole forward-backward pass as one graph: all its segments become ghosts, its frames vanish."""
    yield step.plain("graph iteration", lambda: (py(FULL_GRAPH, "__call__", _replay()),))
    for item in inside:
        if isinstance(item, Segment):
            yield replace(item, template=step.program.library.ghost(item.template))
