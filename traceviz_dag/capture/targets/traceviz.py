"""The variables of TraceViz's patch, and those of our plugin."""

from __future__ import annotations

import shlex

from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.rendering import Rendering, rank_words


def plugin_variables(config: ProfilingConfig) -> dict[str, str]:
    """The plugin's variables."""
    ranks = config.profile_ranks if isinstance(config.profile_ranks, str) else rank_words(config.ranks())
    first, last = config.profile_step_start, config.profile_step_end - 1
    return {
        "TRACEVIZ_CAPTURE_ITERATIONS": str(first) if first == last else f"{first}-{last}",
        "TRACEVIZ_CAPTURE_OUT": config.output_folder,
        "TRACEVIZ_CAPTURE_RANKS": ranks,
        "TRACEVIZ_CAPTURE_STACKS": str(int(config.with_stack)),
        "TRACEVIZ_CAPTURE_SHAPES": str(int(config.record_shapes)),
        "TRACEVIZ_CAPTURE_WARMUP": str(config.warmup_steps),
        **({"TRACEVIZ_CAPTURE_MEMORY": "history"} if config.record_memory_history else {}),
    }


def render(config: ProfilingConfig) -> list[Rendering]:
    """Plugin and patch; none where the PyTorch profiler is off."""
    if not config.use_pytorch_profiler:
        return []
    patch = {
        "PROFILE_ALLRANKS": str(int(config.profile_ranks == "all")),
        "PROFILER_WAIT_STEPS": str(config.wait),
        "PROFILER_WARMUP_STEPS": str(config.warmup_steps),
    }
    further: tuple[str, ...] = ()
    if config.record_memory_history:
        further += ("Each rank's memory history is beside its trace: iteration_N/rank_RRRR_iter_N.memory.pickle.",)
    if config.execution_traces:
        further += ("The plugin writes no Chakra execution traces: take Megatron's own profiler for them.",)
    return [
        Rendering(
            "plugin",
            "Our plugin (no patch, no profiler arguments of Megatron's)",
            exports(plugin_variables(config)),
            (
                "traceviz capture plugin > traceviz_capture.py, then python -m traceviz_capture SCRIPT.",
                f"Writes {config.output_folder}/iteration_N/rank_RRRR_iter_N.pt.trace.json.gz, N as the log counts.",
                "Leave --profile away: a process has room for one profiler, and the plugin gives way to the job's own.",
                *further,
            ),
        ),
        Rendering(
            "traceviz",
            "TraceViz's patch",
            exports(patch),
            (
                "The patch takes these for --profile-step-start, which it ignores, and records on after the range.",
                "It applies to Megatron-LM of 15 January to 11 February 2026 alone.",
            ),
        ),
    ]


def exports(variables: dict[str, str]) -> str:
    """A line of shell for each variable."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
