"""Columns of ``TraceEvents`` as rows of plain values, for comparisons that a person can read."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from traceviz_dag.read.events import CollectiveFacts, TraceEvents


def plain_rows(trace: TraceEvents) -> dict[str, list[tuple[Any, ...]]]:
    """Table → rows, in file order."""
    threads = [(thread.process_id, thread.thread_id) for thread in trace.threads]
    host, launches, device = trace.host, trace.launches, trace.device
    texts = trace.strings
    ids = (host.python_id, host.python_parent_id, host.external_id, host.sequence_number, host.forward_thread)
    host_columns = [
        [texts[code] for code in host.name],
        host.start_ns.tolist(),
        host.duration_ns.tolist(),
        host.category.tolist(),
        [threads[thread] for thread in host.thread],
        *(column.tolist() for column in ids),
    ]
    launch_columns = [
        [texts[code] for code in launches.name],
        launches.start_ns.tolist(),
        launches.duration_ns.tolist(),
        [threads[thread] for thread in launches.thread],
        launches.correlation.tolist(),
        launches.external_id.tolist(),
    ]
    sizes = (device.grid_x, device.grid_y, device.grid_z, device.block_x, device.block_y, device.block_z)
    numbers = (device.correlation, device.external_id, device.registers_per_thread, device.shared_memory_bytes)
    device_columns = [
        [texts[code] for code in device.name],
        device.start_ns.tolist(),
        device.duration_ns.tolist(),
        device.category.tolist(),
        device.device.tolist(),
        device.stream.tolist(),
        *(column.tolist() for column in (*sizes, *numbers, device.bytes)),
        *_fact_columns(device.collective, texts),
    ]
    operators = [trace.communication_operators.tolist(), *_fact_columns(trace.operator_facts, texts)]
    return {
        "host": list(zip(*host_columns, strict=True)),
        "launches": list(zip(*launch_columns, strict=True)),
        "device": list(zip(*device_columns, strict=True)),
        "operators": list(zip(*operators, strict=True)),
    }


def _fact_columns(facts: CollectiveFacts, texts: tuple[str, ...]) -> list[list[Any]]:
    codes = (facts.collective, facts.group_name, facts.group_description, facts.group_ranks, facts.dtype)
    splits = (facts.in_split, facts.out_split)
    numbers = (facts.group_size, facts.in_elements, facts.out_elements)
    places = (facts.sequence, facts.source_rank, facts.destination_rank)
    return [
        *([texts[code] for code in column] for column in (*codes, *splits)),
        *(column.tolist() for column in (*numbers, *places)),
    ]


def assert_same(left: TraceEvents, right: TraceEvents) -> None:
    """Both hold the same values in every column, the same strings under the same codes, and the same report."""
    for name in ("header", "strings", "threads", "report", "operator_inputs"):
        assert getattr(left, name) == getattr(right, name), name
    for table in ("host", "launches", "device", "synchronizations", "operator_facts"):
        _assert_same_columns(table, getattr(left, table), getattr(right, table))
    _assert_same_columns("device.collective", left.device.collective, right.device.collective)
    assert left.communication_operators.tolist() == right.communication_operators.tolist()


def _assert_same_columns(table: str, left: Any, right: Any) -> None:
    for part in fields(left):
        if part.name != "collective" or table != "device":
            ours, theirs = getattr(left, part.name), getattr(right, part.name)
            assert ours.dtype == theirs.dtype, f"{table}.{part.name}"
            assert ours.tolist() == theirs.tolist(), f"{table}.{part.name}"
