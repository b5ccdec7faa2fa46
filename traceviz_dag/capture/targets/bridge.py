"""``ConfigContainer`` snippets for Megatron Bridge, today's main and releases."""

from __future__ import annotations

from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.rendering import Rendering


def fields(config: ProfilingConfig, *, today: bool) -> dict[str, object]:
    """The fields of Bridge's ``ProfilingConfig``.

    Args:
        today: for main since February 2026; else for releases up to 0.3, which have no switches for stacks and shapes.
    """
    found: dict[str, object] = {
        "use_nsys_profiler": config.use_nsys_profiler,
        "use_pytorch_profiler": config.use_pytorch_profiler,
        "profile_step_start": config.profile_step_start,
        "profile_step_end": config.profile_step_end,
        "profile_ranks": list(config.ranks()),
        "record_shapes": config.record_shapes,
        "record_memory_history": config.record_memory_history,
        "memory_snapshot_path": config.memory_snapshot_path,
        "nvtx_ranges": config.nvtx_ranges,
    }
    if today and config.use_pytorch_profiler:
        found["pytorch_profiler_collect_shapes"] = config.record_shapes
        found["pytorch_profiler_collect_callstack"] = config.with_stack
    return found


def render(config: ProfilingConfig) -> list[Rendering]:
    """The snippets."""
    notes = ("Every rank is named: Bridge's default is rank 0, and an empty list means none in releases, all in main.",)
    older: tuple[str, ...] = notes
    if config.use_pytorch_profiler and not config.with_stack:
        older = (*notes, "These releases record call stacks always.")
    return [
        Rendering("bridge", "Megatron Bridge, today's main", _snippet(fields(config, today=True)), notes),
        Rendering("bridge-older", "Megatron Bridge, releases up to 0.3", _snippet(fields(config, today=False)), older),
    ]


def _snippet(given: dict[str, object]) -> str:
    lines = "\n".join(f"    {name}={value!r}," for name, value in given.items())
    head = "from megatron.bridge.training.config import ProfilingConfig"
    return f"{head}\n\nconfig.profiling = ProfilingConfig(\n{lines}\n)\nconfig.profiling.finalize()"
