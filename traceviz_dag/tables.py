"""Every table's schema in one place: columns, types, units and comments.

Parquet files, the DuckDB catalogue, Dagster's column metadata and the documentation follow from these definitions.
Times are integer nanoseconds on the rank's own clock and their names end in ``_ns``. ``run``, ``iteration`` and
``rank`` are the partition columns: they stand in the path, not in the file.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

TEXT = pa.string()
INTEGER = pa.int32()
BIGINT = pa.int64()
DOUBLE = pa.float64()
BOOLEAN = pa.bool_()
RANKS = pa.list_(pa.int32())
DICTIONARY = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow type, and a comment that gives meaning and unit."""

    name: str
    type: pa.DataType
    comment: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the lake.

    Attributes:
        partitioned_by: the partition columns in path order; ``("run", "iteration")`` or with ``"rank"``.
        columns: what a file holds, in order.
    """

    name: str
    comment: str
    partitioned_by: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of a file of this table."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    def from_columns(self, data: dict[str, object]) -> pa.Table:
        """Build an Arrow table with exactly this table's schema.

        Args:
            data: column name → array, list or Arrow array; each column of the table must be there.

        Raises:
            KeyError: a column is missing or unknown.
        """
        names = [column.name for column in self.columns]
        unknown = set(data) - set(names)
        if unknown:
            raise KeyError(f"table {self.name} has no column {sorted(unknown)}")
        arrays = []
        for column in self.columns:
            values = data[column.name]
            if isinstance(values, pa.ChunkedArray):
                values = values.combine_chunks()
            if isinstance(values, pa.Array):
                arrays.append(values if values.type == column.type else values.cast(column.type))
            else:
                arrays.append(pa.array(values, type=column.type, from_pandas=False))
        return pa.Table.from_arrays(arrays, schema=self.schema)


PARTITION_COLUMNS = {
    "run": Column("run", TEXT, "The training job's profile folder."),
    "iteration": Column("iteration", BIGINT, "The training step."),
    "rank": Column("rank", BIGINT, "The global rank."),
}

BY_RANK = ("run", "iteration", "rank")
BY_ITERATION = ("run", "iteration")

TRACES = Table(
    "traces",
    "One ingested trace file: what was read, what was dropped and why, and how much the classification covers.",
    BY_RANK,
    (
        Column("file", TEXT, "Path of the trace, relative to the run's folder."),
        Column("format", TEXT, "kineto_json or kineto_json_gz."),
        Column("bytes", BIGINT, "Size of the file in bytes."),
        Column("digest", TEXT, "XXH3-128 of the file's bytes, hexadecimal."),
        Column("status", TEXT, "read, partial (some rows were lost) or failed (nothing could be read)."),
        Column("fault", TEXT, "One line on what is wrong with the file and what to do; NULL when nothing is."),
        Column("rows_read", BIGINT, "Trace events that were decoded, of all categories."),
        Column("rows_dropped", BIGINT, "Trace events that could not be used."),
        Column("drop_reasons", TEXT, "JSON object: reason → number of events dropped for it."),
        Column("first_ns", BIGINT, "Start of the first event."),
        Column("last_ns", BIGINT, "End of the last event."),
        Column("steps", pa.list_(pa.int64()), "Numbers of the ProfilerStep annotations in the file."),
        Column("world_size", INTEGER, "World size that the trace states; NULL where it does not."),
        Column("backend", TEXT, "Communication backend that the trace states."),
        Column("devices", pa.list_(pa.string()), "Devices with kernels: gpu:N, or cpu."),
        Column("device_name", TEXT, "Model of the GPU."),
        Column("has_stacks", BOOLEAN, "Whether Python call stacks were recorded."),
        Column("has_shapes", BOOLEAN, "Whether input shapes were recorded."),
        Column("has_groups", BOOLEAN, "Whether the header describes the process groups."),
        Column("has_host_rows", BOOLEAN, "Whether CPU operations were recorded."),
        Column("kernels", BIGINT, "Kernels and memory operations of this iteration."),
        Column("kernel_ns", BIGINT, "Sum of their durations, ns."),
        Column("launched_kernels", BIGINT, "Kernels whose launch row was found."),
        Column("classified_ns", BIGINT, "Kernel time with a category, ns."),
        Column("phase_known_ns", BIGINT, "Kernel time with a known phase, ns."),
        Column("dimension_known_ns", BIGINT, "Communication time with a known dimension, ns."),
        Column("communication_ns", BIGINT, "Sum of the durations of communication kernels, ns."),
        Column("microbatch_known_ns", BIGINT, "Kernel time with a known micro-batch, ns."),
        Column("rules_digest", TEXT, "Digest of the rule table that classified the kernels."),
    ),
)

RUNS = Table(
    "runs",
    "One run as seen in one iteration: how it was captured, and whether its ranks agree on that.",
    BY_ITERATION,
    (
        Column("ranks", INTEGER, "Ranks with a readable trace."),
        Column("failed_ranks", RANKS, "Ranks whose trace could not be read."),
        Column("missing_ranks", RANKS, "Ranks of the expected world without a trace."),
        Column("expected_ranks", INTEGER, "World size as the topology or the headers state it; NULL where unknown."),
        Column("complete", BOOLEAN, "Whether each expected rank was read; NULL where the expectation is unknown."),
        Column("backend", TEXT, "Communication backend; NULL where the ranks differ."),
        Column("device_name", TEXT, "Model of the GPU; NULL where the ranks differ."),
        Column("has_stacks", BOOLEAN, "Call stacks on every rank; NULL where the ranks differ."),
        Column("has_shapes", BOOLEAN, "Shapes on every rank; NULL where the ranks differ."),
        Column("has_groups", BOOLEAN, "Process groups in every header; NULL where the ranks differ."),
        Column("parity", BOOLEAN, "Whether all ranks were captured in the same mode."),
    ),
)

TOPOLOGY = Table(
    "topology",
    "One rank's coordinates in Megatron's two rank grids (dense: tp, cp, dp, pp; expert: etp, ep, edp, pp).",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The global rank."),
        Column("tp", INTEGER, "Tensor-parallel coordinate."),
        Column("cp", INTEGER, "Context-parallel coordinate."),
        Column("dp", INTEGER, "Data-parallel coordinate (without context parallelism)."),
        Column("pp", INTEGER, "Pipeline coordinate, the stage."),
        Column("ep", INTEGER, "Expert-parallel coordinate."),
        Column("etp", INTEGER, "Expert-tensor-parallel coordinate."),
        Column("edp", INTEGER, "Expert-data-parallel coordinate."),
        Column("stage", INTEGER, "Position in its pipeline group."),
        Column("stages", INTEGER, "Stages of its pipeline group."),
        Column("pipeline", INTEGER, "Ordinal of its pipeline group, by lowest member rank."),
        Column("dense_replica", INTEGER, "Ordinal of its dense replica (ranks of one dp index)."),
        Column("expert_replica", INTEGER, "Ordinal of its expert replica (ranks of one edp index)."),
        Column("model_replica", INTEGER, "Ordinal of its complete model (connected dense and expert replicas)."),
        Column("source", TEXT, "distributed_info, text_file or computed."),
    ),
)

PROCESS_GROUPS = Table(
    "process_groups",
    "One process group with its members in order, and which source said so.",
    BY_ITERATION,
    (
        Column("group_name", TEXT, "pg_name in the trace header; NULL where only another source knows the group."),
        Column("description", TEXT, "pg_desc in the trace header."),
        Column("dimension", TEXT, "Parallel dimension that the group serves; unknown where nothing says."),
        Column("size", INTEGER, "Number of members."),
        Column("ranks", RANKS, "Members in group order; empty where no source lists them."),
        Column("source", TEXT, "distributed_info, text_file or computed."),
        Column("disagreement", TEXT, "How another source contradicts this row; NULL where none does."),
    ),
)

KERNELS = Table(
    "kernels",
    "One kernel or memory operation; in a trace without GPU rows one CPU work interval on device cpu.",
    BY_RANK,
    (
        Column("kernel_id", BIGINT, "Ordinal within the file, by start."),
        Column("name", DICTIONARY, "Name as the profiler gives it."),
        Column("start_ns", BIGINT, "Start, ns on the rank's clock."),
        Column("duration_ns", BIGINT, "Duration, ns."),
        Column("device", DICTIONARY, "gpu:N, or cpu."),
        Column("stream", BIGINT, "Stream on its device; the thread id for device cpu."),
        Column("correlation", BIGINT, "Correlation id within its process; NULL where none is given."),
        Column("kind", DICTIONARY, "computation, communication or memory."),
        Column(
            "phase",
            DICTIONARY,
            "Phase of the code that launched it: forward, backward, recompute, optimizer, other, unknown.",
        ),
        Column("dimension", DICTIONARY, "Parallel dimension of a communication; NULL for other kinds."),
        Column("category", DICTIONARY, "Category that follows from kind, phase and dimension."),
        Column("phase_evidence", DICTIONARY, "Kind of observation that decided the phase."),
        Column("phase_rule", DICTIONARY, "Name of the rule that decided the phase."),
        Column("dimension_evidence", DICTIONARY, "Kind of observation that decided the dimension."),
        Column("dimension_rule", DICTIONARY, "Name of the rule that decided the dimension."),
        Column("dimension_candidates", DICTIONARY, "Possible dimensions of an unknown one, comma-separated."),
        Column("role", DICTIONARY, "What a communication carries, where a rule knows: grad_sync, activation ..."),
        Column("stage", INTEGER, "Stage of the rank; NULL where the topology is unknown."),
        Column("chunk", INTEGER, "Virtual pipeline stage (model chunk) on this rank, from 0; NULL where unknown."),
        Column("microbatch", INTEGER, "Micro-batch index within its chunk, from 0; NULL where none or unknown."),
        Column("module", DICTIONARY, "Innermost nn.Module around the launch."),
        Column("layer", INTEGER, "Suffix of the innermost TransformerLayer around the launch."),
        Column("step", BIGINT, "Number of the ProfilerStep it belongs to; NULL where the file has none."),
        Column("step_evidence", DICTIONARY, "launch, start, nearest (outside all steps) or none."),
        Column("launching_microbatch", INTEGER, "Micro-batch whose code launched it; NULL where none."),
        Column("launching_chunk", INTEGER, "Chunk whose code launched it; NULL where none."),
        Column("launch_name", DICTIONARY, "Runtime call that launched it."),
        Column("launch_start_ns", BIGINT, "Start of that call, ns; NULL without a launch row."),
        Column("launch_duration_ns", BIGINT, "Duration of that call, ns."),
        Column("launch_thread", BIGINT, "Thread id of that call."),
        Column("operator", DICTIONARY, "Innermost CPU operator around the launch."),
        Column("grid_x", INTEGER, "Grid size, x."),
        Column("grid_y", INTEGER, "Grid size, y."),
        Column("grid_z", INTEGER, "Grid size, z."),
        Column("block_x", INTEGER, "Block size, x."),
        Column("block_y", INTEGER, "Block size, y."),
        Column("block_z", INTEGER, "Block size, z."),
        Column("registers_per_thread", INTEGER, "Registers per thread."),
        Column("shared_memory_bytes", BIGINT, "Shared memory per block, bytes."),
        Column("graph_id", BIGINT, "CUDA graph that it belongs to; NULL outside graphs."),
        Column("graph_node_id", BIGINT, "Node in that graph."),
        Column("bytes", BIGINT, "Bytes of a memory operation."),
        Column("collective", DICTIONARY, "Name of the collective, as the trace gives it."),
        Column("group_name", DICTIONARY, "Process group (pg_name)."),
        Column("group_description", DICTIONARY, "Description of the process group (pg_desc)."),
        Column("group_size", INTEGER, "Size of the process group."),
        Column("group_ranks", DICTIONARY, "Members of the process group, as the trace gives them."),
        Column("dtype", DICTIONARY, "Element type of the message."),
        Column("in_elements", BIGINT, "Elements of the input message."),
        Column("out_elements", BIGINT, "Elements of the output message."),
        Column("in_split", DICTIONARY, "Input split sizes of an all-to-all, as the trace gives them."),
        Column("out_split", DICTIONARY, "Output split sizes of an all-to-all, as the trace gives them."),
        Column("sequence", BIGINT, "Sequence number of the collective in its group; NULL in older traces."),
        Column("source_rank", INTEGER, "Sender of a point-to-point communication, where recorded."),
        Column("destination_rank", INTEGER, "Receiver of a point-to-point communication, where recorded."),
    ),
)

_OVERLAP_MEASURES = (
    Column("compute_ns", BIGINT, "Union of computation kernels, ns."),
    Column("communication_ns", BIGINT, "Union of communication kernels of the dimension, ns."),
    Column("hidden_ns", BIGINT, "Communication that runs beside computation, ns."),
    Column("exposed_ns", BIGINT, "Communication minus hidden, ns."),
    Column("memory_ns", BIGINT, "Union of memory operations, ns."),
    Column("busy_ns", BIGINT, "Union of computation, all communication and memory operations, ns."),
    Column("idle_ns", BIGINT, "Window minus busy, ns."),
)

MICROBATCHES = Table(
    "microbatches",
    "Rank × device × chunk × micro-batch × phase × dimension: its span and what fills it.",
    BY_RANK,
    (
        Column("device", TEXT, "gpu:N, or cpu."),
        Column("step", BIGINT, "Number of the ProfilerStep; NULL where the file has none."),
        Column("stage", INTEGER, "Stage of the rank; NULL where the topology is unknown."),
        Column("chunk", INTEGER, "Model chunk, from 0."),
        Column("microbatch", INTEGER, "Micro-batch index within its chunk, from 0."),
        Column("phase", TEXT, "forward, backward (recompute included) or recompute (that part alone)."),
        Column("dimension", TEXT, "Dimension of the communication measured; all for the whole."),
        Column("order_in_rank", INTEGER, "Position among the rank's forward and backward steps, by launch; from 0."),
        Column("host_start_ns", BIGINT, "Start of the launching step on the host, ns; NULL without call stacks."),
        Column("host_end_ns", BIGINT, "End of the launching step on the host, ns; NULL without call stacks."),
        Column("span_start_ns", BIGINT, "Start of its first kernel, ns."),
        Column("span_end_ns", BIGINT, "End of its last kernel, ns."),
        Column("kernels", BIGINT, "Kernels and memory operations in it."),
        *_OVERLAP_MEASURES,
    ),
)

OVERLAP = Table(
    "overlap",
    "Rank × device × window × dimension: computation and communication as unions, hidden and exposed.",
    BY_RANK,
    (
        Column("device", TEXT, "gpu:N, or cpu."),
        Column("window_name", TEXT, "step (a ProfilerStep), kernels (first start to last end of the iteration)."),
        Column("step", BIGINT, "Number of the ProfilerStep for window step; NULL otherwise."),
        Column("dimension", TEXT, "Dimension of the communication measured; all for the whole."),
        Column("window_start_ns", BIGINT, "Start of the window, ns."),
        Column("window_end_ns", BIGINT, "End of the window, ns."),
        *_OVERLAP_MEASURES,
        Column("hidden_share", DOUBLE, "hidden / communication; NULL without communication."),
        Column("hidden_over_min", DOUBLE, "hidden / min(compute, communication); NULL where that is 0."),
        Column("kernels", BIGINT, "Kernels and memory operations that start in the window."),
    ),
)

ITERATIONS = Table(
    "iterations",
    "One iteration over its ranks: step time and the shares of it; a nightly series is made of these.",
    BY_ITERATION,
    (
        Column("ranks", INTEGER, "Ranks that the figures cover."),
        Column("partial", BOOLEAN, "Whether ranks are missing or failed."),
        Column("step_ns", BIGINT, "Longest step window over the ranks, ns."),
        Column("compute_ns", BIGINT, "Mean union of computation over the ranks, ns."),
        Column("communication_ns", BIGINT, "Mean union of communication over the ranks, ns."),
        Column("hidden_ns", BIGINT, "Mean hidden communication over the ranks, ns."),
        Column("exposed_ns", BIGINT, "Mean exposed communication over the ranks, ns."),
        Column("idle_ns", BIGINT, "Mean idle time over the ranks, ns."),
        Column("hidden_share", DOUBLE, "hidden / communication over all ranks."),
        Column("slowest_rank", BIGINT, "Rank with the longest union of computation."),
        Column("unclassified_share", DOUBLE, "Share of kernel time without a category."),
    ),
)

COLLECTIVES = Table(
    "collectives",
    "One rank's part in one communication: when it came, how long it waited for the last one, how long it transferred.",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The global rank."),
        Column("kernel_id", BIGINT, "Its kernel in table kernels."),
        Column("communication", BIGINT, "Number of the matched communication in the iteration; NULL where unmatched."),
        Column("step", BIGINT, "Number of the ProfilerStep; NULL where the file has none."),
        Column("operation", DICTIONARY, "all_reduce, all_gather, reduce_scatter, all_to_all, send, recv ..."),
        Column("dimension", DICTIONARY, "Parallel dimension."),
        Column("phase", DICTIONARY, "Phase of the code that launched it."),
        Column("stage", INTEGER, "Stage of the rank; NULL where the topology is unknown."),
        Column("group_name", DICTIONARY, "Process group (pg_name); NULL where the trace does not name it."),
        Column("group_description", DICTIONARY, "Description of the process group."),
        Column("members", INTEGER, "Ranks that take part; for messages the rank and its peers; NULL where unknown."),
        Column("members_found", INTEGER, "Ranks whose kernel was found, this one included."),
        Column("matched_by", DICTIONARY, "What decided the match: sequence, order, schedule, peers ... or none."),
        Column("fault", DICTIONARY, "Why it is not matched, or not wholly; NULL where nothing is wrong."),
        Column("scope", DICTIONARY, "intra_node or inter_node; NULL where the nodes are unknown."),
        Column("arrival_ns", BIGINT, "Start of its kernel, ns on the rank's own clock."),
        Column("duration_ns", BIGINT, "Duration of its kernel, ns."),
        Column("wait_ns", BIGINT, "Last arrival minus its own, clocks as recorded, ns; NULL where unmatched."),
        Column("transfer_ns", BIGINT, "Duration minus wait_ns, ns."),
        Column("last_rank", BIGINT, "The last to arrive, clocks as recorded."),
        Column("wait_aligned_ns", BIGINT, "wait_ns on solved clocks, ns; NULL where they are refused."),
        Column("transfer_aligned_ns", BIGINT, "Duration minus wait_aligned_ns, ns."),
        Column("last_rank_aligned", BIGINT, "The last to arrive on solved clocks."),
        Column("clocks", DICTIONARY, "Clocks behind all later columns: solved or recorded; NULL where unmatched."),
        Column("last_transfer_ns", BIGINT, "Transfer of the last to arrive, ns: that of the communication itself."),
        Column("bytes", BIGINT, "Message size as nccl-tests counts it; NULL where unknown."),
        Column("algorithm_gb_per_s", DOUBLE, "Algorithm bandwidth: bytes / last_transfer_ns, GB/s."),
        Column("bus_gb_per_s", DOUBLE, "Bus bandwidth by the factors of nccl-tests, GB/s."),
        Column("hidden_wait_ns", BIGINT, "Part of the wait beside computation of the rank, ns."),
        Column("exposed_wait_ns", BIGINT, "The rest of the wait, ns."),
        Column("hidden_transfer_ns", BIGINT, "Part of the transfer beside computation of the rank, ns."),
        Column("exposed_transfer_ns", BIGINT, "The rest of the transfer, ns."),
        Column("late_compute_ns", BIGINT, "Of the wait: the last rank computed, ns."),
        Column("late_communication_ns", BIGINT, "Of the wait: the last rank was in other communication only, ns."),
        Column("late_memory_ns", BIGINT, "Of the wait: the last rank did memory operations only, ns."),
        Column("late_host_ns", BIGINT, "Of the wait: the last rank's GPU idled and its host had not launched yet, ns."),
        Column("late_idle_ns", BIGINT, "Of the wait: the last rank's GPU idled although the host had launched, ns."),
        Column("late_category", DICTIONARY, "What the last rank did longest: a kernel category, host or idle."),
    ),
)

RANK_CLOCKS = Table(
    "rank_clocks",
    "One rank's clock against the common one: aligned = t - offset_ns - drift_ppm * 1e-6 * (t - reference_ns).",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The global rank."),
        Column("component", INTEGER, "Ordinal of the connected component of matches; offsets exist inside one only."),
        Column("reference_rank", BIGINT, "Rank of the component whose clock is the common one."),
        Column("offset_ns", BIGINT, "What the rank's clock is ahead of the common one, ns; NULL where refused."),
        Column("drift_ppm", DOUBLE, "How much faster it runs, ppm; NULL where the evidence is too short."),
        Column("reference_ns", BIGINT, "Instant at which the offset holds, ns."),
        Column("matches", BIGINT, "Matched communications of the rank that the solution rests on."),
        Column("span_ns", BIGINT, "From the first of them to the last, ns."),
        Column("residual_p05_ns", BIGINT, "5th percentile of its aligned end minus the members' median, ns."),
        Column("residual_p95_ns", BIGINT, "95th percentile of the same, ns."),
        Column("early_receives", BIGINT, "Receives that end before their send starts on aligned clocks: impossible."),
        Column("refusal", TEXT, "Why there is no offset; NULL where there is one."),
    ),
)

PIPELINES = Table(
    "pipelines",
    "One stage of one pipeline group in one training step: its span, its bubble in parts that add up, its idle time.",
    BY_ITERATION,
    (
        Column("step", BIGINT, "Number of the ProfilerStep; NULL where the file has none."),
        Column("pipeline", INTEGER, "Ordinal of the pipeline group."),
        Column("stage", INTEGER, "Position in the pipeline, from 0."),
        Column("stages", INTEGER, "Stages of the pipeline."),
        Column("chunks", INTEGER, "Model chunks per stage."),
        Column("rank", BIGINT, "The global rank."),
        Column("dense_replica", INTEGER, "Dense replica of the rank; NULL where unknown."),
        Column("schedule", TEXT, "1f1b, interleaved, combined, forward_only or other, as the order of work shows."),
        Column("microbatches", INTEGER, "Micro-batches per step, m."),
        Column("span_ns", BIGINT, "T: first forward start to last backward end, ns."),
        Column("ideal_ns", BIGINT, "T0: m times the mean forward and backward time over all stages, ns."),
        Column("bubble_ns", BIGINT, "T - T0, ns: against the mean stage, so not this stage's idle time."),
        Column("fill_drain_ns", BIGINT, "Of the bubble: filling and draining the pipeline with equal stages, ns."),
        Column("imbalance_ns", BIGINT, "Of the bubble: stages differ from each other, ns; negative where it helps."),
        Column("jitter_ns", BIGINT, "Of the bubble: micro-batches differ from each other, ns; may be negative."),
        Column("stall_ns", BIGINT, "Of the bubble: transfers between stages and everything else, ns."),
        Column("bubble_share", DOUBLE, "bubble / T."),
        Column("ideal_share", DOUBLE, "Bubble share of a perfect schedule with equal stages: fill / (m + fill)."),
        Column("busy_ns", BIGINT, "Time inside forward and backward steps of the stage, ns."),
        Column("idle_ns", BIGINT, "T - busy, ns."),
        Column("warmup_idle_ns", BIGINT, "Of the idle time: before the first backward step, ns."),
        Column("steady_idle_ns", BIGINT, "Of the idle time: from the first backward to the last forward step, ns."),
        Column("cooldown_idle_ns", BIGINT, "Of the idle time: after the last forward step, ns."),
        Column("forward_ns", BIGINT, "Mean forward time per micro-batch over all chunks, ns; NULL where combined."),
        Column("backward_ns", BIGINT, "Mean backward time per micro-batch over all chunks, ns; NULL where combined."),
        Column("microbatch_ns", BIGINT, "Mean forward and backward time per micro-batch over all chunks, ns."),
        Column("bottleneck_stage", INTEGER, "Stage of the pipeline with the longest microbatch_ns."),
        Column("bottleneck_excess", DOUBLE, "How much longer it takes than the mean stage, as a share of that."),
        Column("refusal", TEXT, "Why the parts of the bubble are NULL; NULL where they are there."),
    ),
)

PERIODS = Table(
    "periods",
    "One unit of a repeating pair of stages: its period, both busy times, and how much of them must have overlapped.",
    BY_ITERATION,
    (
        Column("pair", TEXT, "Stages S and S+1, computation and a dimension, or the name that a file gives the pair."),
        Column("kind", TEXT, "stages, dimension or named."),
        Column("step", BIGINT, "Number of the ProfilerStep; NULL where none."),
        Column("pipeline", INTEGER, "Ordinal of the pipeline group; NULL outside pipelines."),
        Column("stage", INTEGER, "Stage of stage0; NULL outside pipelines."),
        Column("rank", BIGINT, "Rank of stage0, on whose clock the period is."),
        Column("rank1", BIGINT, "Rank of stage1."),
        Column("dimension", TEXT, "Dimension of the communication that is stage1; NULL otherwise."),
        Column("unit", INTEGER, "Ordinal of the steady unit, from 0; NULL where there are none."),
        Column("chunk", INTEGER, "Chunk of the backward step that begins the unit; NULL where none."),
        Column("microbatch", INTEGER, "Micro-batch of the backward step that begins the unit; NULL where none."),
        Column("start_ns", BIGINT, "Start of the unit, ns on the clock of rank."),
        Column("period_ns", BIGINT, "Start of the next unit minus start, ns."),
        Column("stage0_ns", BIGINT, "Busy time of stage0 in the unit, ns."),
        Column("stage1_ns", BIGINT, "Busy time of stage1 in the unit, ns."),
        Column("derived_hidden_ns", BIGINT, "stage0 + stage1 - period, ns: net of gaps, so not a measured overlap."),
        Column("overlap_score", DOUBLE, "derived_hidden / min(stage0, stage1), not clamped; NULL where that is 0."),
        Column("refusal", TEXT, "Why there are no figures; NULL where there are."),
    ),
)

NIGHTS = Table(
    "nights",
    "The nightly gate's verdict on one iteration, against the last accepted one of its series.",
    BY_ITERATION,
    (
        Column("series", TEXT, "What it is compared within: a glob over run ids, or the run's own id."),
        Column("accepted", BOOLEAN, "Whether nothing is worse than tolerated, or somebody accepted it."),
        Column("worse", pa.list_(pa.string()), "Figures that are worse than tolerated."),
        Column("reference_run", TEXT, "Run of the accepted iteration compared with; NULL for the first of a series."),
        Column("reference_iteration", BIGINT, "Its number."),
        Column("compared_rank", BIGINT, "Rank whose step is taken apart: the one with the longest computation."),
        Column("step_ns", BIGINT, "Step time, ns."),
        Column("reference_step_ns", BIGINT, "Step time of the reference, ns."),
        Column("exposed_ns", BIGINT, "Mean exposed communication, ns."),
        Column("reference_exposed_ns", BIGINT, "Mean exposed communication of the reference, ns."),
        Column("moved", TEXT, "Part of the step that moved most in the direction in which the step did."),
        Column("moved_ns", BIGINT, "By how much, ns."),
        Column("statement", TEXT, "The verdict as one sentence."),
        Column("figures_digest", TEXT, "Digest of the judged row of iterations; another one is judged again."),
    ),
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
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        *(RUNS, TRACES, TOPOLOGY, PROCESS_GROUPS, KERNELS, MICROBATCHES, OVERLAP, ITERATIONS),
        *(COLLECTIVES, RANK_CLOCKS, PIPELINES, PERIODS),
        *(NIGHTS, NIGHT_DELTAS),
    )
}
