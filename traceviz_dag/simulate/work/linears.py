"""Tensor-parallel linear layers in the call tree, forward and backward, in Megatron's and Transformer Engine's form."""

from __future__ import annotations

from traceviz_dag.simulate.tree import Kernel, Node, Nodes, Row, Wait, builtin, evaluate, module, op, py
from traceviz_dag.simulate.work import kernels, quantized
from traceviz_dag.simulate.work.job import Job

FUNCTION = "torch/autograd/function.py"
APPLY = "method apply of FunctionMeta object at 0x"
LAYERS = "megatron/core/tensor_parallel/layers.py"
MAPPINGS = "megatron/core/tensor_parallel/mappings.py"
TE = quantized.TE
TE_ADAPTER = "megatron/core/extensions/transformer_engine.py"
_MEGATRON_LINEAR = "LinearWithGradAccumulationAndAsyncCommunication"


def applied(name: str, file: str, *children: Node, sequence: int = -1) -> Row:
    """A custom autograd function's forward: ``apply``, the bound method, its operator and the Python below."""
    inner = op(name, py(file, "forward", *children), sequence=sequence)
    return py(FUNCTION, "apply", builtin(APPLY, inner))


def applied_backward(name: str, file: str, sequence: int, *children: Node) -> Row:
    """The same function's backward inside the engine."""
    return evaluate(f"{name}Backward", sequence, py(FUNCTION, "apply", py(file, "backward", *children)))


def waited(event: str) -> Row:
    """A work handle is waited for: the compute stream waits for the event."""
    bound = builtin("method wait of pybind11_builtins.Work object at 0x", Wait(event))
    return py("torch/distributed/distributed_c10d.py", "wait", bound)


def te_product(job: Job, kernel: Kernel) -> Row:
    """A matrix product of Transformer Engine."""
    launched = (*quantized.swizzled(job, kernel.sizes[0][0] * kernel.sizes[0][1]), quantized.product(job, kernel))
    bound = builtin("method generic_gemm of PyCapsule object at 0x", *launched)
    return py(f"{TE}/cpp_extensions/gemm.py", "general_gemm", bound)


def matmul_operator(kernel: Kernel, owner: str = "type") -> Row:
    """A matrix product of ATen."""
    return builtin(f"method matmul of {owner} object at 0x", op("aten::matmul", op("aten::mm", kernel)))


def norm_forward(job: Job, nodes: Nodes, role: str) -> Row:
    """A layer norm of its own (Transformer Engine usually fuses it into the next linear)."""
    kernel = kernels.custom("layer_norm", 2 * job.activation_bytes)
    operators = op("aten::layer_norm", op("aten::native_layer_norm", kernel), sequence=nodes.new(role))
    functional = py(
        "torch/nn/functional.py", "layer_norm", builtin("method layer_norm of type object at 0x", operators)
    )
    return module("LayerNorm", py("torch/nn/modules/normalization.py", "forward", functional))


def norm_backward(job: Job, sequence: int) -> Row:
    """Backward of a layer norm."""
    nbytes = 3 * job.activation_bytes
    grads = kernels.custom("layer_norm_grad_input", nbytes), kernels.custom("layer_norm_grad_weight", 0.7 * nbytes)
    return evaluate("NativeLayerNormBackward0", sequence, op("aten::native_layer_norm_backward", *grads))


def column_forward(
    job: Job,
    nodes: Nodes,
    role: str,
    columns: int,
    *before: Node,
    norm: bool = True,
    head: bool = False,
    weights: bool = False,
) -> Row:
    """A column-parallel linear: gathers the sequence, multiplies.

    Args:
        before: rows of pre-hooks. norm: Transformer Engine's fused layer norm comes first.
        head: the output layer, which is Megatron's own in either implementation.
        weights: whether a quantized product's weights are cast, too.
    """
    buffered = job.te and not head
    gather = (job.communicate_tensor("_allgather_base", "", buffered),) if job.shards_sequence else ()
    product = kernels.matmul(job.shape.tokens, columns, job.shape.width)
    if head or not job.te:
        linear = _megatron_linear(nodes.new(role), gather, product)
        return module("ColumnParallelLinear", *before, py(LAYERS, "forward", py(LAYERS, "_forward_impl", linear)))
    body: list[Node] = []
    if norm:
        kernel = kernels.fused("te_norm", 2 * job.activation_bytes)
        body.append(builtin("method layernorm_fwd of PyCapsule object at 0x", kernel))
    body += quantized.cast(job, job.shape.shard * job.shape.width, shard=True)
    if gather:
        body.append(py(f"{TE}/distributed.py", "gather_along_first_dim", *gather))
    body += quantized.cast(job, columns * job.shape.width, weight=True) if weights else ()
    body.append(te_product(job, product))
    function, file, title = _te_names(norm)
    inner = applied(function, file, *body, sequence=nodes.new(role))
    return module(title, *before, py(TE_ADAPTER, "forward", py(file, "forward", inner)))


def _te_names(norm: bool) -> tuple[str, str, str]:
    if norm:
        return "_LayerNormLinear", f"{TE}/module/layernorm_linear.py", "TELayerNormColumnParallelLinear"
    return "_Linear", f"{TE}/module/linear.py", "TEColumnParallelLinear"


def _megatron_linear(sequence: int, gather: tuple[Node, ...], product: Kernel) -> Row:
    forward = py(LAYERS, "forward", *gather, py(LAYERS, "_linear_forward", matmul_operator(product)))
    inner = op(_MEGATRON_LINEAR, py("torch/amp/autocast_mode.py", "decorate_fwd", forward), sequence=sequence)
    called = py(FUNCTION, "apply", builtin(APPLY, inner))
    return py(LAYERS, "linear_with_grad_accumulation_and_async_allreduce", called)


