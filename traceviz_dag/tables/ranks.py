"""What one rank alone shows: the ingested file, its kernels, micro-batches and overlap."""

from __future__ import annotations

import pyarrow as pa

from traceviz_dag.tables.schema import BIGINT, BOOLEAN, BY_RANK, DICTIONARY, DOUBLE, INTEGER, TEXT, Column, Table

NOT_CUT = "step_evidence IS DISTINCT FROM 'cut'"
"""Condition on rows of ``kernels``: of no training step in which the profiler started or stopped."""

TRACES = Table(
    "traces",
    "One ingested trace file: what was read, what was dropped and why, and how much the classification covers.",
    BY_RANK,
    (
        Column("file", TEXT, "Path of the trace, relative to the run's folder."),
        Column(
            "format",
            TEXT,
            "kineto_json, kineto_json_gz, nsys_sqlite, nsys_parquet, nsys_rep; else the name of a package's format.",
        ),
        Column("bytes", BIGINT, "Size of the file in bytes."),
        Column("digest", TEXT, "XXH3-128 of the file's bytes, hexadecimal."),
        Column(
            "status",
            TEXT,
            "read, partial (rows were lost, or its training step is not recorded whole) or failed (nothing "
            "could be read).",
        ),
        Column("fault", TEXT, "One line on what is wrong with the file and what to do; NULL when nothing is."),
        Column("rows_read", BIGINT, "Trace events that were decoded, of all categories."),
        Column("rows_dropped", BIGINT, "Trace events that could not be used."),
        Column("drop_reasons", TEXT, "JSON object: reason → number of events dropped for it."),
        Column("first_ns", BIGINT, "Start of the first event."),
        Column("last_ns", BIGINT, "End of the last event."),
        Column("steps", pa.list_(pa.int64()), "Numbers of the ProfilerStep annotations in the file."),
        Column(
            "cut_steps",
            pa.list_(pa.int64()),
            "Training steps without a ProfilerStep whose kernels are in the file: in the one before steps the profiler "
            "started, in the one after them it stopped. Of an iteration that is one step of several: those beside it.",
        ),
        Column(
            "forward_microbatches",
            pa.list_(pa.int64()),
            "Micro-batches whose forward steps are in each of steps; NULL where one of its steps has no number.",
        ),
        Column("backward_microbatches", pa.list_(pa.int64()), "The same of backward steps."),
        Column("world_size", INTEGER, "World size that the trace states; NULL where it does not."),
        Column(
            "captured_ranks",
            TEXT,
            "Ranks that the capture meant to record, such as 0-3, 6; NULL where the trace does not state them.",
        ),
        Column(
            "host_clock_ns",
            BIGINT,
            "UTC minus the monotonic clock of the rank's host, ns: ranks of one host have it equal to 2 µs. NULL where "
            "the trace does not state both.",
        ),
        Column("backend", TEXT, "Communication backend that the trace states."),
        Column("nccl_version", TEXT, "Version of NCCL or RCCL that the trace states."),
        Column("runtime_version", TEXT, "Version of the runtime, CUDA or HIP, that the trace states."),
        Column("driver_version", TEXT, "Newest version of CUDA or HIP that the driver serves, as the trace states."),
        Column("driver_release", TEXT, "Release of the driver of the GPU that the trace states."),
        Column(
            "profiler_version",
            TEXT,
            "Version of CUPTI, roctracer or Nsight Systems that recorded it; NULL where the trace does not record it.",
        ),
        Column(
            "settings",
            TEXT,
            "JSON object of the settings that the capture plugin kept: variables of the environment and arguments of "
            "Megatron-LM, those of its lists alone; NULL without.",
        ),
        Column("devices", pa.list_(pa.string()), "Devices with kernels: gpu:N, or cpu."),
        Column("device_name", TEXT, "Model of the GPU."),
        Column("device_memory_bytes", BIGINT, "Memory of the GPU; NULL where the trace does not record it."),
        Column("has_stacks", BOOLEAN, "Whether Python call stacks were recorded."),
        Column("has_shapes", BOOLEAN, "Whether input shapes were recorded."),
        Column("has_groups", BOOLEAN, "Whether the header describes the process groups."),
        Column("has_host_rows", BOOLEAN, "Whether CPU operations were recorded."),
        Column("has_memory_events", BOOLEAN, "Whether allocations of GPU memory were recorded."),
        Column("kernels", BIGINT, "Kernels and memory operations of this iteration."),
        Column("kernel_ns", BIGINT, "Sum of their durations, ns."),
        Column("launched_kernels", BIGINT, "Kernels whose launch row was found."),
        Column("classified_ns", BIGINT, "Kernel time with a category, ns."),
        Column("phase_known_ns", BIGINT, "Kernel time with a known phase, ns."),
        Column("dimension_known_ns", BIGINT, "Communication time with a known dimension, ns."),
        Column("communication_ns", BIGINT, "Sum of the durations of communication kernels, ns."),
        Column("microbatch_known_ns", BIGINT, "Kernel time with a known micro-batch, ns."),
        Column(
            "step_kind",
            TEXT,
            "training, forward_only (no backward pass, no optimizer: evaluation, or a forward pass alone), inference "
            "(an engine that serves a model), or graph_replay (CUDA graphs, whose phases are not recorded); NULL where "
            "nothing shows.",
        ),
        Column(
            "framework",
            TEXT,
            "What trained: megatron, megatron_fsdp, ddp, fsdp (1 or 2) or zero; NULL where nothing shows.",
        ),
    ),
    how="`status` says whether a file was read: `partial` and `failed` come with `fault`, what is wrong and what "
    "to do. `classified_ns` over `kernel_ns` is how much of the kernel time has a category.",
    commands=("analyze",),
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
        Column(
            "layer",
            INTEGER,
            "Number of the layer around the launch: the suffix of its TransformerLayer, or of a model with layers of "
            "several classes its place among all layers of the file. NULL in layers of multi-token prediction.",
        ),
        Column(
            "module_path",
            DICTIONARY,
            "Classes of the modules around the launch, the outermost first, with the numbers of layers, such "
            "as GPTModel/TransformerBlock/TransformerLayer_3/MLP; of a backward step those of its forward step.",
        ),
        Column("step", BIGINT, "Number of the ProfilerStep it belongs to; NULL where the file has none."),
        Column(
            "step_evidence",
            DICTIONARY,
            "launch, start, nearest (outside all steps), cut (of a step without a mark, in which the profiler started "
            "or stopped: step is NULL, and no wait or speed counts it) or none.",
        ),
        Column(
            "beside_ns",
            pa.list_(pa.int64()),
            "Starts and ends, in turn, ns, of what computation of other steps of the file ran beside a communication; "
            "NULL where none did.",
        ),
        Column("launching_microbatch", INTEGER, "Micro-batch whose code launched it; NULL where none."),
        Column("launching_chunk", INTEGER, "Chunk whose code launched it; NULL where none."),
        Column("launch_name", DICTIONARY, "Runtime call that launched it."),
        Column("launch_start_ns", BIGINT, "Start of that call, ns; NULL without a launch row."),
        Column("launch_duration_ns", BIGINT, "Duration of that call, ns."),
        Column("launch_thread", BIGINT, "Thread id of that call."),
        Column("operator", DICTIONARY, "Innermost CPU operator around the launch."),
        Column(
            "operation_id",
            INTEGER,
            "Row of table operations of its rank that it belongs to.",
        ),
        Column(
            "input_sizes",
            DICTIONARY,
            "Sizes of the inputs of the innermost operator around the launch that states any, such as "
            "[[4096,1024],[1024,512]]; of long lists a digest; NULL where no sizes were recorded.",
        ),
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
        Column("collective", DICTIONARY, "Name of the collective: the trace's, else of the annotation around it."),
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
        Column(
            "group_address",
            BIGINT,
            "Address of the process group, which older traces have instead of a name: equal for all communications "
            "of one group of this rank, different on other ranks.",
        ),
    ),
    how="`category` sums up kind, phase and dimension. `phase_evidence` and `dimension_evidence` say which "
    "observation decided; unknown stays `unknown`. Times are those of the rank's own clock: do not compare "
    "them between ranks.",
    commands=("classify", "overlap"),
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
    how="Rows with dimension `all` measure the whole; those of one dimension repeat the computation beside it, so"
    " never add them up. `backward` includes `recompute`.",
    commands=("pipelines", "periods"),
)

