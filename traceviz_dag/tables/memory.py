"""What snapshots of CUDA memory show: events, blocks, segments, call stacks, and who holds the peaks."""

from __future__ import annotations

from traceviz_dag.tables.schema import BIGINT, BOOLEAN, BY_RANK, DICTIONARY, INTEGER, TEXT, Column, Table

MEMORY_EVENTS = Table(
    "memory_events",
    "One event of the CUDA caching allocator, from a memory snapshot, in the order of the recording; without a "
    "snapshot from the rank's trace, as far as it carries them.",
    BY_RANK,
    (
        Column("event_id", BIGINT, "Ordinal among the events of its device, from 0."),
        Column("device", INTEGER, "Number of the GPU in its process."),
        Column(
            "action",
            DICTIONARY,
            "alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, snapshot, "
            "oom. Of nsys, segment_alloc and segment_free are what any code gets from the driver.",
        ),
        Column("source", DICTIONARY, "Where it is known from: snapshot, or the format of the trace (kineto, nsys)."),
        Column("address", BIGINT, "Address of the block or segment; 0 where there is none."),
        Column(
            "bytes",
            BIGINT,
            "Bytes: requested of a block (of a Kineto trace the block's own), whole of a segment, asked for of an oom.",
        ),
        Column("stream", BIGINT, "Stream it was for; NULL where the snapshot does not record it."),
        Column(
            "time_ns",
            BIGINT,
            "Time on the rank's clock, ns; of a snapshot of the epoch, to the microsecond; NULL where it has none.",
        ),
        Column("stack_id", INTEGER, "Its call stack in memory_stacks; NULL without frames."),
        Column(
            "requested_bytes",
            BIGINT,
            "Bytes requested in live blocks after it, pending frees included; NULL from traces.",
        ),
        Column(
            "allocated_bytes", BIGINT, "Bytes of live blocks after it, as a Kineto trace states it; NULL from others."
        ),
        Column("reserved_bytes", BIGINT, "Bytes of segments after it; NULL from nsys, which has no totals."),
        Column("device_free_bytes", BIGINT, "What the driver had free at an oom; NULL for others."),
    ),
    how="Read in the order of `event_id`: `requested_bytes` and `reserved_bytes` are what is held after the event.",
    commands=("memory timeline", "memory oom"),
)

MEMORY_BLOCKS = Table(
    "memory_blocks",
    "One block of GPU memory, from its allocation to its release, as far as a memory snapshot holds both.",
    BY_RANK,
    (
        Column("block_id", BIGINT, "Ordinal on its device, by allocation; those from before the recording come first."),
        Column("device", INTEGER, "Number of the GPU in its process."),
        Column("address", BIGINT, "Address."),
        Column("stream", BIGINT, "Stream it was allocated for; NULL where the snapshot does not record it."),
        Column("requested_bytes", BIGINT, "Bytes that the program asked for."),
        Column(
            "block_bytes", BIGINT, "Bytes that it takes; NULL where it is gone at the end: events do not record it."
        ),
        Column("alloc_event_id", BIGINT, "Event that allocated it; NULL where that was before the first event."),
        Column("free_requested_event_id", BIGINT, "Event by which the program gave it back; NULL where none did."),
        Column("free_completed_event_id", BIGINT, "Event from which others could use it; NULL where it is live."),
        Column("alloc_time_ns", BIGINT, "Time of its allocation, ns of the epoch; NULL where unknown."),
        Column("free_time_ns", BIGINT, "Time when it was free for others, ns of the epoch; NULL where it is live."),
        Column("stack_id", INTEGER, "Call stack that allocated it; NULL without frames."),
        Column("free_stack_id", INTEGER, "Call stack that gave it back; NULL without frames."),
        Column(
            "category",
            DICTIONARY,
            "parameter, gradient, optimizer_state, activation, input, temporary, communication_buffer, unknown.",
        ),
        Column("evidence", DICTIONARY, "What the category is known from: frames, life, free_frames, size_match, none."),
        Column("live_at_peak", BOOLEAN, "Whether it is live when most is requested on its device."),
    ),
    how="`category` is what a block holds, `evidence` how that is known. Sum `requested_bytes` where `live_at_peak` to"
    " see who holds the peak.",
    commands=("memory peak",),
)

MEMORY_STEPS = Table(
    "memory_steps",
    "One step of the optimizer or of the profiler, among the events of a memory snapshot.",
    BY_RANK,
    (
        Column("device", INTEGER, "Number of the GPU in its process."),
        Column("name", TEXT, "Name of the annotation; optimizer where call stacks show the step."),
        Column("evidence", DICTIONARY, "annotation, or frames: call stacks of the optimizer."),
        Column("start_ns", BIGINT, "Start, ns of the epoch; NULL where it began before the recording."),
        Column("end_ns", BIGINT, "End, ns of the epoch; NULL where the snapshot has no times."),
        Column("first_event_id", BIGINT, "Its first event; NULL where it began before the recording."),
        Column("last_event_id", BIGINT, "Its last event; less than the first where it has none."),
    ),
    how="Join with `memory_events` between `first_event_id` and `last_event_id`.",
    commands=("memory leak",),
)

