"""The mixture-of-experts MLP in the call tree: router, token counts, dispatch, experts, combine, and their backward."""

from __future__ import annotations

from dataclasses import dataclass, replace

from traceviz_dag.simulate.durations import routed_tokens
from traceviz_dag.simulate.settings import Dispatcher, JobSettings
from traceviz_dag.simulate.tree import (
    Collective,
    Kernel,
    Node,
    Nodes,
    Row,
    builtin,
    evaluate,
    module,
    op,
    py,
    synchronise,
)
from traceviz_dag.simulate.work import kernels, quantized
from traceviz_dag.simulate.work.buckets import expert_hidden
from traceviz_dag.simulate.work.collectives import collective, communicate, unrecorded
from traceviz_dag.simulate.work.gradients import accumulate
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.simulate.work.linears import APPLY, FUNCTION, MAPPINGS, TE, TE_ADAPTER, applied, applied_backward
from traceviz_dag.vocabulary import Dimension

MOE = "megatron/core/transformer/moe"
MOE_LAYER, DISPATCHER, UTILS = f"{MOE}/moe_layer.py", f"{MOE}/token_dispatcher.py", f"{MOE}/moe_utils.py"
SWIGLU = "megatron/core/fusions/fused_bias_swiglu.py"
GROUPED = f"{TE}/module/grouped_linear.py"


@dataclass(frozen=True, slots=True)
class Parts:
    """The stages of a mixture-of-experts MLP, which EP overlap runs apart from each other."""

    route: tuple[Row, ...]
    dispatch: tuple[Row, ...]
    experts: tuple[Row, ...]
    combine: tuple[Row, ...]


def moe_forward(job: Job, nodes: Nodes, weights: bool = False) -> Row:
    """``MoELayer.forward``; ``weights``: whether a quantized product's weights are cast, too."""
    parts = moe_parts(job, nodes, weights=weights)
    body = py(MOE_LAYER, "custom_forward", *parts.route, *parts.dispatch, *parts.experts, *parts.combine)
    return module("MoELayer", py(MOE_LAYER, "forward", body))


GRAPH_ROOT = "graph_root"
"""Role of the number that no operator of a layer's nodes takes."""


def moe_parts(job: Job, nodes: Nodes, current: str = "compute", weights: bool = False) -> Parts:
    """The stages of the forward; ``current`` is the stream of dispatch and combine, ``weights`` as above."""
    moved = _moved(job)
    route = py(MOE_LAYER, "route", module("TopKRouter", py(f"{MOE}/router.py", "forward", *_router(job, nodes))))
    preprocess = py(MOE_LAYER, "preprocess", py(DISPATCHER, "dispatch_preprocess", *_preprocess(job, nodes)))
    sent = (*_all_to_all(job, nodes, "dispatch", current), *_all_to_all(job, nodes, "dispatch", current, tokens=False))
    dispatch = py(MOE_LAYER, "dispatch", py(DISPATCHER, "token_dispatch", *sent))
    if current != "compute":
        # In the combined schedule the engine's root of the backward dispatch that follows takes this number.
        nodes.new(GRAPH_ROOT)
    sort: tuple[Node, ...] = ()
    if not _permutes_on_the_way(job):
        sort = (py(UTILS, "sort_chunks_by_idxs", _by_tokens(kernels.fused("sort_chunks", 2 * moved))),)
    post = py(DISPATCHER, "dispatch_postprocess", *_expert_tensor(job, nodes, "_allgather_base"), *sort)
    pre = py(DISPATCHER, "combine_preprocess", *sort, *_expert_tensor(job, nodes, "_reduce_scatter_base"))
    compute = py(MOE_LAYER, "routed_experts_compute", post, _experts(job, nodes, weights), pre)
    combine = py(MOE_LAYER, "combine", py(DISPATCHER, "token_combine", *_all_to_all(job, nodes, "combine", current)))
    mapped: tuple[Node, ...] = ()
    if not _permutes_on_the_way(job):
        unpermute = kernels.fused("unpermute", 2 * moved)
        mapped = (py(UTILS, "unpermute", op("_moe_unpermute_mask_map", unpermute, sequence=nodes.new("unpermute"))),)
    finish = py(MOE_LAYER, "postprocess", py(DISPATCHER, "combine_postprocess", *mapped))
    return Parts((route, preprocess), (dispatch,), (compute,), (combine, finish))