SYNCHRONIZATIONS = Table(
    "synchronizations",
    "One synchronisation: a stream that waits for an event, or a host call that waits for the GPU.",
    BY_RANK,
    (
        Column("synchronization_id", BIGINT, "Ordinal within the file, by start."),
        Column(
            "kind",
            DICTIONARY,
            "stream_wait (a stream waits); the host waits in event_synchronize, stream_synchronize, "
            "device_synchronize and memory_copy (a copy to the host that the call itself launched).",
        ),
        Column("name", DICTIONARY, "Name of the host call; NULL where the trace has no row of it."),
        Column("thread", BIGINT, "Thread of the host call."),
        Column("start_ns", BIGINT, "Start of the host call, ns on the rank's clock."),
        Column("duration_ns", BIGINT, "Duration of the host call, ns."),
        Column("step", BIGINT, "ProfilerStep of the host call, else the nearest; NULL where the file has none."),
        Column(
            "device", DICTIONARY, "gpu:N of the stream that waits or of what the host waits for; NULL where unknown."
        ),
        Column("stream", BIGINT, "Stream that waits; NULL where the host waits, and where unknown."),
        Column("wait_on_stream", BIGINT, "Stream waited for; NULL where unknown, and for a whole device."),
        Column("correlation", BIGINT, "Correlation id of the host call."),
        Column("record_correlation", BIGINT, "Correlation id of the call that recorded the event waited for."),
        Column("record_start_ns", BIGINT, "Start of that call, ns; NULL without an event, and where unresolved."),
        Column(
            "waited_for_kernel_id",
            BIGINT,
            "kernel_id of the last kernel or memory operation on wait_on_stream before the event was recorded, or "
            "before the host call; for a whole device the one of these that ends last. May be of an earlier step. "
            "NULL where unresolved.",
        ),
        Column(
            "waiting_kernel_id",
            BIGINT,
            "kernel_id of the first kernel or memory operation on stream after the wait; where the host waits, of the "
            "next one that its thread launches. NULL where unresolved.",
        ),
        Column(
            "evidence", DICTIONARY, "recorded (the profiler has a row of it) or order (only the host call is there)."
        ),
        Column("fault", DICTIONARY, "Why a kernel_id is NULL; NULL where none is."),
    ),
    how="Who waits, a stream or the host, and for which kernel. Where only the host's call shows it, "
    "`evidence` is `order`.",
)

