"""What the code of a call stack does: a forward pass, a backward pass, the optimizer …"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from traceviz_dag.read.memory.snapshot import Frame, Stacks


class Role(StrEnum):
    """What the code of a stack does."""

    GRADIENT_BUFFER = "gradient_buffer"
    COMMUNICATION = "communication"
    INPUT = "input"
    OPTIMIZER = "optimizer"
    ZERO_GRADIENTS = "zero_gradients"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    FORWARD = "forward"
    CONSTRUCTION = "construction"
    OTHER = "other"
    FRAMELESS = "frameless"


_OPTIMIZER_LIBRARY = re.compile(
    r"(?:^|/)(?:torch/optim/|megatron/core/optimizer/|(?:apex|transformer_engine)/.*optimizers/)"
)
_OPTIMIZER_FILE = re.compile(r"(?:^|/)\w*optim\w*\.py$")
_OPTIMIZER_NAMES = frozenset({"step", "_step", "update", "init_state", "_init_state", "_init_group"})
"""Of files of anyone: a script may be named for the optimizer that it uses, and be in every stack."""
_NOT_OPTIMIZER = frozenset({"zero_grad", "zero_grad_buffer", "get_megatron_optimizer", "reload_model_params"})
_COMMUNICATION_FILES = re.compile(
    r"(?:^|/)(?:distributed_c10d|p2p_communication|tensor_parallel/mappings|_functional_collectives|fused_a2a|param_and_grad_buffer)\.py$"
)
_COMMUNICATION_CODE = re.compile(r"\bc10d::|ProcessGroup(?:NCCL|Wrapper)|ncclMemAlloc")
_BUFFERS = re.compile(r"(?:^|/)param_and_grad_buffer\.py$")
_INPUT_NAMES = frozenset({"get_batch", "get_batch_on_this_tp_rank", "get_batch_on_this_cp_rank", "get_data"})
_INPUT_FILES = re.compile(r"(?:^|/)(?:torch/utils/data/|\w*data_?loader\w*\.py$|\w*data_iterator\w*\.py$)")
_ENGINE = re.compile(r"torch::autograd::(?:python::Python)?Engine::|Backward\d+::apply|torch::autograd::AccumulateGrad")
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply")
_BACKWARD_NAMES = frozenset({"backward_step", "_engine_run_backward", "backward_pass", "custom_backward"})
_CHECKPOINT = re.compile(r"(?:^|/)(?:torch/utils/checkpoint|tensor_parallel/random|checkpoint\w*)\.py$")
_FORWARD_NAMES = frozenset({"forward", "_call_impl", "_wrapped_call_impl", "forward_step", "__call__", "forward_impl"})
_CONSTRUCTION_NAMES = frozenset(
    {"__init__", "reset_parameters", "_apply", "model_provider", "get_model", "setup_model_and_optimizer"}
)
FUNCTIONS = (
    _OPTIMIZER_NAMES
    | _NOT_OPTIMIZER
    | _INPUT_NAMES
    | _BACKWARD_NAMES
    | _FORWARD_NAMES
    | _CONSTRUCTION_NAMES
    | {"backward"}
)
"""Names of functions, of whomever, that show the role of a stack."""

_LIBRARIES = frozenset({"torch", "einops", "transformer_engine", "apex", "flash_attn", "triton", "numpy", "importlib"})
_CALLING = frozenset({"_call_impl", "_wrapped_call_impl"})
"""How modules call each other; they say nothing of who asked."""
_PLUMBING = frozenset({"<frozen", "contextlib.py", "runpy.py", "threading.py", "functools.py"})


def roles_of(stacks: Stacks) -> list[Role]:
    """The role of every stack.

    Megatron-core allocates the buffers of parameters and of gradients in one function, the parameters' first: where two
    of its lines allocate, the upper one makes parameters.
    """
    every = [stacks.of(number) for number in range(len(stacks))]
    lines = [next((one.line for one in frames if _is_buffer(one)), None) for frames in every]
    known = {line for line in lines if line is not None}
    upper = min(known) if len(known) > 1 else None
    return [
        Role.CONSTRUCTION if line is not None and line == upper else role_of(frames)
        for frames, line in zip(every, lines, strict=True)
    ]


def role_of(frames: Sequence[Frame]) -> Role:
    """What the code of a stack does, from the most special observation to the most general.

    A name with "autograd" in it marks nothing: forward passes record their operators with it.
    """
    python = [frame for frame in frames if frame.is_python]
    code = [frame.name for frame in frames if not frame.is_python]
    zeroes = any(one.name.startswith("zero_grad") for one in python)
    of_gradients = any(_is_buffer(one) or "grad_buffer" in one.name for one in python)
    communicates = python and _COMMUNICATION_FILES.search(python[0].file)
    backward = any(map(_ENGINE.search, code)) or any(map(_is_backward, python))
    tried = (
        (Role.FRAMELESS, not frames),
        (Role.ZERO_GRADIENTS, zeroes),
        (Role.GRADIENT_BUFFER, of_gradients),
        (Role.COMMUNICATION, communicates or any(map(_COMMUNICATION_CODE.search, code))),
        (Role.INPUT, any(one.name in _INPUT_NAMES or _INPUT_FILES.search(one.file) for one in python)),
        (Role.OPTIMIZER, any(map(_is_optimizer, python))),
        (Role.RECOMPUTE, backward and _recomputes(python)),
        (Role.BACKWARD, backward),
        (Role.FORWARD, any(one.name in _FORWARD_NAMES for one in python)),
        (Role.CONSTRUCTION, any(one.name in _CONSTRUCTION_NAMES for one in python)),
    )
    return next((role for role, holds in tried if holds), Role.OTHER)


def site_of(frames: Sequence[Frame]) -> str:
    """Who asked for the memory: the innermost Python frame that is no library's, else the innermost of any."""
    asking = _asking(frames)
    if asking is not None:
        return asking.text
    node = next((match[1] for frame in frames if (match := _NODE.search(frame.name))), None)
    if node is not None:
        return f"autograd: {node}"
    return "C++ code" if frames else "no frames"