def _permutes_on_the_way(job: Job) -> bool:
    """Whether what moves tokens puts them in the order of experts, too, and back."""
    return job.settings.dispatcher is Dispatcher.HYBRIDEP and job.settings.ep > 1


def _moved(job: Job) -> int:
    return routed_tokens(job.settings) * job.shape.width * job.shape.element


def _by_tokens(kernel: Kernel) -> Kernel:
    return replace(kernel, by_tokens=True)


def _scores(job: Job) -> int:
    return 4 * job.shape.shard * job.settings.expert_count


def _router(job: Job, nodes: Nodes) -> tuple[Node, ...]:
    scores = _scores(job)
    product = kernels.matmul(job.shape.shard, job.settings.expert_count, job.shape.width)
    gate = builtin("method mm of type object at 0x", op("aten::mm", product))
    gating = applied("RouterGatingLinearFunction", UTILS, gate, sequence=nodes.new("router:gate"))
    chosen = op("aten::topk", kernels.custom("topk", 3 * scores), sequence=nodes.new("router:topk"))
    softmax = op(
        "aten::softmax",
        op("aten::_softmax", kernels.custom("router_softmax", 2 * scores)),
        sequence=nodes.new("router:softmax"),
    )
    scatter = op(
        "aten::scatter",
        op("aten::copy_", kernels.copy("DtoD", scores)),
        kernels.custom("scatter", 2 * scores),
        sequence=nodes.new("router:scatter"),
    )
    score = py(
        UTILS,
        "topk_routing_with_score_function",
        builtin("method topk of type object at 0x", chosen),
        builtin("method softmax of type object at 0x", softmax),
        builtin("method scatter of Tensor object at 0x", scatter),
    )
    router = f"{MOE}/router.py"
    return py(router, "gating", py(UTILS, "router_gating_linear", gating)), py(router, "routing", score)


def _preprocess(job: Job, nodes: Nodes) -> tuple[Node, ...]:
    settings = job.settings
    if _permutes_on_the_way(job):
        return (py(DISPATCHER, "setup_metadata"),)
    experts, members = settings.expert_count, settings.expert_tensor * settings.ep
    counts = collective("etp_ep", "_allgather_base", experts, "Long", "moe_counts", Dimension.EP, members)
    total = kernels.reduction(job.shape.shard * experts, "long")
    made = py(MAPPINGS, "_gather_along_first_dim", communicate(settings, counts, members=members))
    gathered = applied("_GatherFromSequenceParallelRegion", MAPPINGS, made)
    permute = op(
        "_moe_permute_mask_map",
        kernels.fused("row_map", 4096),
        kernels.fused("permute", 2 * _moved(job)),
        sequence=nodes.new("permute"),
    )
    if settings.dispatcher is Dispatcher.DEEPEP:
        return (py(UTILS, "permute", permute),)
    copied = op("aten::to", op("aten::_to_copy", op("aten::copy_", kernels.copy("DtoH", 8 * experts))))
    bound = builtin("method synchronize of Stream object at 0x", synchronise("compute"))
    return (
        py(
            DISPATCHER,
            "preprocess",
            builtin("method sum of Tensor object at 0x", op("aten::sum", total)),
            py(MAPPINGS, "gather_from_sequence_parallel_region", gathered),
        ),
        py(UTILS, "permute", permute),
        py(
            DISPATCHER,
            "_maybe_dtoh_and_synchronize",
            builtin("method to of Tensor object at 0x", copied),
            py("torch/cuda/streams.py", "synchronize", bound),
        ),
    )


