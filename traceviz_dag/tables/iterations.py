"""One line an iteration: how it was captured, its step time and shares, and the nightly verdict on it."""

from __future__ import annotations

import pyarrow as pa

from traceviz_dag.tables.schema import BIGINT, BOOLEAN, BY_ITERATION, DOUBLE, INTEGER, RANKS, TEXT, Column, Table

NIGHT_COORDINATES = ("tp", "cp", "dp", "pp", "ep", "etp", "edp", "stage", "stages")
"""What places a rank in the job, as far as nights are compared by it."""

RUNS = Table(
    "runs",
    "One run as seen in one iteration: how it was captured, and whether its ranks agree on that.",
    BY_ITERATION,
    (
        Column("ranks", INTEGER, "Ranks with a readable trace."),
        Column("failed_ranks", RANKS, "Ranks whose trace, as it is now, could not be computed."),
        Column("partial_ranks", RANKS, "Ranks of whose trace a part could not be read."),
        Column("missing_ranks", RANKS, "Ranks without a trace, of those in captured_ranks, else of the world."),
        Column("expected_ranks", INTEGER, "World size as the topology or the headers state it; NULL where unknown."),
        Column(
            "captured_ranks",
            TEXT,
            "Ranks that the capture meant to record, such as 0-3, 6; NULL where the traces do not state them.",
        ),
        Column(
            "complete",
            BOOLEAN,
            "Whether each rank that should have a trace was read whole; NULL where nothing states how many should.",
        ),
        Column("backend", TEXT, "Communication backend; NULL where the ranks differ."),
        Column("device_name", TEXT, "Model of the GPU; NULL where the ranks differ."),
        Column("has_stacks", BOOLEAN, "Call stacks on every rank; NULL where the ranks differ."),
        Column("has_shapes", BOOLEAN, "Shapes on every rank; NULL where the ranks differ."),
        Column("has_groups", BOOLEAN, "Process groups in every header; NULL where the ranks differ."),
        Column("parity", BOOLEAN, "Whether all ranks were captured in the same mode."),
    ),
    how="Look at `complete` first: if false, measures across ranks miss some. `parity` is false where ranks were "
    "captured in different modes, so that their times do not compare.",
)

ITERATIONS = Table(
    "iterations",
    "One iteration over its ranks: step time and the shares of it; a nightly series is made of these.",
    BY_ITERATION,
    (
        Column("ranks", INTEGER, "Ranks that the measures cover."),
        Column("covered_ranks", RANKS, "These ranks: those read whole; with --allow-partial also those read in part."),
        Column("partial", BOOLEAN, "Whether ranks are missing, failed or were read in part."),
        Column("step_ns", BIGINT, "Longest step window over the ranks, ns."),
        Column("compute_ns", BIGINT, "Mean union of computation over the ranks, ns."),
        Column("communication_ns", BIGINT, "Mean union of communication over the ranks, ns."),
        Column("hidden_ns", BIGINT, "Mean hidden communication over the ranks, ns."),
        Column("exposed_ns", BIGINT, "Mean exposed communication over the ranks, ns."),
        Column("idle_ns", BIGINT, "Mean idle time over the ranks, ns."),
        Column("hidden_share", DOUBLE, "hidden / communication over all ranks."),
        Column("longest_computation_rank", BIGINT, "Rank with the longest union of computation."),
        Column("unclassified_share", DOUBLE, "Share of kernel time without a category."),
        Column(
            "step_kind",
            TEXT,
            "training, forward_only (no backward pass, no optimizer: evaluation, or a forward pass alone), inference "
            "(an engine that serves a model), or graph_replay (CUDA graphs, whose phases are not recorded); NULL where "
            "nothing shows, or the ranks differ.",
        ),
        Column(
            "model_flops_per_gpu",
            BIGINT,
            "Floating-point operations that the model needs in this step, recompute left out, divided by the ranks of "
            "the whole job; NULL where the job's settings do not show them.",
        ),
        Column(
            "peak_format",
            TEXT,
            "Number format of the model's products, as the settings state it: bf16, fp16, fp8 or fp4; NULL where they "
            "do not.",
        ),
        Column(
            "peak_flops_per_s",
            BIGINT,
            "Dense operations a second that one of the GPUs does at most in this format, by its maker's data sheet; "
            "NULL where unknown.",
        ),
        Column(
            "mfu",
            DOUBLE,
            "Model FLOP utilisation: model_flops_per_gpu / (step_ns / 1e9 * peak_flops_per_s); NULL where mfu_refusal "
            "says why.",
        ),
        Column("mfu_refusal", TEXT, "Why mfu is NULL; NULL where it is there."),
    ),
    how="`step_ns` is the longest step over the ranks, the other times are means over the ranks. Iterations "
    "compare only where `covered_ranks` are the same. Every numeric column is plotted below, over the iterations. "
    "`mfu` counts what the model needs, without recompute, against the dense peak of all GPUs in `peak_format`; it "
    "takes the job's settings, which captures with traceviz's plugin keep.",
    commands=("iterations",),
)

STALE_TABLES = Table(
    "stale_tables",
    "Tables that are kept although they could not be made anew, and why. No measure counts them, but those whose trace "
    "is merely gone: of these nothing newer is known.",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "Whose tables; NULL for those of the iteration itself."),
        Column(
            "stage",
            TEXT,
            "ranks (all tables of the rank but memory), memory, iterations (iterations, runs and all tables "
            "across ranks), or the name of another package's table.",
        ),
        Column(
            "cause",
            TEXT,
            "gone (the trace was moved away, nothing else changed), unreadable (what the trace is now cannot be read), "
            "outdated (made of something that changed since), unlisted (the trace is gone, and that of another rank "
            "changed: the tables may be of another recording), waiting (for ranks), failed (the step that makes them).",
        ),
        Column("reason", TEXT, "One line: what is wrong and what to do."),
    ),
)

