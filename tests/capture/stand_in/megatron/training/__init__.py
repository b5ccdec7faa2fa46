"""A stand-in for Megatron-LM's training package, which PyPI does not hold: the names that a capture relies on."""

from types import SimpleNamespace

_ARGS = SimpleNamespace(iteration=0, curr_iteration=None, profiler=None)


def get_args():
    return _ARGS