MEMORY_RECORDINGS = Table(
    "memory_recordings",
    "One GPU of a memory snapshot: what shows that it is of its rank's trace, and what of it was not understood.",
    BY_RANK,
    (
        Column("device", INTEGER, "Number of the GPU in its process."),
        Column("file", TEXT, "Path of the snapshot, relative to the run's folder."),
        Column(
            "matched_by",
            DICTIONARY,
            "time (its events are of the time of its rank's trace) or name (times cannot be compared); NULL of a file "
            "alone.",
        ),
        Column("events", BIGINT, "Events of the GPU."),
        Column("first_ns", BIGINT, "The first of them that has a time, ns of the epoch; NULL where none has."),
        Column("last_ns", BIGINT, "The last of them."),
        Column("most_events", BIGINT, "How many the recording keeps; NULL where the snapshot does not record it."),
        Column("overwritten", BOOLEAN, "Whether older events were overwritten; NULL where it is not recorded."),
        Column("unknown", BIGINT, "Keys and actions of the file that nothing is known of, and that were left out."),
        Column("unknown_names", TEXT, "JSON object: the most frequent of them → how often."),
        Column("lost", BIGINT, "Rows and values of the file that could not be used."),
        Column("lost_names", TEXT, "JSON object: part of the file → how many."),
        Column("contradictions", TEXT, "JSON object: what does not fit together → how often."),
        Column("fault", TEXT, "What of the file could not be used, and what to do, in a line; NULL where all was."),
    ),
    how="`matched_by` says what shows that the snapshot is of its rank's trace; `unknown` and `lost` count what of it "
    "was not understood or used.",
    commands=("memory summary",),
)

MEMORY_SEGMENTS = Table(
    "memory_segments",
    "One segment that the CUDA caching allocator held when the snapshot was taken.",
    BY_RANK,
    (
        Column("segment_id", INTEGER, "Ordinal within the snapshot, from 0."),
        Column("device", INTEGER, "Number of the GPU in its process."),
        Column("address", BIGINT, "Address."),
        Column("bytes", BIGINT, "Size; of an expandable segment what is mapped."),
        Column("stream", BIGINT, "Stream that its blocks are for; NULL where the snapshot does not record it."),
        Column(
            "pool", DICTIONARY, "small (for requests up to 1 MiB) or large; NULL where the snapshot does not record it."
        ),
        Column("expandable", BOOLEAN, "Whether it can grow."),
        Column("live_blocks", INTEGER, "Blocks in use."),
        Column("requested_bytes", BIGINT, "Bytes requested in them."),
        Column("block_bytes", BIGINT, "Bytes that they take."),
        Column("inactive_bytes", BIGINT, "Bytes of its free blocks."),
        Column("largest_free_block_bytes", BIGINT, "Bytes of the largest of these; 0 without one."),
        Column("stack_id", INTEGER, "Call stack that it was allocated for; NULL without frames."),
    ),
    how="`inactive_bytes` are reserved and free. Many of them in small pieces is fragmentation.",
    commands=("memory fragmentation",),
)

MEMORY_STACKS = Table(
    "memory_stacks",
    "One distinct call stack of a memory snapshot.",
    BY_RANK,
    (
        Column("stack_id", INTEGER, "Ordinal within the snapshot, from 0."),
        Column("role", DICTIONARY, "What its code does: forward, backward, recompute, optimizer, construction …"),
        Column("site", DICTIONARY, "Innermost Python frame that is no library's: who asked for the memory."),
        Column("python_text", TEXT, "Python frames, outermost first; the autograd node or C++ code without any."),
        Column("frames", INTEGER, "Frames, those of C++ included."),
        Column("text", TEXT, "All frames, a line each, innermost first; home folders cut."),
    ),
    how="Join by `stack_id` with blocks and events. `site` is who asked for the memory.",
    commands=("memory peak", "memory diff"),
)

MEMORY_PEAKS = Table(
    "memory_peaks",
    "What one category holds at one time: before the first event, when most is requested, at the end.",
    BY_RANK,
    (
        Column("device", INTEGER, "Number of the GPU in its process."),
        Column("moment", DICTIONARY, "start (before the first event), peak, or end."),
        Column("event_id", BIGINT, "The event after which that is; NULL before the first."),
        Column("time_ns", BIGINT, "Its time, ns of the epoch; NULL where unknown."),
        Column("category", DICTIONARY, "As in memory_blocks."),
        Column("evidence", DICTIONARY, "As in memory_blocks."),
        Column("requested_bytes", BIGINT, "Bytes requested in its live blocks."),
        Column("blocks", BIGINT, "Live blocks."),
        Column("reserved_bytes", BIGINT, "Bytes of all segments of the device then."),
    ),
    how="Take one `device` and `moment`: the categories add up to what is requested then.",
    commands=("memory summary", "memory peak"),
)