def token_exchange(settings: JobSettings, direction: str, tokens: bool) -> Collective:
    """The all-to-all of tokens, or of their probabilities (one element each)."""
    row = settings.hidden if tokens else 1
    elements = routed_tokens(settings) * row
    dtype, size = ("BFloat16", 2) if tokens else ("Float", 4)
    nbytes = elements * size
    return Collective(
        "ep", "all_to_allv", elements, elements, dtype, nbytes, "moe_tokens", Dimension.EP, direction, row
    )


def _deepep(job: Job, direction: str, current: str) -> Row:
    """DeepEP's dispatch or combine: a small kernel that exchanges counts, then the tokens, on a stream of its own."""
    settings = job.settings
    what = replace(token_exchange(settings, direction, tokens=True), group="etp_ep", uneven="")
    where = "intranode" if settings.expert_tensor * settings.ep <= settings.node_size else "internode"
    counts = replace(what, nbytes=4096, in_elements=64, out_elements=64)
    names = f"void deep_ep::{where}::notify_{direction}<8>(int const*, int*, int, int, int)", _DEEPEP[direction]
    launched = [
        unrecorded(part, name.format(where=where), "deepep", current=current)
        for part, name in zip((counts, what), names, strict=True)
    ]
    return py(
        "deep_ep/buffer.py", direction, builtin(f"method {where}_{direction} of PyCapsule object at 0x", *launched)
    )


_DEEPEP = {
    "dispatch": "void deep_ep::{where}::dispatch<8, 768, 8192>(int4*, float*, long*, float*, int*, int const*)",
    "combine": "void deep_ep::{where}::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*, void const*)",
}
FUSED_A2A = "megatron/core/transformer/moe/fused_a2a.py"


def _hybridep(job: Job, direction: str, current: str, *, planned: bool) -> Row:
    """HybridEP's dispatch or combine, on the current stream: barriers of all ranks around the kernel that moves tokens,
    and a local permutation.

    Args:
        planned: whether the plan of an earlier dispatch is used. A new one gathers everybody's choice of experts and
            scans it.
    """
    settings, order = job.settings, "permute" if direction == "dispatch" else "unpermute"
    members = settings.expert_tensor * settings.ep
    tokens = replace(token_exchange(settings, direction, tokens=True), group="etp_ep", uneven="")
    few = replace(tokens, nbytes=64, in_elements=8, out_elements=8)
    name = f"void hybrid_ep::device_sync_kernel<{members}>(unsigned int*, unsigned int*)"
    barrier = replace(unrecorded(few, name, current, current=current), grid=1, block=32)
    travel = unrecorded(tokens, _HYBRIDEP[direction], current, current=current)
    permute = _by_tokens(kernels.custom(f"hybridep_{order}", 2 * _moved(job)))
    around = (barrier, travel, barrier)
    launched = (*around, permute) if direction == "dispatch" else (permute, *around)
    exchange = builtin(f"method {direction}_with_{order} of PyCapsule object at 0x", *launched)
    if direction == "combine":
        return py(HYBRIDEP_BUFFER, "combine_with_unpermute", exchange)
    plan = () if planned else _hybridep_plan(job, current)
    return py(HYBRIDEP_BUFFER, "dispatch_with_permute", *plan, exchange)


def _hybridep_plan(job: Job, current: str) -> tuple[Row, ...]:
    """Everybody's choice of experts, gathered by a kernel of its own within a node and by NCCL between nodes, and the
    maps that follow from it."""
    settings = job.settings
    members = settings.expert_tensor * settings.ep
    choices = job.shape.shard * settings.expert_count
    what = collective("etp_ep", "_allgather_base", choices, "Byte", "moe_counts", Dimension.EP, members)
    if members > settings.node_size:
        gathered = communicate(settings, what, current=current, members=members)
    else:
        kernel = unrecorded(what, _HYBRIDEP["gather"], current, current=current)
        gathered = builtin("method allgather_routing_map of PyCapsule object at 0x", kernel)
    scan = kernels.custom("hybridep_scan", 2 * choices * members)
    rows = kernels.custom("hybridep_row_map", 4 * choices * members)
    return gathered, builtin("method metadata_preprocessing of PyCapsule object at 0x", scan, rows)


