"""Cuts a written trace to a window, as a profiler does that starts or stops in the middle of a training step.

What was open on the host as the profiler started is there from then on if it is a Python frame, and else not at all;
what is open as it stops ends there. Kernels are there if they start after the profiler did and were launched before it
stopped, those from before its start without their launches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from traceviz_dag.simulate.settings import Edges

_FRAME, _MARK = "python_function", "ProfilerStep#"
_CALLS = ("cuda_runtime", "cuda_driver")
_HOST = (_FRAME, "cpu_op", "user_annotation", *_CALLS)
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_NO_NODE = -1

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """What a cut file still holds: (correlation, graph node or -1) of its kernels, and correlations of its launches."""

    kernels: frozenset[tuple[int, int]]
    launches: frozenset[int]


def cut_trace(text: str, edges: Edges) -> tuple[str, Held]:
    """Cut the text of a whole trace to its window.

    Args:
        edges: of these, the fields of windows; their shares are of the time from the first mark's start to the last
            mark's end in this file, on the host.
    """
    # Names hold raw control characters, as real traces do.
    trace = json.loads(text, strict=False)
    rows: list[Event] = trace["traceEvents"]
    marks = sorted((row for row in rows if _is_mark(row)), key=lambda row: row["ts"])
    begin, length = marks[0]["ts"], max(map(_end, marks)) - marks[0]["ts"]
    window = _Window(*(begin + share * length for share in (edges.window_from, edges.window_to)))
    gap = _Window(*(begin + share * length for share in (edges.lost_rows_from, edges.lost_rows_to)))
    if edges.window_to >= 1:
        window = replace(window, end=float("inf"))
    launched = {row["args"]["correlation"]: row["ts"] for row in rows if row.get("cat") in _CALLS}
    _shift(marks, edges.shifted_marks)
    kept = [row for row in rows if _keeps(row, window, gap, launched)]
    for row in kept:
        _clip(row, window)
    trace["traceEvents"] = kept
    return json.dumps(trace, indent=1), Held(
        frozenset(_key(row) for row in kept if row.get("cat") in _KERNELS),
        frozenset(row["args"]["correlation"] for row in kept if row.get("cat") in _CALLS),
    )


@dataclass(frozen=True, slots=True)
class _Window:
    """From start to end, us of the file."""

    start: float
    end: float

    def holds(self, moment: float) -> bool:
        return self.start <= moment < self.end


def _end(row: Event) -> float:
    return float(row["ts"] + row.get("dur", 0))


def _is_mark(row: Event) -> bool:
    return row.get("cat") == "user_annotation" and str(row["name"]).startswith(_MARK)


def _key(row: Event) -> tuple[int, int]:
    return row["args"]["correlation"], row["args"].get("graph node id", _NO_NODE)


def _shift(marks: Iterable[Event], share: float) -> None:
    """Let each mark start so much of a step late, and end where the next one starts."""
    marks = list(marks)
    starts = [row["ts"] + share * row["dur"] for row in marks]
    ends = [*starts[1:], _end(marks[-1])] if share else [_end(row) for row in marks]
    for row, start, end in zip(marks, starts, ends, strict=True):
        row["ts"], row["dur"] = round(start, 3), round(end - start, 3)


def _keeps(row: Event, window: _Window, gap: _Window, launched: dict[int, float]) -> bool:
    if "ts" not in row or row["ph"] == "M":
        return True
    category, start = row.get("cat"), float(row["ts"])
    if category in _KERNELS:
        return bool(start >= window.start and launched.get(row["args"]["correlation"], start) < window.end)
    if category not in _HOST:
        return window.holds(start) or (row["ph"] == "X" and _end(row) > window.start and start < window.end)
    if _is_mark(row):
        return bool(_end(row) > window.start and start < window.end)
    if gap.holds(start):
        return False
    return window.holds(start) or (category == _FRAME and start < window.start < _end(row))


def _clip(row: Event, window: _Window) -> None:
    """Let a row start and end with the profiler."""
    if row.get("cat") not in (*_HOST, "gpu_user_annotation") or "dur" not in row:
        return
    start, end = max(row["ts"], window.start), min(_end(row), window.end)
    if (start, end) != (row["ts"], _end(row)):
        row["ts"], row["dur"] = round(start, 3), round(max(end - start, 0), 3)
