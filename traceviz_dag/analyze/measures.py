"""What a column is called, and how its values are written: once, for terminal, report, Dagster and notebooks.

The name of a column carries its unit: ``_ns``, ``_share``, ``_bytes``. What a name does not say is declared here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from traceviz_dag.analyze.wording import (
    activity,
    binary,
    capitals,
    changed,
    duration,
    mebibytes,
    microseconds,
    milliseconds,
    percent,
    seconds,
    shortened,
    signed,
)


@dataclass(frozen=True, slots=True)
class Unit:
    """How known values of a column are written.

    Attributes:
        word: what a header or the title of a table says; empty where cells need none.
        cell: a value under such a header. said: a value with its unit.
        number: whether cells are numbers, which are aligned at the right.
    """

    word: str
    cell: Callable[[Any], object]
    said: Callable[[Any], str]
    number: bool = True


@dataclass(frozen=True, slots=True)
class Measure:
    """What a column is called, without its unit, and how its values are written."""

    header: str
    unit: Unit


def _number(decimals: int, word: str = "", scale: float = 1) -> Unit:
    """A number with so many decimals, in multiples of ``scale``; what rounds to 0 has no sign."""

    def cell(value: float | str) -> str:
        # A cell that is written already stays.
        return value if isinstance(value, str) else f"{value / scale:z,.{decimals}f}"

    return Unit(word, cell, (lambda value: f"{cell(value)} {word}") if word else cell)


def _text(written: Callable[[Any], str]) -> Unit:
    return Unit("", written, written, number=False)


AS_IS = Unit("", lambda value: value, str, number=False)
"""Names and numbers of things, texts, and cells that are written already."""
COUNT = _number(0)
MS = Unit("ms", milliseconds, duration)
CHANGE = Unit("ms", changed, signed)
SHARE = Unit("", lambda value: percent(value).replace(" ", ""), percent)
_US, _SECONDS = Unit("µs", microseconds, duration), Unit("s", seconds, duration)
_MIB, _BINARY = Unit("MiB", mebibytes, binary), _text(binary)
_RATIO, _FINE_RATIO, _TIMES = _number(2), _number(3), _number(4)
_NAME, _SHORT_NAME = _text(shortened), _text(lambda value: shortened(value, 48))
_YES = _text(lambda value: "yes" if value else "no")

_OF_SUFFIXES = {"_share": SHARE, "_ns": MS, "_bytes": _MIB, "_ratio": _RATIO}
_OF_NAMES: Mapping[Unit, str] = {
    AS_IS: """
        address alloc_event_id baseline_iteration block_id block_x block_y block_z bytes_moved chunk compared_rank
        component correlation cp depth destination_rank device domain dp edp ep etp event_id finding first_event_id
        first_unit free_completed_event_id free_requested_event_id free_stack_id graph_id graph_node_id grid_x grid_y
        grid_z group_address kernel_id last_event_id last_rank last_rank_aligned last_rank_by_duration last_unit
        late_rank launch_thread launching_chunk launching_microbatch layer longest_computation_rank may_meet microbatch
        model_replica dense_replica expert_replica number operation_id order_in_rank parent_id pipeline place pp
        producer_kernel_id range_id rank rank1 ranks receiver_kernel_id receiver_rank record_correlation
        reference_iteration reference_rank replica segment segment_id sender_kernel_id sender_rank sequence
        since_iteration source_rank stack_id stage step stream synchronization_id thread tp unit virtual_stage
        wait_on_stream waited_for_kernel_id waiting_kernel_id worst_rank""",
    COUNT: """
        alone beside blocks bytes calls chunks communication communications count dimensions early_receives elements
        events exchanges expected_ranks frames gpus group_size history in_elements items kernels last launch_bound
        launched launched_kernels launches live_blocks lost matches members members_found memory_operations
        microbatches most_events nights of_ranks operations out_elements partitions peers ranges ranks_without
        registers_per_thread rows rows_dropped rows_read samples segments size soon stages steps tokens transfers
        units unknown waits world world_size before_blocks after_blocks names gap_count streams processes alike
        windows""",
    SHARE: """
        share coverage efficiency hfu mfu hidden_over_min compute_utilization value queue_empty utilization busy_of
        parallel_efficiency load_balance serialisation transfer host replay_error""",
    _RATIO: """
        score_p10 score_p50 score_p90 overlap_score slowdown ratio load tera_flops_per_s tera_bytes_per_s mean""",
    _FINE_RATIO: """
        best_ratio worst_ratio slow_ratio arithmetic_ratio memory_ratio factor drift_ppm over_microbatches over_ranks
        score p work memory_slower_items slower_items intensity tokens_per_second""",
    _TIMES: "effect",
    _US: "alone_ns beside_ns call_ns ncu_duration_ns offset_ns residual_p05_ns residual_p95_ns",
    _SECONDS: """
        start_ns end_ns gpu_start_ns gpu_end_ns first_ns last_ns window_start_ns window_end_ns launched_ns
        first_start_ns""",
    CHANGE: "change_ns low_ns high_ns count_ns per_call_ns more_ns",
    _BINARY: "least_bytes mean_bytes most_bytes memory_bytes",
    _text(capitals): "dimension dimensions_named",
    _text(activity): "category cause late_category truth told",
    _NAME: "name kernel",
    _SHORT_NAME: "shapes after before host_range innermost outermost range",
    _YES: "blamed asynchronous slow",
    _number(2, "TFLOP", 1e12): "flops_per_gpu recompute_flops_per_gpu model_flops_per_gpu",
    _number(3, "TFLOP", 1e12): "flops",
    _number(0, "TFLOP/s", 1e12): "peak_flops_per_s",
    _number(6, "TFLOP", 1e12): "region_flops",
    _number(3, "GB/s", 1e9): "bytes_per_s",
    _number(1, "GB/s", 1e9): "memory_bytes_per_s",
    _number(3, "GB/s"): "algorithm_gb_per_s bus_gb_per_s",
    _number(3, "GFLOP", 1e9): "call_flops ncu_flops",
    _number(3, "MB", 1e6): "call_bytes ncu_bytes",
    _number(0, "MHz", 1e6): "clock_hz",
    _number(0, "tokens/s"): "tokens_per_s",
    _number(1): "depth_mean times",
}
_UNITS = {name: unit for unit, names in _OF_NAMES.items() for name in names.split()}

_HEADERS = {
    "busy_of": "of busy time",
    "compute_ns": "computation",
    "compute_utilization": "HFU while computing",
    "bytes_per_s": "",
    "clock_hz": "clock",
    "coverage": "FLOPs known",
    "device": "GPU",
    "fill_drain_ns": "fill/drain",
    "flops": "",
    "flops_per_gpu": "computed",
    "hfu": "HFU",
    "hidden_over_min": "hidden / min",
    "kernel_ns": "time",
    "late_communication_ns": "other communication",
    "late_compute_ns": "computation",
    "late_host_ns": "its host",
    "late_idle_ns": "idle",
    "late_memory_ns": "memory operations",
    "memory_bytes_per_s": "memory",
    "mfu": "MFU",
    "microbatches": "micro-batches",
    "peak_flops_per_s": "peak",
    "recompute_flops_per_gpu": "recompute",
    "refusal": "why",
    "region_flops": "",
    "residual_p05_ns": "p05",
    "residual_p95_ns": "p95",
    "unknown_ns": "without roofline",
    "start_ns": "from",
    "warmup_idle_ns": "warm-up",
    "steady_idle_ns": "steady",
    "cooldown_idle_ns": "cool-down",
    "end_ns": "to",
    "window_end_ns": "to",
    "window_start_ns": "from",
}


def known_unit(name: str) -> Unit | None:
    """The unit of a column; None where neither its name nor this module says it."""
    return _UNITS.get(name) or next((unit for end, unit in _OF_SUFFIXES.items() if name.endswith(end)), None)


@cache
def measure(name: str) -> Measure:
    """How the column of this name is called and written; texts and what is not declared as they are."""
    words = name.removesuffix("_ns").removesuffix("_bytes").replace("_", " ").replace("gpu", "GPU")
    return Measure(_HEADERS.get(name, words), known_unit(name) or AS_IS)
