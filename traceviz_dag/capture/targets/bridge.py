"""``ConfigContainer`` snippets for Megatron Bridge, releases 0.4 to 0.6 and older ones."""

from __future__ import annotations

from collections.abc import Sequence

from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.rendering import Rendering


def fields(config: ProfilingConfig, *, today: bool) -> dict[str, object]:
    """The fields of Bridge's ``ProfilingConfig``.

    Args:
        today: for releases 0.4 to 0.6; else for those up to 0.3, which have no switches for stacks, shapes and
            execution traces: their record_shapes is what switches shapes on, today's is nsys's alone.
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
        found["pytorch_profiler_collect_chakra"] = config.execution_traces
    return found


def render(config: ProfilingConfig) -> list[Rendering]:
    """The snippets."""
    notes: tuple[str, ...] = (
        "Every rank is named: Bridge's default is rank 0, and an empty list means none up to 0.3, all from 0.4 on.",
    )
    if config.record_memory_history:
        names = ", ".join(config.rank_snapshot_path(rank) for rank in config.ranks()[:3])
        notes += (f"Each of these ranks dumps its memory history: {names}{' …' if len(config.ranks()) > 3 else ''}.",)
    older = notes
    if config.record_memory_history:
        notes += ("From 0.5 on that is at profile_step_end.",)
        notes += ("Bridge 0.4.0 alone needs logger.tensorboard_dir for it.",)
        older += ("logger.tensorboard_dir must be set for it.",)
    if config.execution_traces:
        older += ("These releases write no Chakra execution traces.",)
        notes += ("Execution traces are written to chakra/rank-N.json.gz beside the tensorboard folder.",)
    if config.use_pytorch_profiler and not config.with_stack:
        older += ("These releases record call stacks always.",)
    folders = config.folders()[1:]
    return [
        Rendering("bridge", "Megatron Bridge 0.4 to 0.6", _snippet(fields(config, today=True), folders), notes),
        Rendering("bridge-older", "Megatron Bridge up to 0.3", _snippet(fields(config, today=False), folders), older),
    ]


def _snippet(given: dict[str, object], folders: Sequence[str]) -> str:
    lines = "\n".join(f"    {name}={value!r}," for name, value in given.items())
    head = "from megatron.bridge.training.config import ProfilingConfig"
    text = f"{head}\n\nconfig.profiling = ProfilingConfig(\n{lines}\n)\nconfig.profiling.finalize()"
    made = "".join(f"\nos.makedirs({folder!r}, exist_ok=True)" for folder in folders)
    return f"import os\n\n{text}{made}" if made else text