GPU_GAPS = Table(
    "gpu_gaps",
    "A piece of a gap, a time in which a rank runs no computation kernel, split by what the GPU waited for.",
    BY_RANK,
    (
        Column("device", TEXT, "gpu:N."),
        Column("window_name", TEXT, "step (a ProfilerStep), else kernels; as in table overlap."),
        Column("step", BIGINT, "Number of the ProfilerStep; NULL where the file has none."),
        Column(
            "start_ns",
            BIGINT,
            "End of the computation, or start of the operation, before it; else the window's start, ns.",
        ),
        Column("duration_ns", BIGINT, "To the start of the operation that ends it, or the window's end, ns."),
        Column(
            "kernel_id",
            BIGINT,
            "The kernel or memory operation that ends it, or would after the window; NULL for none.",
        ),
        Column("blocked_ns", BIGINT, "Of it: what this operation, or its launch, waited for still ran, ns."),
        Column(
            "starved_ns",
            BIGINT,
            "Of it, after that: until the host had launched the operation and the launch had reached the GPU, ns.",
        ),
        Column("unexplained_ns", BIGINT, "The rest, ns; the three add up to duration_ns."),
        Column("producer_kernel_id", BIGINT, "Kernel or memory operation that blocked; NULL where nothing blocked."),
        Column(
            "producer_evidence",
            DICTIONARY,
            "recorded (a wait between streams), order (its stream, or the host's wait), or inferred (communication or "
            "copy that ends just before the kernel starts, not launched later, or last where none follows); NULL where "
            "nothing blocked.",
        ),
        Column("thread", BIGINT, "Thread of the launch; NULL without a launch row."),
        Column("doing", DICTIONARY, "Host row or call that is open longest while starved; NULL where none is known."),
        Column("doing_ns", BIGINT, "For how long of the starved time, ns."),
        Column(
            "host_work",
            DICTIONARY,
            "data_loading, garbage_collection, compilation, graph_break (what follows where compiled code broke off), "
            "allocation or synchronisation, by the names of the rows around doing; NULL where they show none of these.",
        ),
        Column(
            "caller", DICTIONARY, "The Python function around doing, those of torch left out; NULL without call stacks."
        ),
        Column("synchronization_id", BIGINT, "Last wait of the launching thread for the GPU that ended in the gap."),
        Column(
            "synchronization_caller",
            DICTIONARY,
            "The Python function around that wait, those of torch left out; else the operator.",
        ),
        Column("of_framework", BOOLEAN, "Whether Megatron's own code called it; NULL without one, or without stacks."),
    ),
    how="`blocked_ns`, `starved_ns` and `unexplained_ns` add up to `duration_ns`: the GPU waited for something "
    "that still ran, for the host, or it is not known for what. `host_work` and `caller` name what the host "
    "did.",
    commands=("findings",),
)

