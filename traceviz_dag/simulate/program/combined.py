"""Combined 1F1B: a forward and a backward step run layer by layer into each other, expert all-to-alls beside compute.

The chains are those of Megatron-core's ``combined_1f1b.py`` and ``model_chunk_schedule_plan.py``: the work runs in
``ScheduleNode``s, outside ``forward_step`` and ``backward_step``. Attention and experts run on the compute stream,
dispatch and combine on a stream of their own; an event hands each plan's node over to its next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from traceviz_dag.schedules import Backward, Combined, Forward
from traceviz_dag.simulate.items import Close, Context, Item, Open, Segment
from traceviz_dag.simulate.program.segments import Owner, StepSegments
from traceviz_dag.simulate.tree import (
    Kernel,
    Node,
    Nodes,
    Row,
    RowKind,
    Wait,
    builtin,
    module,
    on_stream,
    op,
    py,
    recording,
)
from traceviz_dag.simulate.work import ends, kernels, layers, stacks, stepping
from traceviz_dag.simulate.work.gradients import gather_hook
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.layers import LayerVariant
from traceviz_dag.simulate.work.moe import GRAPH_ROOT, moe_backward_parts, moe_parts
from traceviz_dag.vocabulary import Phase

COMBINED = "megatron/core/pipeline_parallel/combined_1f1b.py"
PLAN = "megatron/core/models/common/model_chunk_schedule_plan.py"
SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
NODE = "megatron/core/pipeline_parallel/utils.py"
CALLABLES = "megatron/core/models/gpt/fine_grained_callables.py"
SIDE = "communication"
_STREAM = {"attention": "compute", "dispatch": SIDE, "experts": "compute", "combine": SIDE}
_CALLABLE = {
    "attention": "submodule_attn_forward",
    "dispatch": "submodule_dispatch_forward",
    "experts": "submodule_moe_forward",
    "combine": "submodule_combine_forward",
}


@dataclass(frozen=True, slots=True)
class LayerParts:
    """A layer cut into the nodes of its schedule plan."""

    forward: dict[str, Row]
    backward: dict[str, tuple[Row, ...]]
    nodes: Nodes


@lru_cache(maxsize=64)
def layer_parts(job: Job, variant: LayerVariant) -> LayerParts:
    """Cut a mixture-of-experts layer into attention, dispatch, experts and combine."""
    nodes = Nodes()
    hook = gather_hook(job, variant.gathers, variant.gathers_next, expert=True)
    attention = layers.attention_forward(job, nodes, variant, hook)
    norm = layers.mlp_norm_forward(job, nodes, variant)
    parts = moe_parts(job, nodes, current=SIDE)
    bda = layers.residual_forward(job, nodes, "mlp")
    forward = {
        "attention": _submodule("attention", attention, *norm, *_within_moe(parts.route)),
        "dispatch": _submodule("dispatch", *parts.dispatch),
        "experts": _submodule("experts", *_within_moe(parts.experts)),
        "combine": _submodule("combine", *parts.combine, bda),
    }
    back = moe_backward_parts(job, nodes, variant.reduces, current=SIDE)
    backward = {
        "combine": (*layers.bias_dropout_add_backward(job, variant, nodes, "mlp"), *back.combine),
        "experts": back.experts,
        "dispatch": back.dispatch,
        "attention": (
            *back.route,
            *layers.mlp_norm_backward(job, variant, nodes),
            *layers.attention_backward(job, variant, nodes),
        ),
    }
    return LayerParts(forward, backward, nodes)


def _within_moe(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return (module("MoELayer", *rows),) if rows else ()


def _submodule(part: str, *rows: Node) -> Row:
    """A part as a node of the plan, on its stream, taking over from the plan's last node and handing on."""
    # The outputs that the next node takes as its own leaves; the dispatch has two.
    cut = (op("aten::detach"),) if part == "dispatch" else ()
    body = py(CALLABLES, "forward_impl", py(CALLABLES, _CALLABLE[part], *rows, *cut))
    node = py(NODE, "forward", py(NODE, "_forward", _take_over(part, "forward"), body))
    return recording(on_stream(node, _STREAM[part]), "plan:forward")


