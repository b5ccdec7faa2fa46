"""Which framework trained what a trace recorded: options of one mean nothing to another."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.read.events import TraceEvents
from traceviz_dag.vocabulary import Dimension, TrainingFramework

_MEGATRON = re.compile(
    r"megatron[/.]|LinearWithGradAccumulationAnd|_(?:Copy|Reduce|Gather|Scatter|ReduceScatter)\w*ModelParallelRegion"
    r"|_VocabParallelCrossEntropy"
)
_GROUP_OF_MEGATRON = re.compile(r"(?:MODEL|DATA|CONTEXT|EXPERT)_\w*PARALLEL_\w*GROUP|(?:DATA|MODEL)_PARALLEL_GROUP")
_FSDP_OF_MEGATRON = re.compile(r"megatron_fsdp/|CustomFSDP\.forward|RegisterFSDPBackwardFunction")
"""Files, the annotation around the forward pass, and the autograd function that releases what a unit gathered."""

_OTHERS = {
    TrainingFramework.ZERO: re.compile(r"deepspeed/|DeepSpeed"),
    TrainingFramework.FSDP: re.compile(r"FSDP::|FullyShardedDataParallel"),
    TrainingFramework.DDP: re.compile(r"DistributedDataParallel\.forward$|torch/nn/parallel/distributed\.py"),
}
"""Files, functions and annotations; Megatron-LM can train with FSDP 2, and then is what counts."""

_DIMENSIONS = (
    *(Dimension.TP, Dimension.CP, Dimension.EP, Dimension.ETP, Dimension.EDP, Dimension.PP),
    *(Dimension.EMBEDDING, Dimension.GRAD_NORM, Dimension.CONTROL),
)
"""What only Megatron-LM's schedule communicates in, where no other framework shows."""


def framework_of(events: TraceEvents, kernels: pa.Table) -> TrainingFramework | None:
    """The framework, or None where nothing shows.

    Args:
        kernels: table ``kernels`` of the trace.
    """
    if any(map(_FSDP_OF_MEGATRON.search, events.strings)):
        return TrainingFramework.MEGATRON_FSDP
    groups = (group.description or "" for group in events.header.process_groups)
    if any(map(_GROUP_OF_MEGATRON.search, groups)) or any(map(_MEGATRON.search, events.strings)):
        return TrainingFramework.MEGATRON
    for framework, pattern in _OTHERS.items():
        if any(map(pattern.search, events.strings)):
            return framework
    found = pc.unique(kernels["dimension"].cast(pa.string())).to_pylist()
    return TrainingFramework.MEGATRON if set(found) & {each.value for each in _DIMENSIONS} else None
