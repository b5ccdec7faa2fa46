"""A ``ConfigContainer`` snippet for Megatron Bridge."""

from __future__ import annotations

from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.rendering import Rendering


def fields(config: ProfilingConfig) -> dict[str, object]:
    """The fields of Bridge's ``ProfilingConfig``."""
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
    if config.use_pytorch_profiler:
        found["pytorch_profiler_collect_shapes"] = config.record_shapes
        found["pytorch_profiler_collect_callstack"] = config.with_stack
    return found


def render(config: ProfilingConfig) -> list[Rendering]:
    """The snippet."""
    lines = [f"    {name}={value!r}," for name, value in fields(config).items()]
    text = "\n".join(
        [
            "from megatron.bridge.training.config import ProfilingConfig",
            "",
            "config.profiling = ProfilingConfig(",
            *lines,
            ")",
            "config.profiling.finalize()",
        ]
    )
    notes = [
        "Every rank is named: Bridge's default is rank 0; an empty list means none in older releases, all in newer ones."
    ]
    if config.use_pytorch_profiler:
        notes.append("Before February 2026 drop the two pytorch_profiler_collect_ lines; stacks are always on there.")
    return [Rendering("bridge", "Megatron Bridge", text, tuple(notes))]