def module_of(frames: Sequence[Frame]) -> str:
    """The source file of who asked for the memory; as :func:`site_of` where there is no Python frame."""
    asking = _asking(frames)
    return site_of(frames) if asking is None else asking.file


def _asking(frames: Sequence[Frame]) -> Frame | None:
    python = [frame for frame in frames if frame.is_python]
    own = [frame for frame in python if frame.file.split("/")[0] not in _LIBRARIES | _PLUMBING]
    return next(iter(own or python), None)


def python_text(frames: Sequence[Frame]) -> str:
    """The Python frames of a stack as one text, outermost first, without those by which modules call each other; the
    autograd node or C++ code where there are none."""
    python = [frame.text for frame in reversed(frames) if frame.is_python and frame.name not in _CALLING]
    return " › ".join(python) if python else site_of(frames)


def _is_buffer(frame: Frame) -> bool:
    return frame.name == "__init__" and _BUFFERS.search(frame.file) is not None


def _is_optimizer(frame: Frame) -> bool:
    if _OPTIMIZER_LIBRARY.search(frame.file):
        return frame.name not in _NOT_OPTIMIZER
    return frame.name in _OPTIMIZER_NAMES and _OPTIMIZER_FILE.search(frame.file) is not None


def _is_backward(frame: Frame) -> bool:
    return frame.name in _BACKWARD_NAMES or (frame.name == "backward" and not frame.file.endswith("/_tensor.py"))


def _recomputes(python: Sequence[Frame]) -> bool:
    """A checkpoint's backward pass that runs a forward pass: frames of the forward pass lie inside of it."""
    inside = next((place for place, one in enumerate(python) if _CHECKPOINT.search(one.file)), None)
    return inside is not None and any(one.name in _FORWARD_NAMES for one in python[:inside])