def _megatron_linear_backward(sequence: int, *children: Node) -> Row:
    backward = py("torch/amp/autocast_mode.py", "decorate_bwd", py(LAYERS, "backward", *children))
    return evaluate(f"{_MEGATRON_LINEAR}Backward", sequence, py(FUNCTION, "apply", backward))


def column_backward(
    job: Job, sequence: int, columns: int, norm: bool = True, head: bool = False, last: tuple[Node, ...] = ()
) -> Row:
    """Backward of a column-parallel linear: the input's gradient is reduced while the weight's is computed.

    Args:
        last: what a module of Transformer Engine does at its end.
    """
    shape = job.shape
    grad_input = kernels.matmul(shape.tokens, shape.width, columns, "NNN")
    grad_weight = kernels.matmul(columns, shape.width, shape.tokens, "NTN")
    before: list[Node] = []
    between: list[Node] = []
    after: list[Node] = []
    buffered = job.te and not head
    if job.shards_sequence:
        before = [job.communicate_tensor("_allgather_base", "tp:input", buffered)]
        between = [job.communicate_tensor("_reduce_scatter_base", "tp:grad", buffered), waited("tp:input")]
    elif job.settings.tp > 1:
        between = [job.communicate_tensor("allreduce", "tp:grad")]
    if between:
        after = [waited("tp:grad")]
    if head or not job.te:
        first = matmul_operator(grad_input, "Tensor")
        weight = builtin("function wgrad_gemm_accum_fp32", grad_weight)
        return _megatron_linear_backward(sequence, *before, first, *between, weight, *after)
    gradient = quantized.cast(job, shape.tokens * columns)
    body = [*gradient, *before, te_product(job, grad_input), *between, te_product(job, grad_weight), *after]
    if norm:
        main = kernels.fused("te_norm_backward", 3 * job.activation_bytes)
        finish = kernels.fused("te_norm_finalize", 0.1 * job.activation_bytes)
        body.append(builtin("method layernorm_bwd of PyCapsule object at 0x", main, finish))
    body += last
    function, file, _ = _te_names(norm)
    return applied_backward(function, file, sequence, *body)


def row_forward(job: Job, nodes: Nodes, role: str, inputs: int, weights: bool = False) -> Row:
    """A row-parallel linear: multiplies, then sums over the tensor-parallel group; ``weights``: as above."""
    product = kernels.matmul(job.shape.tokens, job.shape.width, inputs)
    operation = "_reduce_scatter_base" if job.shards_sequence else "allreduce"
    summed = (job.communicate_tensor(operation, "", job.te),) if job.settings.tp > 1 else ()
    if not job.te:
        linear = py(LAYERS, "_forward_impl", _megatron_linear(nodes.new(role), (), product))
        mapping = _summing_map(job, nodes.new(f"{role}:sum"), summed) if summed else ()
        return module("RowParallelLinear", py(LAYERS, "forward", linear, *mapping))
    body: list[Node] = [*quantized.cast(job, job.shape.tokens * inputs)]
    body += quantized.cast(job, inputs * job.shape.width, weight=True) if weights else ()
    body.append(te_product(job, product))
    if summed:
        function = "reduce_scatter_along_first_dim" if job.shards_sequence else "allreduce"
        body.append(py(f"{TE}/distributed.py", function, *summed))
    file = f"{TE}/module/linear.py"
    inner = applied("_Linear", file, *body, sequence=nodes.new(role))
    return module("TERowParallelLinear", py(TE_ADAPTER, "forward", py(file, "forward", inner)))


def _summing_map(job: Job, sequence: int, summed: tuple[Row, ...]) -> tuple[Row, ...]:
    name, outer, helper = summing_names(job)
    return (py(MAPPINGS, outer, applied(name, MAPPINGS, py(MAPPINGS, helper, *summed), sequence=sequence)),)


def summing_names(job: Job) -> tuple[str, str, str]:
    """Autograd function, mapping and helper that sum over the tensor-parallel group."""
    if job.shards_sequence:
        outer = "reduce_scatter_to_sequence_parallel_region"
        return "_ReduceScatterToSequenceParallelRegion", outer, "_reduce_scatter_along_first_dim"
    return "_ReduceFromModelParallelRegion", "reduce_from_tensor_model_parallel_region", "_reduce"


def row_backward(job: Job, nodes: Nodes, role: str, inputs: int) -> tuple[Row, ...]:
    """Backward of a row-parallel linear: gathers the gradient, two products."""
    shape = job.shape
    grad_input = kernels.matmul(shape.tokens, inputs, shape.width, "NNN")
    grad_weight = kernels.matmul(shape.width, inputs, shape.tokens, "NTN")
    gather = (job.communicate_tensor("_allgather_base", "", job.te),) if job.shards_sequence else ()
    if job.te:
        body: list[Node] = [*quantized.cast(job, shape.shard * shape.width, shard=True)]
        body += [py(f"{TE}/distributed.py", "gather_along_first_dim", *gather)] if gather else []
        body += [te_product(job, grad_input), te_product(job, grad_weight)]
        return (applied_backward("_Linear", f"{TE}/module/linear.py", nodes[role], *body),)
    rows = []
    if job.settings.tp > 1:
        helper = (py(MAPPINGS, "_gather_along_first_dim", *gather),) if gather else ()
        rows.append(applied_backward(summing_names(job)[0], MAPPINGS, nodes[f"{role}:sum"], *helper))
    weight = builtin("function wgrad_gemm_accum_fp32", grad_weight)
    rows.append(_megatron_linear_backward(nodes[role], matmul_operator(grad_input, "Tensor"), weight))
    return tuple(rows)