NIGHTS = Table(
    "nights",
    "The nightly gate's verdict on the night of an iteration, against the nights before it in its series.",
    BY_ITERATION,
    (
        Column("series", TEXT, "What it is compared within: a glob over run ids, or the run's own id."),
        Column(
            "accepted",
            BOOLEAN,
            "Whether nothing is worse than tolerated, or somebody accepted it; NULL: inconclusive.",
        ),
        Column("worse", pa.list_(pa.string()), "Measures that are worse than tolerated."),
        Column("reference_run", TEXT, "Run of the accepted iteration compared with; NULL for the first of a series."),
        Column("reference_iteration", BIGINT, "Its number."),
        Column("compared_rank", BIGINT, "Rank whose step is taken apart: the one with the longest computation."),
        Column("step_ns", BIGINT, "Step time over the ranks that both cover, ns; of all ranks where none is compared."),
        Column("reference_step_ns", BIGINT, "Step time of the reference, ns."),
        Column("exposed_ns", BIGINT, "Mean exposed communication, ns."),
        Column("reference_exposed_ns", BIGINT, "Mean exposed communication of the reference, ns."),
        Column("moved", TEXT, "Part of the step that moved most in the direction in which the step did."),
        Column("moved_ns", BIGINT, "By how much, ns."),
        Column("statement", TEXT, "The verdict as one sentence."),
        Column("figures_digest", TEXT, "Digest of the judged measures; others are judged again."),
        Column("verdict", TEXT, "pass, worse, better or inconclusive."),
        Column("steps", INTEGER, "Steady steps of the night; its measures are their medians."),
        Column("baseline_run", TEXT, "Run of the night with which the history begins; NULL for the first of a series."),
        Column("baseline_iteration", BIGINT, "Its first iteration."),
        Column("history", INTEGER, "Nights that set the limits; NULL where the tolerances judged."),
        Column("limit_ns", BIGINT, "Step time above which the night is worse, ns; NULL where the tolerances judged."),
        Column("known", BOOLEAN, "Whether it is worse only by confirmed changes that an earlier night raised."),
    ),
    how="`statement` is the verdict. A night that is worse is no measure for the next one; to accept one that is "
    "slower on purpose, use `traceviz baseline accept`, or name it in the configuration of this asset.",
    commands=("iterations", "baseline"),
)

NIGHT_DELTAS = Table(
    "night_deltas",
    "One part of a judged step, then and now; the deltas of an iteration add up to the change of its step.",
    BY_ITERATION,
    (
        Column("part", TEXT, "A category (of communication: its exposed time), idle, or other_ranks."),
        Column("reference_ns", BIGINT, "Duration in the reference, ns."),
        Column("duration_ns", BIGINT, "Duration now, ns."),
        Column("delta_ns", BIGINT, "How much longer it is now, ns."),
    ),
    how="Sort by `delta_ns`: the deltas of an iteration add up to the change of its step.",
    commands=("iterations",),
)

NIGHT_STEPS = Table(
    "night_steps",
    "What a judged iteration measures, by training step and rank: later nights are held against it, and read it here.",
    BY_ITERATION,
    (
        Column("step", INTEGER, "The step's place among the iteration's; NULL where the longest alone counts."),
        Column("rank", BIGINT, "Global rank."),
        Column("step_ns", BIGINT, "Its step window, ns; of steps without a number the longest."),
        Column(
            "exposed_ns",
            DOUBLE,
            "Its exposed communication, ns, as a mean over its devices and such steps.",
        ),
        Column("compute_ns", DOUBLE, "Its union of computation, ns, as a mean in the same way."),
        *(Column(name, INTEGER, f"Its {name} coordinate; NULL where unknown.") for name in NIGHT_COORDINATES),
        Column("world", INTEGER, "Ranks of the job; NULL where nothing states them."),
        Column("mode", TEXT, "What was recorded, in words."),
        Column("source_digest", TEXT, "Digest of the tables that this was taken from."),
    ),
    how="The sample of a night: the lower median of its steps, each of which takes as long as its longest rank.",
    commands=("iterations",),
)

NIGHT_CHANGES = Table(
    "night_changes",
    "A confirmed change of the level from night to night, in the night that raised it; each is raised once.",
    BY_ITERATION,
    (
        Column("metric", TEXT, "step time or exposed communication."),
        Column("worse", BOOLEAN, "Whether the new level is the longer one: an alarm."),
        Column("since_run", TEXT, "Run of the first night of the new level."),
        Column("since_iteration", BIGINT, "Its first iteration."),
        Column("since_ns", BIGINT, "When its oldest trace was written, ns since 1970; NULL where unknown."),
        Column("nights", INTEGER, "Nights of the new level when it was raised."),
        Column("before_ns", BIGINT, "Median of the nights before it, ns."),
        Column("after_ns", BIGINT, "Median of the nights since, ns."),
        Column("p", DOUBLE, "Share of permuted series that differ at least as much."),
        Column(
            "rebased",
            BOOLEAN,
            "Whether the series has its baseline there since: the step is shorter than at the one before.",
        ),
        Column(
            "compared",
            pa.list_(pa.string()),
            "First rows of a night before compared with one since, or why there are none.",
        ),
        Column("statement", TEXT, "The change as one sentence."),
    ),
    how="A row is a change that lasts, in the night that confirmed it: `statement` says since when, by how much and "
    "what differs. Where `worse` holds it is an alarm.",
    commands=("iterations", "diff"),
)