HYBRIDEP_BUFFER = "deep_ep/hybrid_ep_buffer.py"
_HYBRIDEP = {
    "gather": "void ag_nvl_kernel<1024>(void**, void*, int, long*, unsigned long long*, unsigned long long*, int, int)",
    "dispatch": "void hybrid_ep::dispatch_kernel<hybrid_ep::warp_group<1, 0>, hybrid_ep::warp_group<1, 1>, "
    "hybrid_ep::warp_group<2, 2>, unsigned short, 10, 8, 128, 8, 1, 32, true>"
    "(hybrid_ep::dispatch_kernel_param_t<unsigned short>)",
    "combine": "void hybrid_ep::combine_kernel<hybrid_ep::warp_group<4, 0>, hybrid_ep::warp_group<4, 4>, "
    "hybrid_ep::warp_group<1, 8>, 10, 2, 128, 4, 8, 1, 32, 2, false>(hybrid_ep::combine_kernel_param_t)",
}


def _fused_exchange(job: Job, direction: str, current: str, *, planned: bool) -> Row:
    """Dispatch or combine by a library of its own."""
    if job.settings.dispatcher is Dispatcher.HYBRIDEP:
        return _hybridep(job, direction, current, planned=planned)
    return _deepep(job, direction, current)


def _fused_names(job: Job, direction: str) -> tuple[str, str]:
    """Autograd function and its caller."""
    if job.settings.dispatcher is Dispatcher.HYBRIDEP:
        return f"HybridEP{direction.capitalize()}", f"hybrid_ep_{direction}"
    return f"Fused{direction.capitalize()}", f"fused_{direction}"


def _all_to_all(
    job: Job, nodes: Nodes, direction: str, current: str, *, tokens: bool = True, backward: bool = False
) -> tuple[Row, ...]:
    """A dispatch or combine of tokens or their probabilities; or its backward, which goes the other way."""
    settings = job.settings
    fused = settings.dispatcher is not Dispatcher.ALL_TO_ALL
    if settings.ep == 1 or (fused and not tokens):
        return ()
    role = f"ep:{direction}:{'tokens' if tokens else 'probabilities'}"
    going = {"dispatch": "combine", "combine": "dispatch"}[direction] if backward else direction
    if fused:
        name, caller = _fused_names(job, direction)
        exchange = _fused_exchange(job, going, current, planned=backward or direction == "combine")
        if backward:
            return (applied_backward(name, FUSED_A2A, nodes[role], exchange),)
        return (py(FUSED_A2A, caller, applied(name, FUSED_A2A, exchange, sequence=nodes.new(role))),)
    made = communicate(settings, token_exchange(settings, going, tokens), current=current, members=settings.ep)
    if backward:
        return (applied_backward("_AllToAll", MAPPINGS, nodes[role], applied("_AllToAll", MAPPINGS, made)),)
    return (py(MAPPINGS, "all_to_all", applied("_AllToAll", MAPPINGS, made, sequence=nodes.new(role))),)


_ETP_NAMES = {
    "_allgather_base": ("_GatherFromSequenceParallelRegion", "gather_from_sequence_parallel_region"),
    "_reduce_scatter_base": ("_ReduceScatterToSequenceParallelRegion", "reduce_scatter_to_sequence_parallel_region"),
}
_ETP_HELPERS = {
    "_allgather_base": "_gather_along_first_dim",
    "_reduce_scatter_base": "_reduce_scatter_along_first_dim",
}


