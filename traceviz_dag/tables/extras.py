"""Tables that only some formats of traces fill, rank by rank."""

from __future__ import annotations

from traceviz_dag.tables.schema import BIGINT, BY_RANK, DICTIONARY, INTEGER, Column, Table

NVTX_RANGES = Table(
    "nvtx_ranges",
    "One NVTX range of a rank that Nsight Systems profiled: where it lies, and what the GPU did for it.",
    BY_RANK,
    (
        Column("range_id", BIGINT, "Ordinal within the rank's iteration, by start."),
        Column("parent_id", BIGINT, "Range around it on its thread; NULL for an outermost one."),
        Column("depth", INTEGER, "Ranges around it."),
        Column("name", DICTIONARY, "Name, without the numbers that PyTorch appends."),
        Column("domain", BIGINT, "NVTX domain; 0 is the default one."),
        Column("thread", BIGINT, "Thread id."),
        Column("start_ns", BIGINT, "Start, ns on the rank's clock."),
        Column("duration_ns", BIGINT, "Duration, ns."),
        Column("communicator", DICTIONARY, "NCCL communicator of a call; NULL where the payload was not exported."),
        Column("bytes", BIGINT, "Message size of an NCCL call; NULL where unknown."),
        Column("launched", BIGINT, "Kernels and memory operations that calls inside it launched on the rank's GPU."),
        Column("busy_ns", BIGINT, "Union of these on the GPU, ns."),
    ),
    how="Ranges nest: `parent_id` leads to the one around. `busy_ns` is what the GPU did for it, whenever that was.",
    commands=("nsys tree", "nsys ranges"),
)
