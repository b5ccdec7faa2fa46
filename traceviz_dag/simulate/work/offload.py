"""Activations on their way to the host and back, in the call tree.

Megatron's fine-grained offloading sends what core attention saves as soon as it has run, on a stream of its own, and
brings it back on another one while the layer after it runs backward; the last layer of a chunk keeps its own.
Transformer Engine sends what the first half of the layers saves, a layer at a time, over one stream for both ways;
before version 2.9 (with PyTorch 2.6 and older here) over one for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from traceviz_dag.simulate.settings import Era, Offload
from traceviz_dag.simulate.tree import Kernel, Node, Nodes, Row, Wait, builtin, evaluate, op, py, recording
from traceviz_dag.simulate.work import kernels
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.linears import APPLY, FUNCTION, TE

FINE_GRAINED = "megatron/core/pipeline_parallel/fine_grained_activation_offload.py"
LAYER_WISE = f"{TE}/cpu_offload.py"
_DOWN, _UP = "offload:down", "offload:up"
_START, _COMMIT = "FineGrainedOffloadingGroupStartFunction", "FineGrainedOffloadingGroupCommitFunction"


def around_forward(job: Job, nodes: Nodes, position: int, depth: int, core: Callable[[], Row]) -> tuple[Row, ...]:
    """Core attention between the functions that mark what it saves and send it."""
    if job.settings.offload is not Offload.MODULES:
        return (core(),)
    start = _applied(_START, "fine_grained_offloading_group_start", nodes.new("offload:start"))
    inside = core()
    sent: tuple[Row, ...] = ()
    if position + 1 < depth:
        copies = [py(FINE_GRAINED, "offload", _down(nbytes)) for nbytes in _attention_bytes(job)]
        last = recording(copies[-1], f"plan:offload:{position}")
        group = py(FINE_GRAINED, "bulk_offload_group", *copies[:-1], last)
        sent = (py(FINE_GRAINED, "on_group_commit_forward", py(FINE_GRAINED, "bulk_offload", group)),)
    commit = _applied(_COMMIT, "fine_grained_offloading_group_offload", nodes.new("offload:commit"), *sent)
    return start, inside, commit


def around_backward(job: Job, nodes: Nodes, position: int, depth: int, core: tuple[Row, ...]) -> tuple[Row, ...]:
    """Its backward: waits for what it needs before, and has that of the layer before it brought back afterwards."""
    if job.settings.offload is not Offload.MODULES:
        return core
    arrived: tuple[Node, ...] = ()
    if position + 1 < depth:
        arrived = (py(FINE_GRAINED, "on_group_commit_backward", Wait(f"plan:reload:{position}")),)
    reloaded: tuple[Row, ...] = ()
    if position:
        copies = [py(FINE_GRAINED, "reload", *_up(nbytes)) for nbytes in _attention_bytes(job)]
        last = recording(copies[-1], f"plan:reload:{position - 1}")
        waits = Wait(f"plan:offload:{position - 1}", _UP)
        group = py(FINE_GRAINED, "bulk_reload_group", waits, *copies[:-1], last)
        reloaded = (py(FINE_GRAINED, "on_group_start_backward", py(FINE_GRAINED, "bulk_reload", group)),)
    commit = py(FUNCTION, "apply", py(FINE_GRAINED, "backward", *arrived))
    start = py(FUNCTION, "apply", py(FINE_GRAINED, "backward", *reloaded))
    return (
        evaluate(f"{_COMMIT}Backward", nodes["offload:commit"], commit),
        *core,
        evaluate(f"{_START}Backward", nodes["offload:start"], start),
    )


def offloaded_layers(depth: int) -> int:
    """How many of a model's layers Transformer Engine offloads here."""
    return depth // 2


