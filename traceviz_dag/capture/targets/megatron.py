"""Megatron-LM's own arguments, for today's main and for releases back to core 0.10."""

from __future__ import annotations

import shlex

from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.rendering import Rendering, iteration_words

RESUME_NOTE = (
    "After a resume Megatron-LM's PyTorch profiler counts from the process's start but stops at the logged iteration, "
    "so it records nothing or too little; the plugin counts as the log does."
)


def arguments(config: ProfilingConfig, *, today: bool = True) -> list[str]:
    """The arguments, one a word.

    Args:
        today: for main since February 2026 (switches for stacks and shapes, no ranks means all); else for releases
            from core 0.10, which have neither.
    """
    words = ["--profile"]
    if config.use_pytorch_profiler:
        words.append("--use-pytorch-profiler")
    words += [
        "--profile-step-start",
        str(config.profile_step_start),
        "--profile-step-end",
        str(config.profile_step_end),
    ]
    if not (today and config.profile_ranks == "all"):
        words += ["--profile-ranks", *map(str, config.ranks())]
    if today and config.use_pytorch_profiler:
        words += ["--pytorch-profiler-collect-shapes"] * config.record_shapes
        words += ["--pytorch-profiler-collect-callstack"] * config.with_stack
        words += ["--pytorch-profiler-collect-chakra"] * config.execution_traces
    if today and config.use_nsys_profiler:
        words += ["--record-shapes"] * config.record_shapes
    if today:
        words += ["--nvtx-ranges"] * config.nvtx_ranges
    if config.record_memory_history:
        words += ["--record-memory-history", "--memory-snapshot-path", config.memory_snapshot_path]
    if config.use_pytorch_profiler:
        words += ["--tensorboard-dir", f"{config.output_folder}/tensorboard"]
    return words


def render(config: ProfilingConfig) -> list[Rendering]:
    """The arguments for both generations."""
    if config.use_pytorch_profiler:
        steps = f"Recorded is what the log calls {iteration_words(config.iterations)}."
        today_files = f"Writes {config.output_folder}/torch_profile/rank-N.json.gz; a rerun overwrites them."
        older_files = f"Writes {config.output_folder}/tensorboard/HOST_PID.TIME.pt.trace.json, the rank only inside."
        warmup = (
            () if config.warmup_steps == 1 else ("Megatron-LM warms up for one iteration, whatever is configured.",)
        )
        common: tuple[str, ...] = (steps, RESUME_NOTE, *warmup)
    else:
        today_files = older_files = "nsys writes the files: see its line."
        common = (f"Recorded is what the log calls {iteration_words(config.iterations)}: nsys starts one later.",)
    if config.execution_traces:
        today_files += f" Execution traces: {config.output_folder}/chakra/rank-N.json.gz."
    if config.record_memory_history:
        common += (
            f"The last rank alone ({config.job.world_size - 1}) dumps its memory history, to "
            f"{config.memory_snapshot_path}, anew at every log interval.",
            f"First: mkdir -p {shlex.join(config.folders())}",
        )
    older: tuple[str, ...] = (
        older_files,
        "Every rank is named: without --profile-ranks these releases record rank 0 alone.",
    )
    if config.use_pytorch_profiler and not (config.with_stack and config.record_shapes):
        older += ("These releases record call stacks and shapes always.",)
    if config.execution_traces:
        older += ("Chakra execution traces came with main in February 2026 and are left out.",)
    if config.nvtx_ranges or (config.use_nsys_profiler and config.record_shapes):
        older += ("--nvtx-ranges and --record-shapes came with main in February 2026 and are left out.",)
    return [
        Rendering("megatron", "Megatron-LM, today's main", shlex.join(arguments(config)), (today_files, *common)),
        Rendering(
            "megatron-older",
            "Megatron-LM, releases from core 0.10 to 0.16",
            shlex.join(arguments(config, today=False)),
            (*older, *common),
        ),
    ]
