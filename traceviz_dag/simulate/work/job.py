"""What the trees of a job depend on, and how its tensor-parallel ranks communicate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from traceviz_dag.simulate.durations import Shape
from traceviz_dag.simulate.settings import JobSettings, Precision, Transformer
from traceviz_dag.simulate.tree import Collective, Row, builtin
from traceviz_dag.simulate.work.collectives import collective, communicate, unrecorded
from traceviz_dag.vocabulary import Dimension

USERBUFFERS = {
    "_allgather_base": "void userbuffers_fp16_sum_inplace_gpu_mc_ag<2>(int, int, int, int, int, uint4*, int, void**)",
    "_reduce_scatter_base": "void userbuffers_fp16_sum_inplace_gpu_mc_rs_oop<2>(int, int, int, int, int, uint4*)",
}


@dataclass(frozen=True, slots=True)
class Job:
    """What the trees of a job depend on.

    Attributes:
        cp, cp_group: over how many ranks a micro-batch's sequences are split, and over which group.
    """

    settings: JobSettings
    shape: Shape
    cp: int
    cp_group: str = "cp"

    @classmethod
    def of(cls, settings: JobSettings) -> Job:
        """The job of some settings."""
        return cls(settings, Shape.of(settings), settings.cp)

    def in_context(self, size: int) -> Job:
        """The job as it runs a micro-batch that is split over so many ranks of its domain; 0: as it always does."""
        if not size:
            return self
        domain = self.settings.dp * self.settings.cp
        shape = replace(self.shape, context=self.shape.tokens * size)
        return replace(self, shape=shape, cp=size, cp_group="dp_cp" if size == domain else f"cp{size}")

    @property
    def te(self) -> bool:
        """Whether layers are Transformer Engine's."""
        return self.settings.transformer is Transformer.TRANSFORMER_ENGINE

    @property
    def quantizes(self) -> bool:
        """Whether products have fewer than 16 bits."""
        return self.settings.precision is not Precision.BF16

    @property
    def replicas(self) -> int:
        """Size of the group that has dense gradients in common."""
        return self.settings.dp * self.settings.cp

    @property
    def shards_sequence(self) -> bool:
        """Whether activations are split along the sequence over the tensor-parallel group."""
        return self.settings.sequence_parallel and self.settings.tp > 1

    @property
    def activation_bytes(self) -> int:
        """Bytes of a layer's input on this rank."""
        return self.shape.shard * self.shape.width * self.shape.element

    def tensor_collective(self, operation: str, dtype: str = "BFloat16") -> Collective:
        """A collective of a layer's activations over the tensor-parallel group."""
        tokens = self.shape.tokens if operation == "allreduce" else self.shape.shard
        elements = tokens * self.shape.width
        return collective("tp", operation, elements, dtype, "activation", Dimension.TP, self.settings.tp)

    def communicate_tensor(self, operation: str, records: str = "", inside_product: bool = False) -> Row:
        """Its call chain; asynchronous when an event is named.

        Args:
            inside_product: it feeds or follows a product of Transformer Engine, whose userbuffers can carry it.
        """
        # What feeds a quantized product is gathered after its cast.
        cast = inside_product and operation == "_allgather_base" and self.quantizes
        what = self.tensor_collective(operation, "Byte" if cast else "BFloat16")
        tp = self.settings.tp
        if self.settings.overlap_tensor and inside_product:
            name = USERBUFFERS[operation]
            kernel = unrecorded(what, name, "userbuffers", waits=not records, records=records)
            return builtin("method bulk_overlap of CommOverlap object at 0x", kernel)
        return communicate(self.settings, what, asynchronous=bool(records), records=records, members=tp)