def before_forward(job: Job, position: int, depth: int) -> Row:
    """What the offloading context does before a layer: the layer before is sent, an earlier one has been."""
    count = offloaded_layers(depth)
    rows: list[Node] = []
    if 0 < position <= count:
        rows.append(_group(job, position - 1, "_offload_group", "bulk_offload_group"))
    if position >= depth - count:
        rows.append(Wait(f"plan:offload:{position - depth + count}"))
    if job.settings.era is Era.TORCH_2_7:
        return py(LAYER_WISE, "__enter__", py(LAYER_WISE, "fwd_step", *rows))
    inner = op("GroupCommitFunction", py(LAYER_WISE, "forward", py(LAYER_WISE, "on_group_commit_forward", *rows)))
    committed = py(FUNCTION, "apply", builtin(APPLY, inner))
    return py(LAYER_WISE, "group_prefetch_offload_commit", committed)


def before_backward(job: Job, rows: tuple[Row, ...], position: int, depth: int) -> tuple[Row, ...]:
    """The engine's rows of a layer, which begin by waiting for its activations and having others brought back."""
    count = offloaded_layers(depth)
    body: list[Node] = []
    wanted = position - (depth - 1 - count)
    if 0 <= wanted < count:
        body.append(_group(job, wanted, "_reload_group", "bulk_reload_group"))
    if position < count:
        body.append(Wait(f"plan:reload:{position}"))
    if job.settings.era is Era.TORCH_2_7:
        first, *others = rows
        hook = py(LAYER_WISE, "hook", py(LAYER_WISE, "bwd_step", *body))
        return replace(first, children=(hook, *first.children)), *others
    committed = py(LAYER_WISE, "backward", py(LAYER_WISE, "on_group_commit_backward", *body))
    return evaluate("GroupCommitFunctionBackward", -1, py(FUNCTION, "apply", committed)), *rows


def _group(job: Job, position: int, newest: str, older: str) -> Row:
    """The copies of a layer's activations, one way or the other."""
    down = "offload" in newest
    copies: list[Node] = []
    for nbytes in _layer_bytes(job):
        copies += [_down(nbytes)] if down else _up(nbytes)
    event = f"plan:{'offload' if down else 'reload'}:{position}"
    last = copies.pop()
    assert isinstance(last, Row)
    copies.append(recording(last, event))
    if not down:
        copies.insert(0, Wait(f"plan:offload:{position}", _UP))
    if job.settings.era is not Era.TORCH_2_7:
        return py(LAYER_WISE, older, *copies)
    return _on_stream(py(LAYER_WISE, newest, *copies), _DOWN)


def _attention_bytes(job: Job) -> list[int]:
    """What core attention saves: query, key and value."""
    return [job.shape.tokens * job.shape.inner * job.shape.element] * 3


def _layer_bytes(job: Job) -> list[int]:
    """The larger activations that a dense layer saves."""
    shape = job.shape
    inner, wide = shape.tokens * shape.inner, shape.tokens * shape.feed_forward
    return [elements * shape.element for elements in (shape.shard * shape.width, 3 * inner, inner, wide, wide)]


def _copied(kernel: Kernel) -> Row:
    return builtin("method copy_ of Tensor object at 0x", op("aten::copy_", kernel))


def _down(nbytes: int) -> Row:
    return _copied(replace(kernels.copy("DtoH", nbytes), stream=_DOWN, after=("compute",)))


def _up(nbytes: int) -> list[Node]:
    empty = builtin("method empty of type object at 0x", op("aten::empty"))
    return [empty, _copied(replace(kernels.copy("HtoD", nbytes), stream=_UP, after=("compute",)))]


def _on_stream(row: Row, stream: str) -> Row:
    """The same rows with their copies and waits on one stream."""

    def moved(node: Node) -> Node:
        if isinstance(node, Row):
            return _on_stream(node, stream)
        return replace(node, stream=stream) if isinstance(node, Kernel | Wait) else node

    return replace(row, children=tuple(moved(child) for child in row.children))


def _applied(name: str, function: str, sequence: int, *children: Node) -> Row:
    inner = op(name, py(FINE_GRAINED, "forward", *children), sequence=sequence)
    return py(FINE_GRAINED, function, py(FUNCTION, "apply", builtin(APPLY, inner)))
