"""The segments of one step of one rank, and the state that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from traceviz_dag.schedules import Backward, InputGradient, Step, WeightGradient
from traceviz_dag.simulate.items import NOWHERE, Context, Item, Segment
from traceviz_dag.simulate.program.stage import StageProgram
from traceviz_dag.simulate.settings import Offload, Precision
from traceviz_dag.simulate.tree import Nodes, Row, builtin, kernels_of, py, without_kernels
from traceviz_dag.simulate.work import ends, faults, packing
from traceviz_dag.simulate.work.kernels import gives_weights
from traceviz_dag.simulate.work.layers import LayerVariant

Rows = tuple[Row, ...]
Tree = tuple[Row, Nodes]
Owner = tuple[int, int, int]
"""Chunk, micro-batch and position of a forward segment; embedding -1, output layer -2, last norm -3."""


class StepSegments:
    """Makes the segments of one step of one rank; each forward one is remembered for the backward one that follows."""

    def __init__(self, program: StageProgram, rank: int, number: int) -> None:
        self.program, self.settings, self.job = program, program.settings, program.job
        self.rank, self.number = rank, number
        self.sequence = 1000 + number * 100_000
        self.made: dict[Owner, int] = {}
        self.part: type[Step] = Backward

    def plain(
        self, key: str, rows: Callable[[], Rows], context: Context = NOWHERE, ghost: bool = False, like: str = ""
    ) -> Segment:
        """A segment on the main thread that makes no autograd nodes; ``like``: the key whose random costs it has."""
        template = self.program.library.get(key, lambda: (rows(), Nodes()), ghost=ghost, like=like)
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
        """A backward segment on the autograd thread; or the part of it that is computed now."""
        if self.part is WeightGradient:
            return self.plain(f"weights of {key}", lambda: (_weights(rows()),), context)
        left_out = self.part is InputGradient

        def build() -> tuple[Rows, Nodes]:
            return tuple(without_kernels(row, gives_weights) for row in rows()) if left_out else rows(), Nodes()

        key = f"inputs of {key}" if left_out else key
        template = self.program.library.get(key, build, autograd=True, ghost=ghost)
        return Segment(template, replace(context, refers=self.made[owner]))

    def batch(self, context: Context) -> Iterator[Item]:
        """The loading of a micro-batch, on the stages that need one."""
        program, job = self.program, self.job
        if self.settings.dynamic_context:
            # Each stage needs the lengths of the packed sequences.
            yield self.plain("lengths", lambda: (packing.lengths(job),), context)
        if not (program.has_embedding(context.chunk) or program.has_head(context.chunk)):
            return
        stall = faults.loader_stall_ns(self.settings, self.rank, context.microbatch)
        yield self.plain(f"batch:{stall}", lambda: (ends.batch(job, program.entry, stall),), context, like="batch:0")

    def project_code(self, context: Context) -> Iterator[Item]:
        """What faults run at the begin of a forward step, on the ranks that have them."""
        for key, fault in (
            ("hidden", faults.hidden_wait),
            ("pageable", faults.pageable_copy),
            ("break", faults.graph_break),
            ("tiny", faults.tiny_kernels),
        ):
            row = fault(self.settings, self.rank)
            if row:
                captured = key == "tiny" and self.settings.faults.tiny_kernels_captured
                yield self.plain(key, partial(_alone, row), context, ghost=captured)

    def embedding(self, context: Context) -> Segment:
        """The embedding's forward."""
        gathers = self.gathers(context.microbatch)
        own, expert = "own" if gathers else "", self.program.expert
        owner = (context.chunk, context.microbatch, -1)
        following = (gathers and not self.settings.hybrid_pattern) or self.settings.fsdp
        return self.making(
            f"embedding:{gathers}", lambda: ends.embedding_forward(self.job, own, following, expert), context, owner
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

        # Weights that the output layer shares with the embedding are complete with the embedding's backward.
        if self.settings.fsdp and self.program.has_embedding(chunk):
            reduces = False

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

    def variant(self, context: Context) -> LayerVariant:
        """How a layer runs a micro-batch."""
        variant = self.program.variant_of(context.layer)
        if self.settings.dynamic_context:
            size = packing.context_size(self.settings, self.rank, self.number, context.microbatch)
            variant = replace(variant, context=size)
        return variant

    def forward_variant(self, context: Context) -> LayerVariant:
        """How a layer runs forward: the first micro-batch's hooks gather parameters."""
        program, chunk, position = self.program, context.chunk, context.position
        variant = self._placed(context)
        if not (self.gathers(context.microbatch) or self.settings.fsdp):
            return variant
        if variant.kind:
            # A layer's own class decides what is gathered; each gathers late, in its own hook.
            return replace(variant, gathers="own")
        first = position == 0 and not program.has_embedding(chunk)
        following = position + 1 < program.layers[chunk] + program.predictions(chunk)
        return replace(variant, gathers="own" if first else "wait", gathers_next=following)

    def backward_variant(self, context: Context) -> LayerVariant:
        """How a layer runs backward: the last micro-batch's hooks reduce gradients; those of FSDP always do."""
        variant = replace(self._placed(context), reduces=self.reduces(context.microbatch), quantizes=False)
        if not self.settings.fsdp:
            return variant
        last = context.position + 1 == self.program.layers[context.chunk]
        return replace(variant, gathers_back="own" if last else "wait", gathers_previous=context.position > 0)

    def _placed(self, context: Context) -> LayerVariant:
        """What follows from a layer's place in its chunk and from its micro-batch."""
        settings, depth = self.settings, self.program.layers[context.chunk]
        variant = self.variant(context)
        if settings.offload is not Offload.NONE:
            variant = replace(variant, position=context.position, depth=depth)
        if settings.precision is not Precision.BF16:
            variant = replace(variant, quantizes=context.microbatch == 0)
        if settings.precision is Precision.FP8 and context.position == 0:
            variant = replace(variant, first_scaled=True, depth=depth)
        return variant

    def reduces(self, microbatch: int) -> bool:
        """Whether a micro-batch's backward hooks reduce gradients."""
        if self.settings.fsdp:
            return True
        return self.settings.overlap_grad_reduce and microbatch == self.settings.microbatches - 1

    def embedding_backward(self, context: Context) -> Segment:
        """The embedding's backward."""
        nodes, reduces = self.program.library.nodes(f"embedding:{self.gathers(0)}"), self.reduces(context.microbatch)
        if self.settings.fsdp and self.program.has_head(context.chunk):
            reduces = False
        owner = (context.chunk, context.microbatch, -1)
        return self.engine(
            f"embedding backward:{reduces}", lambda: ends.embedding_backward(self.job, nodes, reduces), context, owner
        )


def _weights(rows: Rows) -> Row:
    """The products that backward rows leave for later."""
    left = filter(gives_weights, kernels_of(rows))
    return py(
        "zbpp_light/weight_grad_store.py", "pop", *(builtin("method mm of type object at 0x", each) for each in left)
    )


def _alone(row: Row) -> Rows:
    return (row,)
