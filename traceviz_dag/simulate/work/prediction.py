"""Multi-token prediction on the last stage: embedding of later tokens, projection, a layer, and a loss of its own.

The chains are those of Megatron-core's ``multi_token_prediction.py``: each depth takes the hidden states of the one
before and the embedding of the tokens one further, and all depths share embedding and output layer with the model.
"""

from __future__ import annotations

from traceviz_dag.simulate.tree import Node, Nodes, Row, builtin, evaluate, op, py
from traceviz_dag.simulate.work import ends, kernels
from traceviz_dag.simulate.work.collectives import collective, communicate
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.linears import (
    APPLY,
    FUNCTION,
    MAPPINGS,
    applied,
    applied_backward,
    column_backward,
    column_forward,
    norm_backward,
    norm_forward,
)
from traceviz_dag.vocabulary import Dimension

PREDICTION = "megatron/core/transformer/multi_token_prediction.py"
_GATHERED, _SCATTERED = "_GatherFromModelParallelRegion", "_ScatterToSequenceParallelRegion"


def _rolled(job: Job, times: int) -> tuple[Row, ...]:
    """``roll_tensor``: tokens one further, and the place that this leaves free."""
    tokens = job.settings.sequence * job.settings.batch
    rolled = op("aten::roll", kernels.custom("roll", 16 * tokens))
    cleared = op("aten::fill_", kernels.elementwise("fill", 4))
    return (py(PREDICTION, "roll_tensor", builtin("method roll of type object at 0x", rolled), cleared),) * times


def inputs_forward(job: Job) -> tuple[Row, Nodes]:
    """``_get_embeddings``: the later tokens and their embedding."""
    embedding, nodes = ends.embedding_forward(job, "", False, False)
    return py(PREDICTION, "_get_embeddings", *_rolled(job, 2), *embedding.children), nodes


def inputs_backward(job: Job, nodes: Nodes) -> tuple[Row, ...]:
    """The engine's rows of the embedding's backward."""
    return ends.embedding_backward(job, nodes, reduces=False)


def joined_forward(job: Job) -> tuple[Row, Nodes]:
    """``_concat_embeddings``: both norms, and the projection of both to the hidden size."""
    nodes = Nodes()
    norms = norm_forward(job, nodes, "norm:embedding"), norm_forward(job, nodes, "norm:hidden")
    joined = op("aten::cat", kernels.custom("cat", 4 * job.activation_bytes), sequence=nodes.new("cat"))
    # As much to compute as twice the hidden size into this rank's share of it.
    linear = column_forward(job, nodes, "projection", _columns(job), norm=False)
    rows: list[Node] = [*norms, builtin("method cat of type object at 0x", joined), linear]
    if job.settings.tp > 1:
        made = py(MAPPINGS, "_gather_along_last_dim", _whole(job))
        gathered = applied(_GATHERED, MAPPINGS, made, sequence=nodes.new("gathered"))
        rows.append(py(MAPPINGS, "gather_from_tensor_model_parallel_region", gathered))
    if job.shards_sequence:
        split = applied(_SCATTERED, MAPPINGS, sequence=nodes.new("scattered"))
        rows.append(py(MAPPINGS, "scatter_to_sequence_parallel_region", split))
    return py(PREDICTION, "_concat_embeddings", *rows), nodes


def joined_backward(job: Job, nodes: Nodes) -> tuple[Row, ...]:
    """The engine's rows of projection and norms."""
    rows: list[Row] = []
    if job.shards_sequence:
        made = py(MAPPINGS, "_gather_along_first_dim", job.communicate_tensor("_allgather_base"))
        rows.append(applied_backward(_SCATTERED, MAPPINGS, nodes["scattered"], made))
    if job.settings.tp > 1:
        rows.append(applied_backward(_GATHERED, MAPPINGS, nodes["gathered"]))
    rows.append(column_backward(job, nodes["projection"], _columns(job), norm=False))
    split = op("aten::narrow", kernels.copy("DtoD", 2 * job.activation_bytes))
    rows.append(evaluate("CatBackward0", nodes["cat"], split))
    rows += (norm_backward(job, nodes["norm:hidden"]), norm_backward(job, nodes["norm:embedding"]))
    return tuple(rows)


def _columns(job: Job) -> int:
    return 2 * job.shape.width // job.settings.tp


def _whole(job: Job) -> Row:
    settings = job.settings
    elements = job.shape.tokens * job.shape.width // settings.tp
    what = collective("tp", "_allgather_base", elements, "BFloat16", "activation", Dimension.TP, settings.tp)
    return communicate(settings, what, members=settings.tp)


def final_norm_forward(job: Job) -> tuple[Row, Nodes]:
    """``_postprocess`` of a depth: its last norm."""
    nodes = Nodes()
    return py(PREDICTION, "_postprocess", norm_forward(job, nodes, "norm")), nodes


def final_norm_backward(job: Job, nodes: Nodes) -> tuple[Row, ...]:
    """The engine's row of that norm."""
    return (norm_backward(job, nodes["norm"]),)


def loss_forward(job: Job) -> tuple[Row, Nodes]:
    """``process_mtp_loss`` of one depth: output layer, cross entropy, the share of tokens that are right.

    A scaler lets the loss enter the backward.
    """
    head, nodes = ends.head_forward(job)
    masked = op("aten::mul", kernels.elementwise("multiply", 12 * job.shape.tokens))
    scaler = op("MTPLossAutoScaler", py(PREDICTION, "forward"), sequence=nodes.new("scaler"))
    applied_scaler = py(FUNCTION, "apply", builtin(APPLY, scaler))
    rows = (*_rolled(job, 2), *head.children, masked, _accepted(job), applied_scaler)
    return py(PREDICTION, "process_mtp_loss", *rows), nodes


def _accepted(job: Job) -> Row:
    """How many of the predicted tokens are right, over all shards of the vocabulary."""
    settings, vocabulary = job.settings, job.settings.vocabulary // job.settings.tp
    best = op("aten::argmax", kernels.custom("argmax", 2 * job.shape.tokens * vocabulary))
    rows: list[Node] = [builtin("method argmax of type object at 0x", best)]
    if settings.tp > 1:
        for dtype in ("Float", "Long"):
            what = collective("tp", "allgather", job.shape.tokens, dtype, "loss", Dimension.TP, settings.tp)
            rows.append(py(PREDICTION, "_vocab_parallel_argmax", communicate(settings, what, members=settings.tp)))
    rows.append(op("aten::sum", kernels.reduction(8 * job.shape.tokens)))
    return py(PREDICTION, "_compute_mtp_acceptance_counts", *rows)


def loss_backward(job: Job, nodes: Nodes) -> tuple[Row, ...]:
    """The engine's rows of one depth's loss."""
    ones = op("aten::ones_like", op("aten::fill_", kernels.elementwise("fill", 4 * job.shape.tokens)))
    scaled = op("aten::mul", kernels.elementwise("multiply", 12 * job.shape.tokens))
    scaler = applied_backward("MTPLossAutoScaler", PREDICTION, nodes["scaler"], ones, scaled)
    return scaler, *ends.head_backward(job, nodes, reduces=False)