def _expert_tensor_call(job: Job, operation: str) -> Row:
    elements = routed_tokens(job.settings) * job.shape.width
    members = job.settings.expert_tensor
    what = collective("etp", operation, elements, "BFloat16", "moe_tokens", Dimension.ETP, members)
    return py(MAPPINGS, _ETP_HELPERS[operation], communicate(job.settings, what, members=members))


def _expert_tensor(job: Job, nodes: Nodes, operation: str) -> tuple[Row, ...]:
    if job.settings.expert_tensor == 1 or _permutes_on_the_way(job):
        return ()
    name, outer = _ETP_NAMES[operation]
    inner = applied(name, MAPPINGS, _expert_tensor_call(job, operation), sequence=nodes.new(f"etp:{operation}"))
    return (py(MAPPINGS, outer, inner),)


def _expert_tensor_backward(job: Job, nodes: Nodes, operation: str) -> tuple[Row, ...]:
    if job.settings.expert_tensor == 1 or _permutes_on_the_way(job):
        return ()
    back = "_reduce_scatter_base" if operation == "_allgather_base" else "_allgather_base"
    body = _expert_tensor_call(job, back)
    return (applied_backward(_ETP_NAMES[operation][0], MAPPINGS, nodes[f"etp:{operation}"], body),)


