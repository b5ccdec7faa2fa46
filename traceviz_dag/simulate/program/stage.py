"""What the ranks of one pipeline stage run: their layers, parameters and buckets."""

from __future__ import annotations

from dataclasses import replace

from traceviz_dag.simulate.items import Context
from traceviz_dag.simulate.settings import JobSettings, Recompute
from traceviz_dag.simulate.templates import Library
from traceviz_dag.simulate.work import stacks
from traceviz_dag.simulate.work.buckets import bucket_parameters
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.layers import LayerVariant


class StageProgram:
    """The program of the ranks of one pipeline stage."""

    def __init__(self, settings: JobSettings, stage: int, library: Library) -> None:
        if stage in settings.no_recompute:
            # Its templates have the keys of those of stages that recompute.
            settings = replace(settings, recompute=Recompute.NONE)
            library = Library(settings)
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
        first = self.first_layers[chunk]
        kinds = self.settings.kinds_of_layers[first : first + self.layers[chunk]]
        embedding = ("embedding",) if self.has_embedding(chunk) or self.has_head(chunk) else ()
        if kinds:
            each = (("expert_layer", "expert") if kind == "E" else ("dense",) for kind in kinds)
            return (*embedding, *(bucket for buckets in each for bucket in buckets))
        return (*embedding, *layer * (self.layers[chunk] + self.predictions(chunk)))

    def variant_of(self, layer: int) -> LayerVariant:
        """How a layer of the model runs."""
        kinds = self.settings.kinds_of_layers
        return replace(self.variant, kind=kinds[layer], expert=kinds[layer] == "E") if kinds else self.variant

    def predictions(self, chunk: int) -> int:
        """Depths of multi-token prediction; their layers follow those of the chunk."""
        return self.settings.mtp_layers if self.has_head(chunk) else 0

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
