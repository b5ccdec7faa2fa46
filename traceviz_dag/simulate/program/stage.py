"""What the ranks of one pipeline stage run: their layers, parameters and buckets."""

from __future__ import annotations

from dataclasses import replace

from traceviz_dag.simulate.items import Context
from traceviz_dag.simulate.settings import JobSettings, Recompute
from traceviz_dag.simulate.templates import Library
from traceviz_dag.simulate.work import stacks
from traceviz_dag.simulate.work.buckets import bucket_parameters
from traceviz_dag.simulate.work.layers import LayerVariant
from traceviz_dag.simulate.work.linears import Job


class StageProgram:
    """The program of the ranks of one pipeline stage."""

    def __init__(self, settings: JobSettings, stage: int, library: Library) -> None:
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