def _expert_products(job: Job, columns: int, rows: int, backward: bool) -> list[Kernel]:
    settings = job.settings
    local = settings.expert_count // settings.ep
    tokens = max(routed_tokens(settings) * settings.expert_tensor // local, 1)
    products = [kernels.matmul(tokens, columns, rows)]
    if backward:
        products = [kernels.matmul(tokens, rows, columns, "NNN"), kernels.matmul(rows, columns, tokens, "NTN")]
    return [_by_tokens(product) for _ in range(local) for product in products]


def _experts(job: Job, nodes: Nodes, weights: bool) -> Row:
    inner, width = expert_hidden(job.settings), job.shape.width
    nbytes = 6 * routed_tokens(job.settings) * inner
    first = _grouped_linear(job, nodes, "fc1", _expert_products(job, inner, width, backward=False), weights)
    kernel = _by_tokens(kernels.fused("swiglu", nbytes))
    swiglu = op("WeightedSwiGLUFunction", kernel, sequence=nodes.new("experts:activation"))
    second = _grouped_linear(job, nodes, "fc2", _expert_products(job, width, inner, backward=False), weights)
    body = py(f"{MOE}/experts.py", "forward", first, py(SWIGLU, "weighted_bias_swiglu_impl", swiglu), second)
    return module("TEGroupedMLP" if job.te else "GroupedMLP", body)


def _grouped_linear(job: Job, nodes: Nodes, role: str, products: list[Kernel], weights: bool) -> Row:
    sequence = nodes.new(f"experts:{role}")
    if not job.te:
        return py(FUNCTION, "apply", builtin(APPLY, op("GroupedGemm", *products, sequence=sequence)))
    inner = applied("_GroupedLinear", GROUPED, *_te_products(job, products, weights), sequence=sequence)
    title = "TEColumnParallelGroupedLinear" if role == "fc1" else "TERowParallelGroupedLinear"
    return module(title, py(TE_ADAPTER, "forward", py(GROUPED, "forward", inner)))


def _te_products(job: Job, products: list[Kernel], weights: bool) -> tuple[Row, ...]:
    """Transformer Engine's products of all experts, with the casts of what they read."""
    (m, k), (_, n) = products[0].sizes[:2]
    casts = quantized.cast(job, len(products) * m * k)
    casts += quantized.cast(job, len(products) * k * n, weight=True) if weights else ()
    launched = [each for one in products for each in (*quantized.swizzled(job, m * k), quantized.product(job, one))]
    bound = builtin("method te_general_grouped_gemm of PyCapsule object at 0x", *launched)
    return *casts, py(f"{TE}/cpp_extensions/gemm.py", "general_grouped_gemm", bound)


def moe_backward(job: Job, nodes: Nodes, reduces: bool) -> tuple[Row, ...]:
    """The engine's rows of a mixture-of-experts MLP's backward."""
    parts = moe_backward_parts(job, nodes, reduces)
    return (*parts.combine, *parts.experts, *parts.dispatch, *parts.route)


def moe_backward_parts(job: Job, nodes: Nodes, reduces: bool, current: str = "compute") -> Parts:
    """The backward by the forward's stages."""
    moved, width, inner = _moved(job), job.shape.width, expert_hidden(job.settings)
    name, file = ("_GroupedLinear", GROUPED) if job.te else ("GroupedGemm", "grouped_gemm/ops.py")
    unpermute, sort, permute = _orders_backward(job, nodes)
    combine = (*unpermute, *_all_to_all(job, nodes, "combine", current, backward=True))
    activation = _by_tokens(kernels.fused("swiglu_backward", 2 * moved))
    fc2: list[Node] = [*_expert_products(job, width, inner, backward=True)]
    fc1: list[Node] = [*_expert_products(job, inner, width, backward=True)]
    if job.quantizes:
        fc2 = [*_te_products(job, _expert_products(job, width, inner, backward=True), weights=False)]
        fc1 = [*_te_products(job, _expert_products(job, inner, width, backward=True), weights=False)]
    experts = (
        *_expert_tensor_backward(job, nodes, "_reduce_scatter_base"),
        *sort,
        applied_backward(name, file, nodes["experts:fc2"], *fc2),
        evaluate("WeightedSwiGLUFunctionBackward", nodes["experts:activation"], activation),
        applied_backward(name, file, nodes["experts:fc1"], *fc1),
        *accumulate(job, "expert", 2, reduces),
        *_expert_tensor_backward(job, nodes, "_allgather_base"),
    )
    dispatch = (
        *_all_to_all(job, nodes, "dispatch", current, tokens=False, backward=True),
        *_all_to_all(job, nodes, "dispatch", current, backward=True),
    )
    return Parts((*permute, *_router_backward(job, nodes)), dispatch, experts, combine)


def _orders_backward(job: Job, nodes: Nodes) -> tuple[tuple[Row, ...], tuple[Row, ...], tuple[Row, ...]]:
    """The backward of the orders of tokens: behind the combine, at the experts, and before the dispatch."""
    if _permutes_on_the_way(job):
        return (), (), ()
    moved = _moved(job)
    merging = kernels.fused("unpermute_backward", 3 * moved)
    unpermute = evaluate("_moe_unpermute_mask_mapBackward", nodes["unpermute"], merging)
    sort = evaluate("_moe_chunk_sortBackward", -1, _by_tokens(kernels.fused("sort_chunks", 2 * moved)))
    permute = evaluate("_moe_permute_mask_mapBackward", nodes["permute"], kernels.fused("unpermute", 2 * moved))
    return (unpermute,), (sort,), (permute,)


def _router_backward(job: Job, nodes: Nodes) -> tuple[Row, ...]:
    scores, experts = _scores(job), job.settings.expert_count
    rows = [
        evaluate(name, nodes[role], op(operator, kernels.custom("scatter", 2 * scores)))
        for name, role, operator in (
            ("ScatterBackward0", "router:scatter", "aten::gather"),
            ("SoftmaxBackward0", "router:softmax", "aten::_softmax_backward_data"),
            ("TopkBackward0", "router:topk", "aten::value_selecting_reduction_backward"),
        )
    ]
    products = [
        kernels.matmul(job.shape.shard, job.shape.width, experts),
        kernels.matmul(experts, job.shape.width, job.shape.shard),
    ]
    body = [builtin("method mm of type object at 0x", op("aten::mm", product)) for product in products]
    rows.append(applied_backward("RouterGatingLinearFunction", UTILS, nodes["router:gate"], *body))
    return tuple(rows)
