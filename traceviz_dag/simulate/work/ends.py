"""What the first and the last stage do besides layers: batches, embedding, output layer, loss."""

from __future__ import annotations

from traceviz_dag.simulate.settings import Era, JobSettings
from traceviz_dag.simulate.tree import Kernel, Node, Nodes, Pause, Row, builtin, evaluate, module, op, py
from traceviz_dag.simulate.work import kernels
from traceviz_dag.simulate.work.collectives import collective, communicate
from traceviz_dag.simulate.work.gradients import accumulate, gather_hook
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.linears import (
    MAPPINGS,
    applied,
    applied_backward,
    column_backward,
    column_forward,
    norm_backward,
    norm_forward,
    summing_names,
)
from traceviz_dag.vocabulary import Dimension

EMBEDDING = "megatron/core/models/common/embeddings/language_model_embedding.py"
_GPT = "megatron/core/models/gpt/gpt_model.py"
_HYBRID, _MAMBA = "megatron/core/models/hybrid/hybrid_model.py", "megatron/core/models/mamba/mamba_model.py"
CROSS_ENTROPY = "megatron/core/tensor_parallel/cross_entropy.py"
SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"


def model_file(settings: JobSettings) -> str:
    """The file of the model's class; that of hybrid models was Mamba's once."""
    if not settings.hybrid_pattern:
        return _GPT
    return _HYBRID if settings.era is Era.TORCH_2_7 else _MAMBA


def batch(job: Job, entry: Entry, stall_ns: int = 0) -> Row:
    """``get_batch``: the loader's next sample to the GPU, and its broadcast over the tensor-parallel group."""
    tokens = job.settings.sequence * job.settings.batch
    stalled = (Pause(stall_ns),) if stall_ns else ()
    fetched = py("torch/utils/data/dataloader.py", "_get_data", *stalled)
    rows: list[Node] = [builtin("function next", py("torch/utils/data/dataloader.py", "__next__", fetched))]
    for _ in range(3):
        copied = op("aten::to", op("aten::_to_copy", op("aten::copy_", kernels.copy("HtoD", 8 * tokens))))
        rows.append(builtin("method cuda of Tensor object at 0x", copied))
    tp = job.settings.tp
    if tp > 1:
        what = collective("tp", "broadcast", tokens, "Long", "batch", Dimension.TP, tp)
        sent = [py(entry.utils, "_broadcast", communicate(job.settings, what, members=tp)) for _ in range(3)]
        return py(entry.forward_file, "get_batch", py(entry.utils, "get_batch_on_this_tp_rank", *rows, *sent))
    return py(entry.forward_file, "get_batch", *rows)


class Entry:
    """Files of the training script around Megatron-core: Megatron-LM's own, or Megatron Bridge's."""

    def __init__(self, bridge: bool, script: str = "pretrain_gpt.py") -> None:
        self.bridge = bridge
        self.forward_file = "megatron/bridge/training/gpt_step.py" if bridge else script
        self.loss_file = "megatron/bridge/training/losses.py" if bridge else script
        self.loss_function = "masked_next_token_loss" if bridge else "loss_func"
        self.training = "megatron/bridge/training/train.py" if bridge else "megatron/training/training.py"
        self.training_utilities = (
            "megatron/bridge/training/utils/train_utils.py" if bridge else "megatron/training/utils.py"
        )
        self.utils = "megatron/bridge/training/utils/batch_utils.py" if bridge else "megatron/training/utils.py"


def embedding_forward(job: Job, gathers: str, gathers_next: bool, expert: bool) -> tuple[Row, Nodes]:
    """``GPTModel._preprocess`` on the first stage."""
    nodes = Nodes()
    hook = gather_hook(job, gathers, gathers_next, expert, embedding=True)
    looked_up = op(
        "aten::embedding",
        op("aten::index_select", kernels.custom("embedding", 2 * job.shape.tokens * job.shape.width * 2)),
        sequence=nodes.new("embedding"),
    )
    functional = py("torch/nn/functional.py", "embedding", builtin("method embedding of type object at 0x", looked_up))
    rows: list[Node] = [*hook, py("megatron/core/tensor_parallel/layers.py", "forward", functional, *_combined(job))]
    words = module("VocabParallelEmbedding", *rows)
    dropout = op(
        "aten::native_dropout", kernels.custom("dropout", 2.5 * job.activation_bytes), sequence=nodes.new("dropout")
    )
    dropped = module("Dropout", py("torch/nn/modules/dropout.py", "forward", op("aten::dropout", dropout)))
    body = py("megatron/core/utils.py", "wrapper", py(EMBEDDING, "forward", words, dropped))
    return py(model_file(job.settings), "_preprocess", module("LanguageModelEmbedding", body)), nodes