def _engine_rows(part: str, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """A part's backward rows, likewise."""
    streamed = [on_stream(row, _STREAM[part]) for row in rows]
    first = replace(streamed[0], children=(_take_over(part, "backward"), *streamed[0].children))
    streamed[0] = first
    launching = [index for index, row in enumerate(streamed) if _launches(row)]
    streamed[launching[-1]] = recording(streamed[launching[-1]], "plan:backward")
    return tuple(streamed)


def _take_over(part: str, direction: str) -> Wait:
    return Wait(f"plan:{direction}", _STREAM[part])


def _hand_over(what: str, event: str, stream: str) -> Row:
    """A plan takes the current stream over (``record``) or gives it back (``wait``)."""
    return py(PLAN, f"{what}_current_stream", Wait(event, stream))


def _launches(row: Row) -> bool:
    return any(isinstance(child, Kernel) or (isinstance(child, Row) and _launches(child)) for child in row.children)


def items(step: StepSegments, action: Combined) -> Iterator[Item]:
    """The items of one combined step."""
    settings = step.settings
    kind = "interleaved" if settings.pp > 1 else "no"
    schedule = (py(COMBINED, f"combined_1f1b_schedule_for_{kind}_pipelining"),)
    yield Open((*schedule, py(COMBINED, "combined_forward_backward_step")))
    forward, backward = action.forward, action.backward
    f_context = Context(Phase.FORWARD, forward.microbatch, forward.chunk) if forward else None
    b_context = Context(Phase.BACKWARD, backward.microbatch, backward.chunk) if backward else None
    if f_context:
        entry = (py(step.program.entry.forward_file, "forward_step"),)
        yield Open(entry)
        yield from step.batch(f_context)
        yield from step.project_code(f_context)
        yield Close(len(entry))
    if b_context and backward and step.program.has_head(backward.chunk):
        yield from _loss_backward(step, b_context)
    yield Open((py(PLAN, "run"),))
    yield from _plan(step, forward, f_context, backward, b_context)
    yield Close(1)
    if f_context and forward:
        job, entry_files = step.job, step.program.entry
        head = step.program.has_head(forward.chunk)
        yield step.plain(f"plan loss:{head}", lambda: (_loss(job, entry_files, head),), f_context)
    yield Close(2)
    if forward:
        yield step.plain("count", lambda: (stepping.count_tokens(),))


def _loss_backward(step: StepSegments, context: Context) -> Iterator[Item]:
    job, owner = step.job, (context.chunk, context.microbatch, -2)
    yield step.plain("first gradient", lambda: (ends.first_gradient(),), context)
    frames = stacks.engine_frames(step.settings)
    yield Open(frames)
    yield step.engine("loss backward", lambda: (ends.loss_backward(job),), context, owner)
    yield Close(len(frames))


def _plan(
    step: StepSegments,
    forward: Forward | None,
    f_context: Context | None,
    backward: Backward | None,
    b_context: Context | None,
) -> Iterator[Item]:
    program = step.program
    if f_context and program.has_embedding(f_context.chunk):
        yield Open(_NODE_FORWARD)
        yield step.embedding(f_context)
        yield Close(len(_NODE_FORWARD))
    if b_context and program.has_head(b_context.chunk):
        for segment in step.head_backward(b_context):
            yield from _in_engine(segment)
    if b_context:
        # The gradient that was received, or made by the output layer, is on the compute stream.
        yield step.plain("plan begins", lambda: (_hand_over("record", "stream:compute", SIDE),), b_context)
    f_layers = range(program.layers[forward.chunk]) if forward else range(0)
    b_layers = range(program.layers[backward.chunk]) if backward else range(0)
    for index in range(max(len(f_layers), len(b_layers))):
        f_layer = program.placed(f_context, index) if f_context and index < len(f_layers) else None
        b_layer = program.placed(b_context, b_layers[-1 - index]) if b_context and index < len(b_layers) else None
        yield Open((py(PLAN, "run"),))
        yield from _layer(step, f_layer, b_layer)
        yield Close(1)
    if f_context:
        yield step.plain("plan ends", lambda: (_hand_over("wait", "plan:forward", "compute"),), f_context)
    if f_context and program.has_head(f_context.chunk):
        yield Open(_NODE_FORWARD)
        yield step.final_norm(f_context)
        yield step.head(f_context)
        yield Close(len(_NODE_FORWARD))
    if b_context and program.has_embedding(b_context.chunk):
        yield from _in_engine(step.embedding_backward(b_context))


def _layer(step: StepSegments, f_layer: Context | None, b_layer: Context | None) -> Iterator[Item]:
    """One layer forward and one backward, in the plan's order."""
    order = (
        ("backward", "combine"),
        ("forward", "attention"),
        ("backward", "experts"),
        ("forward", "dispatch"),
        ("backward", "dispatch"),
        ("forward", "experts"),
        ("forward", "combine"),
        ("backward", "attention"),
    )
    makes = step.sequence
    if f_layer:
        step.made[_owner(f_layer)] = makes
    for direction, part in order:
        if direction == "forward" and f_layer:
            segment = _forward_part(step, f_layer, part, makes)
            step.sequence = max(step.sequence, makes + segment.template.nodes)
            yield segment
        elif direction == "backward" and b_layer:
            yield from _in_engine(_backward_part(step, b_layer, part, f_layer, makes))


def _owner(context: Context) -> Owner:
    return context.chunk, context.microbatch, context.position


def _forward_part(step: StepSegments, context: Context, part: str, makes: int) -> Segment:
    variant, job = step.forward_variant(context), step.job

    def build() -> tuple[tuple[Row, ...], Nodes]:
        parts = layer_parts(job, variant)
        return (parts.forward[part],), parts.nodes

    template = step.program.library.get(f"plan {part}:{variant}", build)
    return Segment(template, replace(context, makes=makes))


def _backward_part(step: StepSegments, context: Context, part: str, beside: Context | None, makes: int) -> Segment:
    """One part of a layer's backward; ``beside`` is the layer that runs forward, whose numbers start at ``makes``."""
    variant, job = replace(step.program.variant, reduces=step.reduces(context.microbatch)), step.job

    def rows() -> tuple[Row, ...]:
        rows = _engine_rows(part, layer_parts(job, variant).backward[part])
        return (_graph_root(), *rows) if part == "dispatch" else rows

    segment = step.engine(f"plan backward {part}:{variant}", rows, context, _owner(context))
    if part != "dispatch":
        return segment
    root = makes + layer_parts(job, step.forward_variant(beside)).nodes[GRAPH_ROOT] if beside else step.sequence
    return replace(segment, context=replace(segment.context, makes=root))


def _graph_root() -> Row:
    """The engine's own node above the two outputs of the dispatch, with the counter's number of that moment."""
    name = "torch::autograd::GraphRoot"
    inner = Row(RowKind.OPERATOR, name, sequence=0, backward=True, nested=True)
    title = f"autograd::engine::evaluate_function: {name}"
    return Row(RowKind.OPERATOR, title, (inner,), sequence=0, backward=True, nested=True)


_NODE_FORWARD = (py(NODE, "forward"), py(NODE, "_forward"), py(CALLABLES, "forward_impl"))
_NODE_BACKWARD = (
    py(NODE, "backward"),
    py(NODE, "_backward"),
    py(NODE, "default_backward_func"),
    Row(RowKind.PYTHON, builtin("method run_backward of torch._C._EngineBase object at 0x").name),
)


def _in_engine(segment: Segment) -> Iterator[Item]:
    yield Open(_NODE_BACKWARD)
    yield segment
    yield Close(len(_NODE_BACKWARD))


def _loss(job: Job, entry: ends.Entry, head: bool) -> Row:
    """``forward_step_calc_loss``: on the last stage the loss function inside a schedule node, and everywhere the scale
    of the experts' auxiliary loss beside it."""
    one = op("aten::ones", op("aten::fill_", kernels.elementwise("fill", 4)))
    scale = py(SCHEDULES, "_compute_loss_scale", builtin("method ones of type object at 0x", one))
    loss = (py(NODE, "forward", py(NODE, "_forward", *ends.loss(job, entry).children)),) if head else ()
    return py(SCHEDULES, "forward_step_calc_loss", *loss, scale)
