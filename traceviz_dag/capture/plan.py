"""A profiling configuration as everything that a launch needs, with what will be written and what it costs."""

from __future__ import annotations

from traceviz_dag.capture.configuration import ProfilingConfig
from traceviz_dag.capture.explain import EARLY, EARLY_ITERATIONS
from traceviz_dag.capture.rendering import Rendering, iteration_words, rank_words
from traceviz_dag.capture.sizes import readable_bytes, readable_seconds
from traceviz_dag.capture.targets import bridge, launch, megatron, nemo_run, nsys, traceviz

TARGETS = (traceviz, megatron, bridge, nemo_run, nsys, launch)


def plan(config: ProfilingConfig) -> list[Rendering]:
    """Every target's text."""
    return [rendering for target in TARGETS for rendering in target.render(config)]


def consequences(config: ProfilingConfig) -> tuple[str, ...]:
    """What will be written where, how large, and what the capture does to the job; one sentence each."""
    ranks, iterations = config.ranks(), config.iterations
    choice = f" ({config.profile_ranks})" if isinstance(config.profile_ranks, str) else ""
    who = (
        f"Rank{'s' * (len(ranks) > 1)} {rank_words(ranks)}{choice} of {config.job.world_size} "
        f"record{'s' * (len(ranks) == 1)} {iteration_words(iterations)}."
    )
    disturbance = (
        "The profiler costs the host time in every operator: measured times are slightly higher than in normal "
        "operation, and more so where the host is the bottleneck. Compare with a run without it before quoting a step "
        "time."
    )
    sentences = [who, disturbance]
    if config.use_pytorch_profiler:
        found = config.estimate()
        sentences.insert(
            1,
            f"About {readable_bytes(found.bytes_rank)} of JSON a rank and iteration, "
            f"{readable_bytes(found.bytes_raw)} in all, {readable_bytes(found.bytes_compressed)} compressed, in "
            f"{config.output_folder}; while ranks write, the job pauses for about "
            f"{readable_seconds(found.seconds)} in all. An order of magnitude, from CPU runs: a GPU's rows come on "
            "top.",
        )
        if len(ranks) < config.job.world_size:
            sentences.append(
                "Ranks that do not record wait in their next collective while the others write; the time-out of the "
                "process groups must be longer than that."
            )
        if config.with_stack:
            sentences.append("Call stacks cost the most; without them phases and micro-batches are known in part only.")
    else:
        sentences.insert(1, f"Reports are written to {config.output_folder}; their size was not measured here.")
    if len(iterations) < 3:
        sentences.append("Fewer than three iterations show no spread: take numbers as one sample.")
    if iterations[0] < EARLY_ITERATIONS:
        sentences.append(f"{EARLY.capitalize()}: later ones are typical.")
    if config.record_memory_history:
        sentences.append(
            "Memory history costs host memory while it runs. Megatron-LM's main and Megatron Bridge dump it on each "
            f"rank that records, to {config.rank_snapshot_path('RANK')}; Megatron-LM up to core 0.19 on the last rank "
            f"({config.job.world_size - 1}) alone, to {config.memory_snapshot_path}; the plugin once for each rank and "
            "iteration, beside the trace."
        )
    return tuple(sentences)
