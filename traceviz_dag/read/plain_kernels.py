"""From bare kernels to the events that the classification takes: for formats that record little else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import Int32, Int64
from traceviz_dag.read.events import (
    KERNEL,
    MISSING,
    USER_ANNOTATION,
    CollectiveFacts,
    DeviceRows,
    HostRows,
    LaunchRows,
    ReadReport,
    Thread,
    TraceEvents,
    TraceHeader,
)


@dataclass(frozen=True, slots=True)
class PlainKernel:
    """A kernel of which no more is known than where and when it ran; times are on the rank's clock."""

    name: str
    start_ns: int
    duration_ns: int
    stream: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class PlainStep:
    """A training step, as the host marked it; times are on the rank's clock."""

    number: int
    start_ns: int
    duration_ns: int


def events_of_kernels(
    header: TraceHeader, kernels: Sequence[PlainKernel], steps: Sequence[PlainStep] = (), fault: str | None = None
) -> TraceEvents:
    """The events of a trace of kernels, without launches, operators or facts of communications.

    Args:
        header: the rank's.
        steps: its training steps; kernels belong to the step in which they start.
        fault: one line on what of the file could not be read and what to do; None where all of it was.
    """
    names = list(dict.fromkeys(["", *(f"ProfilerStep#{one.number}" for one in steps), *(one.name for one in kernels)]))
    codes = {name: code for code, name in enumerate(names)}
    count, unknown = len(kernels), _missing(len(kernels))
    step_unknown = _missing(len(steps))
    return TraceEvents(
        header=header,
        strings=tuple(names),
        threads=(Thread(0, 0, ""),),
        host=HostRows(
            name=_codes(codes[f"ProfilerStep#{one.number}"] for one in steps),
            input_sizes=np.zeros(len(steps), dtype=np.int32),
            inputs=np.zeros(len(steps), dtype=np.int32),
            category=np.full(len(steps), USER_ANNOTATION, dtype=np.int8),
            start_ns=_numbers(one.start_ns for one in steps),
            duration_ns=_numbers(one.duration_ns for one in steps),
            thread=np.zeros(len(steps), dtype=np.int32),
            external_id=step_unknown,
            python_id=step_unknown,
            python_parent_id=step_unknown,
            sequence_number=step_unknown,
            forward_thread=step_unknown,
        ),
        launches=LaunchRows(_codes(()), _missing(0), _missing(0), _codes(()), _missing(0), _missing(0)),
        device=DeviceRows(
            name=_codes(codes[one.name] for one in kernels),
            category=np.full(count, KERNEL, dtype=np.int8),
            start_ns=_numbers(one.start_ns for one in kernels),
            duration_ns=_numbers(one.duration_ns for one in kernels),
            device=_numbers(one.device for one in kernels),
            stream=_numbers(one.stream for one in kernels),
            process=np.zeros(count, dtype=np.int32),
            collective=_no_facts(count),
            **{name: unknown for name in DeviceRows.__slots__ if name not in _KNOWN},
        ),
        communication_operators=_missing(0),
        operator_facts=_no_facts(0),
        report=ReadReport(count + len(steps), fault=fault),
    )


_KNOWN = frozenset({"name", "category", "start_ns", "duration_ns", "device", "stream", "process", "collective"})


def _no_facts(count: int) -> CollectiveFacts:
    unknown, empty = _missing(count), np.zeros(count, dtype=np.int32)
    return CollectiveFacts(
        collective=empty,
        group_name=empty,
        group_description=empty,
        group_ranks=empty,
        group_size=unknown,
        dtype=empty,
        in_elements=unknown,
        out_elements=unknown,
        in_split=empty,
        out_split=empty,
        sequence=unknown,
        source_rank=unknown,
        destination_rank=unknown,
        group_address=unknown,
    )


def _missing(count: int) -> Int64:
    return np.full(count, MISSING, dtype=np.int64)


def _numbers(values: Iterable[int]) -> Int64:
    return np.fromiter(values, dtype=np.int64)


def _codes(values: Iterable[int]) -> Int32:
    return np.fromiter(values, dtype=np.int32)
