"""What each rank's host does in a training step: frames it enters and leaves, segments it runs, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from traceviz_dag.schedules import Action, Await, Backward, Combined, Exchange, Forward, InputGradient, WeightGradient
from traceviz_dag.simulate.items import Close, Context, Item, Open, Segment
from traceviz_dag.simulate.program import combined, graphs
from traceviz_dag.simulate.program.segments import Rows, StepSegments
from traceviz_dag.simulate.program.stage import StageProgram
from traceviz_dag.simulate.schedules import schedule_of
from traceviz_dag.simulate.settings import Graphs, Offload, Precision
from traceviz_dag.simulate.tree import Nodes, py
from traceviz_dag.simulate.work import (
    ends,
    faults,
    fsdp,
    layers,
    offload,
    packing,
    prediction,
    quantized,
    stacks,
    stepping,
)
from traceviz_dag.simulate.work.disturbed import Disturbance
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.vocabulary import Phase

_PARTS_OF_PREDICTIONS = ("inputs", "joined", "norm", "loss")


def _prediction(depth: int, part: str) -> int:
    """The position by which a part of a depth of multi-token prediction is remembered; see ``Owner``."""
    return -10 - len(_PARTS_OF_PREDICTIONS) * depth - _PARTS_OF_PREDICTIONS.index(part)


def step_items(program: StageProgram, rank: int, number: int) -> Iterator[Item]:
    """The items of one training step of one rank, with what faults do to its kernels."""
    items = StepProgram(program, rank, number).items()
    disturbance = Disturbance.of(program.settings, rank)
    if disturbance is None:
        yield from items
        return
    for item in items:
        if isinstance(item, Segment):
            yield replace(item, template=disturbance.apply(program.library, item.template, item.context, number))
        else:
            yield item


class StepProgram(StepSegments):
    """One step of one rank, in host order."""

    def items(self) -> Iterator[Item]:
        """All items, in host order."""
        settings, frames = self.settings, stacks.train_step(self.settings)
        yield Open((stacks.annotated_step(self.number),))
        yield Open(frames)
        yield from self._zero_gradients()
        if settings.dynamic_context:
            loads = packing.loads(settings, self.rank)
            yield self.plain(f"packing:{loads}", lambda: (packing.scheduled(self.job, loads),))
        if settings.cuda_graphs is Graphs.ITERATION:
            yield from graphs.iteration(self, self._forward_and_backward())
        else:
            yield Open((stacks.schedule_function(settings),))
            yield from self._forward_and_backward()
            yield self._finalize()
            yield Close(1)
        yield from self._optimizer()
        yield Close(len(frames))
        yield Close(1)

    def _zero_gradients(self) -> Iterator[Item]:
        program, job = self.program, self.job
        parameters = program.parameters // self.settings.vpp
        for _ in range(self.settings.vpp):
            yield self.plain(f"zero:{program.stage}", lambda: (stepping.zero_gradients(job, parameters),))

    def _forward_and_backward(self) -> Iterator[Item]:
        yield self.plain("tokens", lambda: (stepping.token_counter(),))
        pause = faults.collection_pause(self.settings, self.rank)
        actions = schedule_of(self.settings, self.program.stage)
        for index, action in enumerate(actions):
            if pause and index == len(actions) // 2:
                yield self.plain("garbage", lambda: (pause,) if pause else ())
            following = actions[index + 1] if index + 1 < len(actions) else None
            previous = actions[index - 1] if index else None
            yield from self._action(action, previous, following)

    def _finalize(self) -> Item:
        program, job = self.program, self.job

        def rows() -> Rows:
            return (stepping.finalize(job, program.first, program.last, program.buckets, program.parameters),)

        return self.plain(f"finalize:{program.stage}", rows)

    def _optimizer(self) -> Iterator[Item]:
        program, job = self.program, self.job
        if self.settings.cuda_graphs is Graphs.ITERATION:
            yield self._finalize()
        tensors = 6 * sum(program.layers)
        buckets = tuple(bucket for chunk in program.buckets for bucket in chunk)

        def rows() -> Rows:
            return (stepping.optimizer_step(job, program.parameters, tensors, buckets),)

        yield self.plain(f"optimizer:{program.stage}", rows, Context(Phase.OPTIMIZER))
        if self.settings.agreement:
            utilities = program.entry.training_utilities
            yield self.plain("agreement", lambda: stepping.agree(job, utilities))
        yield self.plain(f"report:{program.last}", lambda: stepping.report_loss(job, program.last))

    def _action(self, action: Action, previous: Action | None, following: Action | None) -> Iterator[Item]:
        wrapper = stacks.helper_wrapper(self.settings)
        if isinstance(action, Exchange):
            overlapped = self.settings.overlap_p2p and action.call != "recv_forward"
            even = self.program.stage % 2 == 0
            key = f"{action}:{overlapped}:{even}"
            yield self.plain(key, lambda: (stacks.exchange(self.job, action, overlapped, even),))
        elif isinstance(action, Await):
            yield self.plain(f"{action}", lambda: (stacks.await_receive(action.gradient),))
        elif isinstance(action, Combined):
            yield Open(wrapper)
            yield from combined.items(self, action)
            yield Close(len(wrapper))
        elif isinstance(action, Forward):
            yield Open(wrapper)
            yield from self._forward(action)
            if not isinstance(following, Backward):
                yield Close(len(wrapper))
        else:
            if not isinstance(previous, Forward):
                yield Open(wrapper)
            self.part = type(action)
            yield from self._backward(action)
            yield Close(len(wrapper))
            self.part = Backward

    def _forward(self, action: Forward) -> Iterator[Item]:
        program, settings, job = self.program, self.settings, self.job
        chunk, microbatch = action.chunk, action.microbatch
        context = Context(Phase.FORWARD, microbatch, chunk)
        frames = stacks.forward_frames(settings)
        yield Open(frames, chunk)
        yield from self.batch(context)
        model = stacks.model_frames(settings)
        yield Open(model, chunk)
        yield from self.project_code(context)
        if program.has_embedding(chunk):
            yield self.embedding(context)
        block = stacks.block_frames(settings, program.full)
        yield Open(block, chunk)
        for position in range(program.layers[chunk]):
            yield from self._layer_forward(program.placed(context, position), self.program.full)
        if settings.precision is Precision.FP8:
            tensors = 3 * quantized.MODULES_OF_LAYER * program.layers[chunk]
            yield self.plain(f"scales:{tensors}", lambda: quantized.updated_scales(job, tensors, forward=True), context)
        # The last norm follows the checkpointed layers, outside their frame.
        yield Close(int(program.full))
        if program.has_head(chunk):
            yield self.final_norm(context)
        yield Close(len(block) - int(program.full))
        if program.predictions(chunk):
            yield from self._predictions(context)
        if program.has_head(chunk):
            yield self.head(context)
        yield Close(len(model) + 1)
        if program.has_head(chunk):
            yield self.plain("loss", lambda: (ends.loss(job, program.entry),), context)
        yield Close(len(frames) - 1)
        if program.has_head(chunk):
            yield self.plain("count", lambda: (stepping.count_tokens(),))

    def _predictions(self, context: Context) -> Iterator[Item]:
        """Multi-token prediction: depth by depth, then the losses of all."""
        job, chunk, microbatch = self.job, context.chunk, context.microbatch
        block = (
            py(ends.model_file(self.settings), "_postprocess"),
            *stacks.prediction_frames("MultiTokenPredictionBlock"),
        )
        yield Open(block, chunk)
        for depth in range(self.program.predictions(chunk)):
            frames = stacks.prediction_frames("MultiTokenPredictionLayer")
            yield Open(frames, depth)
            owner = (chunk, microbatch, _prediction(depth, "inputs"))
            yield self.making("prediction inputs", lambda: prediction.inputs_forward(job), context, owner)
            yield Open((py(prediction.PREDICTION, "_proj_and_transformer_layer"),))
            owner = (chunk, microbatch, _prediction(depth, "joined"))
            yield self.making("prediction joined", lambda: prediction.joined_forward(job), context, owner)
            layer = self.program.placed(context, self.program.layers[chunk] + depth)
            yield from self._layer_forward(layer, checkpointed=False)
            owner = (chunk, microbatch, _prediction(depth, "norm"))
            yield self.making("prediction norm", lambda: prediction.final_norm_forward(job), context, owner)
            yield Close(1)
            yield Close(len(frames))
        yield Close(len(block) - 1)
        for depth in range(self.program.predictions(chunk)):
            owner = (chunk, microbatch, _prediction(depth, "loss"))
            yield self.making("prediction loss", lambda: prediction.loss_forward(job), context, owner)
        yield Close(1)

    def _predictions_backward(self, context: Context) -> Iterator[Item]:
        job, chunk, microbatch = self.job, context.chunk, context.microbatch

        def part(depth: int, name: str, backward: Callable[[Job, Nodes], Rows]) -> Segment:
            nodes = self.program.library.nodes(f"prediction {name}")
            owner = (chunk, microbatch, _prediction(depth, name))
            return self.engine(f"prediction {name} backward", lambda: backward(job, nodes), context, owner)

        depths = list(reversed(range(self.program.predictions(chunk))))
        for depth in depths:
            yield part(depth, "loss", prediction.loss_backward)
        for depth in depths:
            yield part(depth, "norm", prediction.final_norm_backward)
            layer = self.program.placed(context, self.program.layers[chunk] + depth)
            yield from self._layer_backward(layer, checkpointed=False)
            yield part(depth, "joined", prediction.joined_backward)
            yield part(depth, "inputs", prediction.inputs_backward)

    def _layer_forward(self, context: Context, checkpointed: bool) -> Iterator[Item]:
        variant = self.forward_variant(context)
        owner = (context.chunk, context.microbatch, context.position)
        if self.settings.offload is Offload.LAYERS:
            place = context.position, variant.depth
            yield self.plain(f"offload:{place}", lambda: (offload.before_forward(self.job, *place),), context)
        if self.settings.cuda_graphs is Graphs.LAYER:
            yield from graphs.layer_forward(self, variant, context, owner)
            return
        make = layers.checkpointed_forward if checkpointed else layers.layer_forward
        key = f"forward:{variant}" if checkpointed is self.program.full else f"forward without recompute:{variant}"
        yield self.making(key, lambda: make(self.job.in_context(variant.context), variant), context, owner)

    def _backward(self, action: Backward | InputGradient | WeightGradient) -> Iterator[Item]:
        program, settings, job = self.program, self.settings, self.job
        chunk, microbatch = action.chunk, action.microbatch
        context = Context(Phase.BACKWARD, microbatch, chunk)
        frames, engine = stacks.backward_frames(settings), stacks.engine_frames(settings)
        yield Open(frames, chunk)
        if program.has_head(chunk) and self.part is not WeightGradient:
            yield self.plain("first gradient", lambda: (ends.first_gradient(),), context)
        yield Open(engine, chunk)
        if program.has_head(chunk):
            owner = (chunk, microbatch, -2)
            yield self.engine("loss backward", lambda: (ends.loss_backward(job),), context, owner)
            head, norm = self.head_backward(context)
            yield head
            yield from self._predictions_backward(context)
            yield norm
        for position in reversed(range(program.layers[chunk])):
            yield from self._layer_backward(program.placed(context, position), program.full)
        if program.has_embedding(chunk):
            yield self.embedding_backward(context)
        if settings.fsdp:
            tied = program.has_embedding(chunk) and program.has_head(chunk)
            owner = (chunk, microbatch, 0)
            yield self.engine(f"root:{tied}", lambda: fsdp.root_post_backward(job, tied), context, owner)
        yield Close(len(engine))
        yield Close(len(frames))

    def _layer_backward(self, context: Context, checkpointed: bool) -> Iterator[Item]:
        variant = self.backward_variant(context)
        owner = (context.chunk, context.microbatch, context.position)
        job = self.job.in_context(variant.context)
        if self.settings.cuda_graphs is Graphs.LAYER:
            yield from graphs.layer_backward(self, variant, context, owner)
        elif not checkpointed:

            def rows() -> Rows:
                return layers.layer_backward(job, variant, layers.layer_forward(job, variant)[1])

            yield self.engine(f"backward:{variant}", rows, context, owner)
        else:

            def build() -> tuple[Rows, Nodes]:
                return layers.checkpointed_backward(job, variant, layers.checkpointed_forward(job, variant)[1])

            template = self.program.library.get(f"recomputed backward:{variant}", build, autograd=True)
            yield Segment(template, replace(context, refers=self.made[owner], makes=self.sequence))
            self.sequence += template.nodes
