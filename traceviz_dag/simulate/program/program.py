"""What each rank's host does in a training step: frames it enters and leaves, segments it runs, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from traceviz_dag.simulate.items import NOWHERE, Close, Context, Item, Open, Segment
from traceviz_dag.simulate.program import combined, graphs
from traceviz_dag.simulate.schedules import Action, Await, Backward, Combined, Exchange, Forward, schedule_of
from traceviz_dag.simulate.settings import Graphs, Recompute, Settings
from traceviz_dag.simulate.templates import Library
from traceviz_dag.simulate.tree import Nodes, Row
from traceviz_dag.simulate.work import ends, faults, layers, stacks, stepping
from traceviz_dag.simulate.work.gradients import bucket_parameters
from traceviz_dag.simulate.work.layers import LayerVariant
from traceviz_dag.simulate.work.linears import Job
from traceviz_dag.vocabulary import Phase

Rows = tuple[Row, ...]
Tree = tuple[Row, Nodes]
Owner = tuple[int, int, int]
"""Chunk, micro-batch and position of a forward segment; embedding -1, output layer -2, last norm -3."""


class StageProgram:
    """The program of the ranks of one pipeline stage."""

    def __init__(self, settings: Settings, stage: int, library: Library) -> None:
        self.settings = settings
        self.job = Job.of(settings)
        self.stage = stage
        self.library = library
        self.entry = stacks.entry_of(settings)
        self.first, self.last = stage == 0, stage == settings.pp - 1
        self.expert = settings.expert_count > 0
        self.full = settings.recompute is Recompute.FULL
        self.variant = LayerVariant(
            expert=self.expert,
            checkpoints_attention=settings.recompute is Recompute.SELECTIVE,
            discards=settings.recompute is Recompute.OUTPUT_DISCARD,
        )
        counts = settings.layers_of_stages
        self.layers = [counts[stage + settings.pp * chunk] for chunk in range(settings.vpp)]
        self.first_layers = [sum(counts[: stage + settings.pp * chunk]) for chunk in range(settings.vpp)]
        self.buckets = tuple(self._buckets(chunk) for chunk in range(settings.vpp))
        self.parameters = sum(bucket_parameters(self.job, bucket) for chunk in self.buckets for bucket in chunk)

    def _buckets(self, chunk: int) -> tuple[str, ...]:
        layer = ("expert_layer", "expert") if self.expert else ("dense",)
        embedding = ("embedding",) if self.has_embedding(chunk) or self.has_head(chunk) else ()
        return (*embedding, *layer * self.layers[chunk])

    def has_embedding(self, chunk: int) -> bool:
        """Whether a chunk starts with the embedding."""
        return self.first and chunk == 0

    def has_head(self, chunk: int) -> bool:
        """Whether a chunk ends with the output layer and the loss."""
        return self.last and chunk == self.settings.vpp - 1

    def placed(self, context: Context, position: int) -> Context:
        """A context moved to one layer of its chunk."""
        chunk = context.chunk
        slot = sum(self.layers[:chunk]) + position
        return replace(context, layer=self.first_layers[chunk] + position, position=position, slot=slot)

    def step(self, rank: int, number: int) -> Iterator[Item]:
        """The items of one training step of one rank."""
        return StepProgram(self, rank, number).items()


class StepProgram:
    """One step of one rank: the state that its items share."""

    def __init__(self, program: StageProgram, rank: int, number: int) -> None:
        self.program, self.settings, self.job = program, program.settings, program.job
        self.rank, self.number = rank, number
        self.sequence = 1000 + number * 100_000
        self.made: dict[Owner, int] = {}

    def items(self) -> Iterator[Item]:
        """All items, in host order."""
        settings, frames = self.settings, stacks.train_step(self.settings)
        yield Open((stacks.annotated_step(self.number),))
        yield Open(frames)
        yield from self._zero_gradients()
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

    def plain(self, key: str, rows: Callable[[], Rows], context: Context = NOWHERE, ghost: bool = False) -> Segment:
        """A segment on the main thread that makes no autograd nodes."""
        template = self.program.library.get(key, lambda: (rows(), Nodes()), ghost=ghost)
        return Segment(template, replace(context, makes=self.sequence))

    def making(
        self, key: str, tree: Callable[[], Tree], context: Context, owner: Owner, ghost: bool = False
    ) -> Segment:
        """A forward segment whose autograd nodes a backward segment will run."""

        def build() -> tuple[Rows, Nodes]:
            row, nodes = tree()
            return (row,), nodes

        template = self.program.library.get(key, build, ghost=ghost)
        segment = Segment(template, replace(context, makes=self.sequence))
        self.made[owner] = self.sequence
        self.sequence += template.nodes
        return segment

    def engine(
        self, key: str, rows: Callable[[], Rows], context: Context, owner: Owner, ghost: bool = False
    ) -> Segment:
        """A backward segment on the autograd thread."""
        template = self.program.library.get(key, lambda: (rows(), Nodes()), autograd=True, ghost=ghost)
        return Segment(template, replace(context, refers=self.made[owner]))

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
            yield from self._backward(action)
            yield Close(len(wrapper))

    def _forward(self, action: Forward) -> Iterator[Item]:
        program, settings, job = self.program, self.settings, self.job
        chunk, microbatch = action.chunk, action.microbatch
        context = Context(Phase.FORWARD, microbatch, chunk)
        frames = stacks.forward_frames(settings)
        yield Open(frames, chunk)
        yield from self.batch(context)
        model = stacks.model_frames(settings)
        yield Open(model, chunk)
        hidden = faults.hidden_wait(settings, self.rank)
        if hidden:
            yield self.plain("hidden", lambda: (hidden,), context)
        if program.has_embedding(chunk):
            yield self.embedding(context)
        block = stacks.block_frames(settings, program.full)
        yield Open(block, chunk)
        for position in range(program.layers[chunk]):
            yield from self._layer_forward(program.placed(context, position))
        # The last norm follows the checkpointed layers, outside their frame.
        yield Close(int(program.full))
        if program.has_head(chunk):
            yield self.final_norm(context)
        yield Close(len(block) - int(program.full))
        if program.has_head(chunk):
            yield self.head(context)
        yield Close(len(model) + 1)
        if program.has_head(chunk):
            yield self.plain("loss", lambda: (ends.loss(job, program.entry),), context)
        yield Close(len(frames) - 1)
        if program.has_head(chunk):
            yield self.plain("count", lambda: (stepping.count_tokens(),))

    def batch(self, context: Context) -> Iterator[Item]:
        """The loading of a micro-batch, on the stages that need one."""
        program, job = self.program, self.job
        if not (program.has_embedding(context.chunk) or program.has_head(context.chunk)):
            return
        stall = faults.loader_stall_ns(self.settings, self.rank) if context.microbatch == 0 else 0
        yield self.plain(f"batch:{stall}", lambda: (ends.batch(job, program.entry, stall),), context)

    def embedding(self, context: Context) -> Segment:
        """The embedding's forward."""
        gathers = self.gathers(context.microbatch)
        own, expert = "own" if gathers else "", self.program.expert
        owner = (context.chunk, context.microbatch, -1)
        return self.making(
            f"embedding:{gathers}", lambda: ends.embedding_forward(self.job, own, gathers, expert), context, owner
        )

    def final_norm(self, context: Context) -> Segment:
        """The last layer norm's forward."""
        owner = (context.chunk, context.microbatch, -3)
        return self.making("final norm", lambda: ends.final_norm_forward(self.job), context, owner)

    def head(self, context: Context) -> Segment:
        """The output layer's and the loss's forward."""
        owner = (context.chunk, context.microbatch, -2)
        return self.making("head", lambda: ends.head_forward(self.job), context, owner)

    def head_backward(self, context: Context) -> Iterator[Segment]:
        """Backward of cross entropy, output layer and last layer norm."""
        job, chunk, microbatch = self.job, context.chunk, context.microbatch
        nodes, reduces = self.program.library.nodes("head"), self.reduces(microbatch)

        def rows() -> Rows:
            return ends.head_backward(job, nodes, reduces)

        yield self.engine(f"head backward:{reduces}", rows, context, (chunk, microbatch, -2))
        yield self.engine(
            "final norm backward", lambda: ends.final_norm_backward(job), context, (chunk, microbatch, -3)
        )

    def gathers(self, microbatch: int) -> bool:
        """Whether a micro-batch's forward hooks gather parameters."""
        settings = self.settings
        return microbatch == 0 and settings.overlap_param_gather and settings.distributed_optimizer

    def forward_variant(self, context: Context) -> LayerVariant:
        """How a layer runs forward: the first micro-batch's hooks gather parameters."""
        program, chunk, position = self.program, context.chunk, context.position
        if not self.gathers(context.microbatch):
            return program.variant
        first = position == 0 and not program.has_embedding(chunk)
        following = position + 1 < program.layers[chunk]
        return replace(program.variant, gathers="own" if first else "wait", gathers_next=following)

    def _layer_forward(self, context: Context) -> Iterator[Item]:
        variant = self.forward_variant(context)
        owner = (context.chunk, context.microbatch, context.position)
        if self.settings.cuda_graphs is Graphs.LAYER:
            yield from graphs.layer_forward(self, variant, context, owner)
            return
        make = layers.checkpointed_forward if self.program.full else layers.layer_forward
        yield self.making(f"forward:{variant}", lambda: make(self.job, variant), context, owner)

    def _backward(self, action: Backward) -> Iterator[Item]:
        program, settings, job = self.program, self.settings, self.job
        chunk, microbatch = action.chunk, action.microbatch
        context = Context(Phase.BACKWARD, microbatch, chunk)
        frames, engine = stacks.backward_frames(settings), stacks.engine_frames(settings)
        yield Open(frames, chunk)
        if program.has_head(chunk):
            yield self.plain("first gradient", lambda: (ends.first_gradient(job),), context)
        yield Open(engine, chunk)
        if program.has_head(chunk):
            owner = (chunk, microbatch, -2)
            yield self.engine("loss backward", lambda: (ends.loss_backward(job),), context, owner)
            yield from self.head_backward(context)
        for position in reversed(range(program.layers[chunk])):
            yield from self._layer_backward(program.placed(context, position))
        if program.has_embedding(chunk):
            yield self.embedding_backward(context)
        yield Close(len(engine))
        yield Close(len(frames))

    def reduces(self, microbatch: int) -> bool:
        """Whether a micro-batch's backward hooks reduce gradients."""
        return self.settings.overlap_grad_reduce and microbatch == self.settings.microbatches - 1

    def embedding_backward(self, context: Context) -> Segment:
        """The embedding's backward."""
        nodes, reduces = self.program.library.nodes(f"embedding:{self.gathers(0)}"), self.reduces(context.microbatch)
        owner = (context.chunk, context.microbatch, -1)
        return self.engine(
            f"embedding backward:{reduces}", lambda: ends.embedding_backward(self.job, nodes, reduces), context, owner
        )

    def _layer_backward(self, context: Context) -> Iterator[Item]:
        variant = replace(self.program.variant, reduces=self.reduces(context.microbatch))
        owner = (context.chunk, context.microbatch, context.position)
        job = self.job
        if self.settings.cuda_graphs is Graphs.LAYER:
            yield from graphs.layer_backward(self, variant, context, owner)
        elif not self.program.full:

            def rows() -> Rows:
                return layers.layer_backward(job, variant, layers.layer_forward(job, variant)[1])

            yield self.engine(f"backward:{variant}", rows, context, owner)
        else:

            def build() -> tuple[Rows, Nodes]:
                return layers.checkpointed_backward(job, variant, layers.checkpointed_forward(job, variant)[1])

            template = self.program.library.get(f"recomputed backward:{variant}", build, autograd=True)
            yield Segment(template, replace(context, refers=self.made[owner], makes=self.sequence))
            self.sequence += template.nodes