OPERATIONS = Table(
    "operations",
    "Operation × inputs × phase × module: its calls, the time of all kernels that they launched, what it computes and "
    "moves at least, and what a perfect kernel would take.",
    BY_RANK,
    (
        Column("operation_id", INTEGER, "Ordinal within the iteration of the rank, by kernel_ns, the longest first."),
        Column("stage", INTEGER, "Stage of the rank; NULL where the topology is unknown."),
        Column("phase", DICTIONARY, "Phase of the code that launched it, as in table kernels."),
        Column(
            "operation",
            DICTIONARY,
            "Name of the innermost operator around the launch that states its inputs, or of one that is one operation "
            "with all that it calls; else of the innermost operator, annotation or NVTX range without its number; NULL "
            "where none is recorded: then each kernel's name is a row.",
        ),
        Column(
            "operation_class",
            DICTIONARY,
            "gemm, grouped_gemm, attention, convolution, normalization, softmax, elementwise, reduction, copy, "
            "embedding, optimizer, communication or other.",
        ),
        Column("module", DICTIONARY, "Class of the innermost nn.Module around the launch, without its number."),
        Column(
            "shapes",
            DICTIONARY,
            "Sizes of its inputs, such as [[8944,1024],[1024,2816]]; of very long lists a digest; NULL where none are "
            "recorded.",
        ),
        Column("types", DICTIONARY, "Element types of its inputs; NULL where none are recorded."),
        Column("strides", DICTIONARY, "Strides of its inputs, in elements; NULL where none are recorded."),
        Column(
            "input_values",
            DICTIONARY,
            "Numbers and truth values among its inputs, where its work depends on them; NULL where none are recorded.",
        ),
        Column(
            "forward_shapes",
            DICTIONARY,
            "Sizes of the inputs of the forward pass of the autograd function whose backward pass it is; else NULL.",
        ),
        Column("count", BIGINT, "Calls of the operation that launched a kernel; kernels where no call is recorded."),
        Column("kernels", BIGINT, "Kernels and memory operations of all calls."),
        Column("kernel", DICTIONARY, "Name of the kernel, or memory operation, that takes the most time of it."),
        Column("kernel_ns", BIGINT, "Sum of the durations of all its kernels and memory operations, ns."),
        Column("shortest_ns", BIGINT, "Kernel time of the shortest call, ns."),
        Column("median_ns", BIGINT, "Lower median of the kernel times of its calls, ns."),
        Column("p95_ns", BIGINT, "Kernel time that 95 % of its calls do not exceed, ns."),
        Column("longest_ns", BIGINT, "Kernel time of the longest call, ns."),
        Column("flops", BIGINT, "Floating-point operations of one call; NULL where unknown."),
        Column("bytes", BIGINT, "Bytes that one call reads and writes at least; NULL where unknown."),
        Column("number_format", DICTIONARY, "bf16, fp16, fp8, fp4, tf32, fp32 or fp64, of its work; else NULL."),
        Column("intensity", DOUBLE, "flops / bytes; NULL where one is unknown."),
        Column("gpu", DICTIONARY, "GPU whose peaks are used, as the table of peaks names it; NULL if unknown."),
        Column("peak_flops_per_s", BIGINT, "Peak of the GPU in the number format; NULL where unknown, or not needed."),
        Column("memory_bytes_per_s", BIGINT, "Bandwidth of the GPU's memory; NULL where unknown."),
        Column(
            "roofline_ns",
            BIGINT,
            "What all calls would take with perfect kernels, ns: of products, attention and convolutions the longer of "
            "flops / peak and bytes / bandwidth, of others bytes / bandwidth. NULL where unknown.",
        ),
        Column("efficiency", DOUBLE, "roofline_ns / kernel_ns; above 1 where data comes from caches."),
        Column("headroom_ns", BIGINT, "kernel_ns - roofline_ns, 0 where that is negative: what perfect kernels save."),
        Column("bound", DICTIONARY, "compute or memory: which of the two is longer; NULL where unknown."),
        Column("reason", TEXT, "Why flops, bytes or roofline_ns is NULL; NULL where none is."),
    ),
    how="Sort by `headroom_ns`: what perfect kernels save at most. `kernel_ns` is of all calls, `flops` and `bytes` "
    "are of one. Where one of these is NULL, `reason` says why.",
    commands=("kernels",),
)

