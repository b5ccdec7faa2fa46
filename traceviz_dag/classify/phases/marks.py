"""The ``ProfilerStep`` annotations, by which a profiler marks training steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import Int64
from traceviz_dag.read.events import MISSING, USER_ANNOTATION, TraceEvents

PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,18})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class ProfilerSteps:
    """The ProfilerStep annotations of one trace, by start."""

    number: Int64
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.number)


def profiler_steps(trace: TraceEvents) -> ProfilerSteps:
    """The ProfilerStep annotations on the host; the longest where a number occurs twice."""
    numbers = _numbers_of_names(trace.strings, PROFILER_STEP)
    host = trace.host
    rows = np.flatnonzero((host.category == USER_ANNOTATION) & (numbers.take(host.name) != MISSING))
    number, start = numbers[host.name[rows]], host.start_ns[rows]
    end = start + host.duration_ns[rows]
    longest_first = np.lexsort((start - end, number))
    number, start, end = number[longest_first], start[longest_first], end[longest_first]
    first = np.ones(len(number), dtype=bool)
    first[1:] = number[1:] != number[:-1]
    number, start, end = number[first], start[first], end[first]
    order = np.argsort(start, kind="stable")
    return ProfilerSteps(number[order], start[order], end[order])


def step_at(steps: ProfilerSteps, time_ns: Int64) -> Int64:
    """Number of the ProfilerStep that is open at each time, or MISSING."""
    if not len(steps):
        return np.full(len(time_ns), MISSING, dtype=np.int64)
    index = np.searchsorted(steps.start_ns, time_ns, side="right") - 1
    inside = (index >= 0) & (time_ns < steps.end_ns[index])
    return np.where(inside, steps.number[index], MISSING)


def nearest_step(steps: ProfilerSteps, time_ns: Int64) -> Int64:
    """Number of the ProfilerStep nearest to each time, or MISSING where there is none."""
    if not len(steps):
        return np.full(len(time_ns), MISSING, dtype=np.int64)
    after = np.clip(np.searchsorted(steps.start_ns, time_ns), 0, len(steps) - 1)
    before = np.clip(after - 1, 0, None)
    gap_before = np.maximum(time_ns - steps.end_ns[before], 0)
    gap_after = np.maximum(steps.start_ns[after] - time_ns, 0)
    return np.where(gap_before <= gap_after, steps.number[before], steps.number[after])


def _numbers_of_names(strings: tuple[str, ...], pattern: re.Pattern[str]) -> Int64:
    matches = (pattern.match(name) for name in strings)
    return np.array([MISSING if match is None else int(match[1]) for match in matches], dtype=np.int64)
