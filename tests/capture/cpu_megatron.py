"""Lets Megatron-core train on CPU over gloo: the calls of torch.cuda that it makes are answered by the CPU.

Schedules, point-to-point communication, gradient buffers and optimizer stay Megatron's own.
"""

import contextlib
import functools
import importlib

import torch

CPU = torch.device("cpu")
MAKERS = (
    "zeros",
    "empty",
    "ones",
    "tensor",
    "full",
    "arange",
    "rand",
    "randn",
    "ones_like",
    "zeros_like",
    "empty_like",
)


class Idle:
    """A stream or an event that has nothing to wait for."""

    cuda_stream, device = 0, CPU

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: Idle() if name == "record_event" else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def nothing(*_, **__):
    return None


def stand_in_for_cuda():
    cuda, generator = torch.cuda, torch.random
    cuda.current_device = lambda: CPU
    cuda.synchronize = cuda.set_device = cuda.empty_cache = nothing
    cuda.current_stream = lambda *_, **__: Idle()
    cuda.Stream = cuda.Event = Idle
    cuda.stream = lambda *_, **__: contextlib.nullcontext()
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *_, **__: generator.get_rng_state()
    cuda.set_rng_state = lambda state, *_, **__: generator.set_rng_state(state)
    cuda.is_current_stream_capturing = lambda: False
    cuda.memory_allocated = cuda.max_memory_allocated = lambda *_, **__: 0
    for name in MAKERS:
        setattr(torch, name, on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self
    of_type = torch.Tensor.type

    def type_name(self, *args, **kwargs):
        found = of_type(self, *args, **kwargs)
        return found.replace("torch.", "torch.cuda.") if isinstance(found, str) and not args else found

    torch.Tensor.type = type_name
    states = importlib.import_module("megatron.core.tensor_parallel.random")
    states._set_cuda_rng_state = lambda state, *_, **__: generator.set_rng_state(state)
    states._get_cuda_rng_state = lambda *_, **__: generator.get_rng_state()


def on_cpu(make):
    @functools.wraps(make)
    def wrapper(*args, **kwargs):
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = CPU
        return make(*args, **kwargs)

    return wrapper