CONTENTION = Table(
    "contention",
    "An operation with recorded input sizes, by one of its kernels, grid and place among the same kernels of a call: "
    "how long it takes beside communication, and alone.",
    BY_RANK,
    (
        Column("device", DICTIONARY, "gpu:N."),
        Column("operation_id", BIGINT, "Row of table operations; its input sizes are those of all its kernels."),
        Column("kernel", DICTIONARY, "Name of the kernel."),
        Column("alone", BIGINT, "Kernels that no communication touches."),
        Column("alone_ns", BIGINT, "Their median duration, ns; NULL without any."),
        Column("beside", BIGINT, "Kernels of which communication covers 90 % or more."),
        Column("beside_ns", BIGINT, "Their median duration, ns; NULL without any."),
        Column("slowdown", DOUBLE, "beside_ns / alone_ns; NULL where reason says why."),
        Column(
            "extra_ns",
            BIGINT,
            "Time of all kernels that communication touches, beyond that of as many alone, ns; NULL as slowdown.",
        ),
        Column("reason", DICTIONARY, "Why slowdown is NULL; NULL where it is there."),
    ),
    how="`slowdown` compares kernels of one operation with the same input sizes: those that communication covers with "
    "those that run alone. Sort by `extra_ns`: what it costs in all.",
    commands=("kernels",),
)

OVERLAP_SAVINGS = Table(
    "overlap_savings",
    "What hiding a rank's communication of a dimension saves: hidden communication less the extra computation time.",
    BY_RANK,
    (
        Column("device", DICTIONARY, "gpu:N."),
        Column("window_name", DICTIONARY, "As in table overlap."),
        Column("step", BIGINT, "Number of the ProfilerStep for window step; NULL otherwise."),
        Column("dimension", DICTIONARY, "Dimension of the communication; all for the whole."),
        Column("hidden_ns", BIGINT, "As in table overlap, ns."),
        Column(
            "judged_share",
            DOUBLE,
            "Share of the computation beside it whose operation also runs alone, so that its slow-down is known.",
        ),
        Column(
            "extra_ns", BIGINT, "Extra time of that computation (table contention), ns; NULL where reason says why."
        ),
        Column(
            "net_ns", BIGINT, "hidden_ns - extra_ns, negative where overlap costs more than it saves; NULL as extra_ns."
        ),
        Column(
            "net_low_ns", BIGINT, "net_ns less two standard errors, from the spread of the kernels, ns; NULL as net_ns."
        ),
        Column("net_high_ns", BIGINT, "net_ns and two standard errors, ns; NULL as net_ns."),
        Column("verdict", DICTIONARY, "saves, costs (net_high_ns is below 0) or unsure; NULL as net_ns."),
        Column("reason", TEXT, "Why net_ns is NULL; NULL where it is there."),
    ),
    how="`net_ns` is what hiding the communication saves: negative where it costs more. It is NULL where most of the "
    "computation beside it never runs alone.",
    commands=("overlap", "kernels"),
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
        Column(
            "window_from",
            DICTIONARY,
            "What a step's window is: host (its mark, without what a cut step before ran there first), launches (first "
            "start to last end of the kernels launched in it, as the host runs ahead), host_launches_unknown (its "
            "mark; launches are not recorded).",
        ),
        *_OVERLAP_MEASURES,
        Column("hidden_share", DOUBLE, "hidden / communication; NULL without communication."),
        Column("hidden_over_min", DOUBLE, "hidden / min(compute, communication); NULL where that is 0."),
        Column("kernels", BIGINT, "Kernels and memory operations that start in the window."),
    ),
    how="Take one window and one dimension: `hidden_ns` and `exposed_ns` add up to `communication_ns`. Rows of "
    "several dimensions do not add up to `all`, since communications run side by side.",
    commands=("overlap",),
)
