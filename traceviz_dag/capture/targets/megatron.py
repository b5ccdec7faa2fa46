"""Megatron-LM's own arguments, for main and for releases back to core 0.10."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.explain import warnings
from traceviz_dag.capture.releases import CORE_0_10, MAIN, RELEASES, Release
from traceviz_dag.capture.rendering import Rendering, iteration_words


def arguments(config: ProfilingConfig, release: Release = MAIN) -> list[str]:
    """The arguments, one per word, that a release takes."""
    words = ["--profile"]
    if config.use_pytorch_profiler:
        words.append("--use-pytorch-profiler")
    words += [
        "--profile-step-start",
        str(config.profile_step_start),
        "--profile-step-end",
        str(config.profile_step_end),
    ]
    if not (release.collects and config.profile_ranks == "all"):
        words += ["--profile-ranks", *map(str, config.ranks())]
    if release.collects and config.use_pytorch_profiler:
        words += ["--pytorch-profiler-collect-shapes"] * config.record_shapes
        words += ["--pytorch-profiler-collect-callstack"] * config.with_stack
        words += ["--pytorch-profiler-collect-chakra"] * config.execution_traces
    if release.names_ranges:
        words += ["--record-shapes"] * (config.record_shapes and config.use_nsys_profiler)
        words += ["--nvtx-ranges"] * config.nvtx_ranges
    if config.record_memory_history:
        words += ["--record-memory-history", "--memory-snapshot-path", config.memory_snapshot_path]
    if config.use_pytorch_profiler:
        words += ["--tensorboard-dir", f"{config.output_folder}/tensorboard"]
    return words


def render(config: ProfilingConfig) -> list[Rendering]:
    """The arguments for main and for each generation of releases."""
    targets = {MAIN: "megatron", CORE_0_10: "megatron-older"}
    return [
        Rendering(
            targets.get(release, f"megatron-{release.name}"),
            release.title,
            shlex.join(arguments(config, release)),
            tuple(_notes(config, release)),
        )
        for release in RELEASES
    ]


def _notes(config: ProfilingConfig, release: Release) -> Iterator[str]:
    folder = config.output_folder
    if config.use_nsys_profiler:
        yield "nsys writes the files: see its line."
    elif release.collects:
        files = f"Writes {folder}/torch_profile/rank-N.json.gz; a rerun overwrites them."
        yield files + (f" Execution traces: {folder}/chakra/rank-N.json.gz." if config.execution_traces else "")
    else:
        yield f"Writes {folder}/tensorboard/HOST_PID.TIME.pt.trace.json, the rank only inside."
    yield from _left_out(config, release)
    if config.use_pytorch_profiler:
        yield f"Recorded is what the log calls {iteration_words(config.iterations)}."
        if config.warmup_steps != 1:
            yield "Megatron-LM warms up for one iteration, whatever is configured."
    else:
        yield f"Recorded is what the log calls {iteration_words(config.iterations)}: nsys starts one later."
    if config.record_memory_history:
        yield from _memory(config, release)
    yield from warnings([*_of_the_job(config), *arguments(config, release)], release)


def _of_the_job(config: ProfilingConfig) -> list[str]:
    """What the training script is called with beside the profiler's arguments."""
    job = config.job
    sizes = {"tensor-model": job.tp, "pipeline-model": job.pp, "context": job.cp}
    words = [word for name, size in sizes.items() for word in (f"--{name}-parallel-size", str(size))]
    return [*words, *job.command.split()]


def _left_out(config: ProfilingConfig, release: Release) -> Iterator[str]:
    """What the release does not know, or does without being asked."""
    if not release.collects:
        yield "Every rank is named: without --profile-ranks these releases record rank 0 alone."
        if config.use_pytorch_profiler and not (config.with_stack and config.record_shapes):
            yield "These releases record call stacks and shapes always."
        if config.execution_traces:
            yield "Chakra execution traces came with core 0.17 and are left out."
    if not release.names_ranges:
        if config.nvtx_ranges:
            yield "--nvtx-ranges came with core 0.18 and is left out."
        if config.use_nsys_profiler:
            yield "Autograd's NVTX ranges have shapes always; --record-shapes came with core 0.18 and is left out."


def _memory(config: ProfilingConfig, release: Release) -> Iterator[str]:
    """Who dumps memory history, and where."""
    if release.rank_snapshots:
        names = config.rank_snapshot_path("RANK")
        yield f"Each rank that records dumps its memory history, to {names}, anew at every log interval."
    else:
        yield (
            f"The last rank alone ({config.job.world_size - 1}) dumps its memory history, to "
            f"{config.memory_snapshot_path}, anew at every log interval."
        )
    yield f"First: mkdir -p {shlex.join(config.folders())}"
