"""Layers of hybrid models: Mamba, attention, MLP and experts, each a layer of its own class.

The chains are those of Megatron-core's ``ssm`` and of mamba_ssm, whose scan is one autograd function around kernels of
causal_conv1d and Triton. Context parallelism splits Mamba's heads: all-to-alls before and after the scan turn a rank's
part of the sequence into its part of the heads, and back.
"""

from __future__ import annotations

from traceviz_dag.simulate.tree import Collective, Node, Nodes, Row, builtin, module, op, py
from traceviz_dag.simulate.work import kernels
from traceviz_dag.simulate.work.collectives import communicate
from traceviz_dag.simulate.work.gradients import accumulate
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.linears import (
    MAPPINGS,
    applied,
    applied_backward,
    column_backward,
    column_forward,
    row_backward,
    row_forward,
)
from traceviz_dag.vocabulary import Dimension

MIXER = "megatron/core/ssm/mamba_mixer.py"
MAMBA_LAYER = "megatron/core/ssm/mamba_layer.py"
CONTEXT = "megatron/core/ssm/mamba_context_parallel.py"
SCAN, GATED = "mamba_ssm/ops/triton/ssd_combined.py", "mamba_ssm/ops/triton/layernorm_gated.py"
LAYERS_OF = {"M": "MambaLayer", "*": "TransformerLayer", "-": "MLPLayer", "E": "MoETransformerLayer"}
"""Symbol of a layer in a pattern → its class."""

_GROUPS, _STATES, _HEAD = 8, 128, 64
_MOVED = ("z", "x", "B", "C", "dt")


def _inner(job: Job) -> int:
    """Channels of the scan on this rank."""
    return 2 * job.shape.width // job.settings.tp


