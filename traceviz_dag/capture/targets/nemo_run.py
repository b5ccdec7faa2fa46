"""The NeMo-Run plugins that come with Megatron Bridge."""

from __future__ import annotations

from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.rendering import Rendering


def render(config: ProfilingConfig) -> list[Rendering]:
    """``NsysPlugin`` or ``PyTorchProfilerPlugin``, whichever the configuration asks for."""
    name = "NsysPlugin" if config.use_nsys_profiler else "PyTorchProfilerPlugin"
    given: dict[str, object] = {
        "profile_step_start": config.profile_step_start,
        "profile_step_end": config.profile_step_end,
        "profile_ranks": list(config.ranks()),
        "record_shapes": config.record_shapes,
    }
    if config.use_nsys_profiler:
        given |= {"nsys_trace": list(config.nsys_trace), "nsys_gpu_metrics": config.nsys_gpu_metrics}
    else:
        given |= {
            "record_memory_history": config.record_memory_history,
            "memory_snapshot_path": config.memory_snapshot_path,
        }
    arguments = "\n".join(f"    {key}={value!r}," for key, value in given.items())
    text = f"from megatron.bridge.recipes.run_plugins import {name}\n\nplugins = [{name}(\n{arguments}\n)]"
    notes = [
        "The plugin takes run.Script tasks only: for run.Partial it raises NotImplementedError.",
        "The plugin takes an empty rank list for rank 0, so every rank is named.",
    ]
    further = {"shapes": config.record_shapes, "callstack": config.with_stack, "chakra": config.execution_traces}
    missing = [f"profiling.pytorch_profiler_collect_{name}=true" for name, wanted in further.items() if wanted]
    if config.use_pytorch_profiler and missing:
        notes.append(
            f"Its record_shapes reaches Bridge up to 0.3 alone; from 0.4 on add {' '.join(missing)} to the task's "
            "arguments, for the plugin has no fields for them."
        )
    if config.use_pytorch_profiler and config.record_memory_history:
        notes.append(
            f"Each rank dumps its memory history to {config.rank_snapshot_path('RANK')}; make its folder first."
        )
    if config.use_pytorch_profiler and config.nvtx_ranges:
        notes.append("The PyTorch profiler records no NVTX ranges: they are left out.")
    if config.use_nsys_profiler:
        further_nsys = ["profiling.nvtx_ranges=true"] * config.nvtx_ranges
        if config.record_memory_history:
            further_nsys += ["profiling.record_memory_history=true"]
            further_nsys += [f"profiling.memory_snapshot_path={config.memory_snapshot_path}"]
        if further_nsys:
            notes.append(
                f"The plugin has no fields for memory history and NVTX ranges: add {' '.join(further_nsys)} to the "
                "task's arguments."
            )
        notes.append("NeMo-Run calls nsys with --cuda-event-trace=false: waits between streams have no separate rows.")
        notes.append("Together with FaultTolerancePlugin Bridge drops nsys with a mere warning.")
    return [Rendering("nemo-run", f"NeMo-Run {name}", text, tuple(notes))]