def _combined(job: Job) -> tuple[Row, ...]:
    """The sum of the vocabulary's shards."""
    if job.settings.tp == 1:
        return ()
    operation = "_reduce_scatter_base" if job.shards_sequence else "allreduce"
    function, outer, helper = summing_names(job)
    made = py(MAPPINGS, helper, job.communicate_tensor(operation))
    return (py(MAPPINGS, outer, applied(function, MAPPINGS, made)),)


def embedding_backward(job: Job, nodes: Nodes, reduces: bool) -> tuple[Row, ...]:
    """The engine's rows of the embedding's backward."""
    multiply = kernels.elementwise("multiply", 3 * job.activation_bytes)
    weight = kernels.custom("embedding_backward", 3 * job.shape.tokens * job.shape.width * 4)
    return (
        evaluate("NativeDropoutBackward0", nodes["dropout"], op("aten::native_dropout_backward", multiply)),
        evaluate("EmbeddingBackward0", nodes["embedding"], op("aten::embedding_dense_backward", weight)),
        *accumulate(job, "embedding", 1, reduces),
    )


def final_norm_forward(job: Job) -> tuple[Row, Nodes]:
    """The last layer norm, at the end of the last stage's transformer block."""
    nodes = Nodes()
    return norm_forward(job, nodes, "norm:final"), nodes


def head_forward(job: Job) -> tuple[Row, Nodes]:
    """``GPTModel._postprocess`` on the last stage: output layer, cross entropy."""
    nodes = Nodes()
    vocabulary = job.settings.vocabulary // job.settings.tp
    logits = column_forward(job, nodes, "output", vocabulary, head=True)
    maximum = _reduce_logits(job, "max", kernels.custom("cross_entropy_max", 2 * job.shape.tokens * vocabulary))
    rest = _reduce_logits(job, "predicted", kernels.fused("cross_entropy", 2 * job.shape.tokens * vocabulary))
    again = _reduce_logits(job, "sum", kernels.reduction(4 * job.shape.tokens))
    entropy = applied(
        "_VocabParallelCrossEntropy", CROSS_ENTROPY, *maximum, *rest, *again, sequence=nodes.new("cross_entropy")
    )
    loss = py(CROSS_ENTROPY, "vocab_parallel_cross_entropy", entropy)
    language = "megatron/core/models/common/language_module/language_module.py"
    return py(
        model_file(job.settings), "_postprocess", logits, py(language, "compute_language_model_loss", loss)
    ), nodes


def _reduce_logits(job: Job, step: str, kernel: Kernel) -> tuple[Node, ...]:
    rows: tuple[Node, ...] = (builtin(f"method {step} of type object at 0x", op(f"aten::{step}", kernel)),)
    what = collective("tp", "allreduce", job.shape.tokens, "Float", "loss", Dimension.TP, job.settings.tp)
    return (*rows, communicate(job.settings, what, members=job.settings.tp))


def loss_backward(job: Job) -> Row:
    """The engine's row of the loss's own scaling."""
    return evaluate("MulBackward0", -1, op("aten::mul", kernels.elementwise("multiply", 12 * job.shape.tokens)))


def head_backward(job: Job, nodes: Nodes, reduces: bool) -> tuple[Row, ...]:
    """The engine's rows of cross entropy and output layer."""
    vocabulary = job.settings.vocabulary // job.settings.tp
    gradient = kernels.fused("cross_entropy_backward", 3 * job.shape.tokens * vocabulary)
    return (
        applied_backward("_VocabParallelCrossEntropy", CROSS_ENTROPY, nodes["cross_entropy"], gradient),
        column_backward(job, nodes["output"], vocabulary, head=True),
        *accumulate(job, "embedding", 1, reduces),
    )


def final_norm_backward(job: Job) -> tuple[Row, ...]:
    """The engine's rows of the last layer norm."""
    return norm_backward(job, 0), *accumulate(job, "dense", 1)


def loss(job: Job, entry: Entry) -> Row:
    """``forward_step_calc_loss``; before torch 2.7's Megatron it also averages the loss over the replicas."""
    masked = op("aten::mul", kernels.elementwise("multiply", 12 * job.shape.tokens))
    total = builtin("method sum of type object at 0x", op("aten::sum", kernels.reduction(4 * job.shape.tokens)))
    rows: list[Node] = [masked, total]
    members = job.settings.dp * job.settings.cp
    if job.settings.era is not Era.TORCH_2_7 and members > 1:
        what = collective("dp_cp", "allreduce", 2, "Float", "loss", Dimension.DP, members)
        rows.append(communicate(job.settings, what, members=members))
    return py(SCHEDULES, "forward_step_calc_loss", py(entry.loss_file, entry.loss_function, *rows))


def first_gradient() -> Row:
    """The gradient of the loss that a backward step starts from."""
    filled = op("aten::ones_like", op("aten::fill_", kernels.elementwise("fill", 4)))
    return py("torch/autograd/__init__.py", "_make_grads", builtin("method ones_like of type object at 0x", filled))