def _parts(job: Job) -> dict[str, int]:
    """Columns of the first projection on this rank, by what they are."""
    inner, states = _inner(job), _GROUPS * _STATES // job.settings.tp
    return dict(zip(_MOVED, (inner, inner, states, states, max(inner // _HEAD, 1)), strict=True))


def _bytes(job: Job) -> float:
    return job.shape.tokens * _inner(job) * job.shape.element


def mixer_forward(job: Job, nodes: Nodes, hook: tuple[Node, ...], norm: bool) -> Row:
    """``MambaMixer``: projection, convolution and scan, gated norm, projection."""
    columns = sum(_parts(job).values())
    rows: list[Node] = [column_forward(job, nodes, "in_proj", columns, *hook, norm=norm)]
    if job.settings.cp > 1:
        moved = [_exchanged(job, nodes, part, size, "_all_to_all_cp2hp") for part, size in _parts(job).items()]
        rows.append(py(CONTEXT, "pre_conv_ssm", *moved))
    copied = op("aten::contiguous", op("aten::clone", op("aten::copy_", kernels.copy("DtoD", int(_bytes(job))))))
    decay = op("aten::exp", kernels.elementwise("exp", 256)), op("aten::neg", kernels.elementwise("negate", 256))
    scan = op("MambaSplitConv1dScanCombinedFn", _scan_forward(job), sequence=nodes.new("scan"))
    called = py("torch/autograd/function.py", "apply", builtin("method apply of FunctionMeta object at 0x", scan))
    combined = py(SCAN, "mamba_split_conv1d_scan_combined", called)
    rows.append(
        py(MIXER, "_ssm_training", builtin("method contiguous of Tensor object at 0x", copied), *decay, combined)
    )
    if job.settings.cp > 1:
        rows.append(py(CONTEXT, "post_conv_ssm", _exchanged(job, nodes, "y", _inner(job), "_all_to_all_hp2cp")))
    gated = applied("LayerNormFn", GATED, kernels.fused("gated_norm", 3 * _bytes(job)), sequence=nodes.new("gated"))
    rows += [module("ExtendedRMSNorm", py(GATED, "forward", gated)), row_forward(job, nodes, "out_proj", _inner(job))]
    return module("MambaMixer", py(MIXER, "forward", *rows))


def mixer_backward(job: Job, nodes: Nodes, norm: bool, reduces: bool) -> tuple[Row, ...]:
    """The engine's rows of the mixer's backward; the last gradient hook starts the reduction."""
    rows = [*row_backward(job, nodes, "out_proj", _inner(job))]
    rows.append(
        applied_backward("LayerNormFn", GATED, nodes["gated"], kernels.fused("gated_norm_bwd", 5 * _bytes(job)))
    )
    if job.settings.cp > 1:
        rows.append(_returned(job, nodes, "y", _inner(job)))
    rows.append(applied_backward("MambaSplitConv1dScanCombinedFn", SCAN, nodes["scan"], *_scan_kernels(job, _BACKWARD)))
    if job.settings.cp > 1:
        rows += [_returned(job, nodes, part, size) for part, size in reversed(_parts(job).items())]
    rows.append(column_backward(job, nodes["in_proj"], sum(_parts(job).values()), norm=norm))
    rows += accumulate(job, "dense", 4, reduces)
    return tuple(rows)


_FORWARD = (
    ("conv", 3.0),
    ("_chunk_cumsum_fwd_kernel", 0.1),
    ("_chunk_state_fwd_kernel", 1.5),
    ("_state_passing_fwd_kernel", 0.5),
    ("_bmm_chunk_fwd_kernel", 0.4),
    ("_chunk_scan_fwd_kernel", 4.0),
)
"""Kernels of the scan's forward, and how often each moves the channels of all tokens."""

_BACKWARD = (
    # It computes again what the forward did not keep.
    *_FORWARD[:5],
    ("_chunk_scan_bwd_dstates_kernel", 2.0),
    ("_state_passing_bwd_kernel", 0.5),
    ("_chunk_scan_chunk_state_bwd_dx_kernel", 5.0),
    ("_chunk_state_bwd_db_kernel", 1.5),
    ("_chunk_scan_bwd_dc_kernel", 1.5),
    ("_chunk_scan_bwd_dcb_kernel", 3.0),
    ("_bmm_chunk_bwd_kernel", 0.4),
    ("_bmm_chunk_bwd_kernel", 0.4),
    ("_chunk_scan_bwd_ddAcs_stable_kernel", 2.0),
    ("_chunk_cumsum_bwd_kernel", 0.1),
    ("conv_backward", 4.0),
)


def _scan_forward(job: Job) -> Row:
    return py(SCAN, "forward", *_scan_kernels(job, _FORWARD))


def _scan_kernels(job: Job, listed: tuple[tuple[str, float], ...]) -> tuple[Node, ...]:
    found: list[Node] = []
    for name, share in listed:
        if name.startswith("conv"):
            found.append(kernels.custom(name, share * _bytes(job)))
        else:
            found.append(kernels.triton(name, share * _bytes(job)))
    return tuple(found)


def _exchange(job: Job, columns: int) -> Row:
    elements = job.shape.tokens * columns
    nbytes = elements * job.shape.element
    what = Collective("cp", "all_to_allv", elements, elements, "BFloat16", nbytes, "sequence_exchange", Dimension.CP)
    return communicate(job.settings, what, members=job.settings.cp)


def _exchanged(job: Job, nodes: Nodes, part: str, columns: int, function: str) -> Row:
    made = applied("_AllToAll", MAPPINGS, _exchange(job, columns), sequence=nodes.new(f"exchange:{part}"))
    return py(CONTEXT, function, py(MAPPINGS, "all_to_all", made))


def _returned(job: Job, nodes: Nodes, part: str, columns: int) -> Row:
    made = applied("_AllToAll", MAPPINGS, _exchange(job, columns))
    return applied_backward("_AllToAll", MAPPINGS, nodes[f"exchange:{part}"], made)
