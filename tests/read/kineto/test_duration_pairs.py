"""Begin and end events say the same as complete events, however they nest, and wherever a file is cut into pieces."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.read.synthetic import event, write
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.kineto.duration_pairs import OUT_OF_ORDER
from traceviz_dag.read.kineto.reader import read_kineto

CATEGORIES = ("cpu_op", "python_function", "user_annotation", "kernel", "cuda_runtime", "Trace")


@st.composite
def nested(draw: st.DrawFn, depth: int = 3) -> list[dict[str, Any]]:
    """Complete events that nest on each of two threads, their times exact to a nanosecond, far from zero."""
    events: list[dict[str, Any]] = []

    def fill(first: int, last: int, level: int, thread: int) -> None:
        cuts = sorted(set(draw(st.lists(st.integers(first, last), max_size=6))))
        for start, end in zip(cuts[::2], cuts[1::2], strict=False):
            category = draw(st.sampled_from(CATEGORIES))
            index = len(events)
            times = {"ts": f"@{1_700_000_000_000_000_000 + start}", "dur": f"@{end - start}"}
            events.append(event(index, category, tid=thread, **times) | {"from": start, "to": end, "level": level})
            if level:
                fill(start, end, level - 1, thread)

    for thread in (1, 2):
        fill(0, 10_000_000, depth, thread)
    return events


def _text(events: list[dict[str, Any]]) -> str:
    """JSON with @N, nanoseconds, written as decimal microseconds."""
    import re

    plain = [{key: value for key, value in one.items() if key not in ("from", "to", "level")} for one in events]
    return re.sub(r'"@(\d+)"', lambda match: f"{int(match[1]) // 1000}.{int(match[1]) % 1000:03d}", json.dumps(plain))


def _as_pairs(events: list[dict[str, Any]], bare_ends: bool) -> list[dict[str, Any]]:
    """The same as begin and end events: by time, ends of inner events first, begins of outer events first."""
    marks = []
    for number, one in enumerate(events):
        begin = {key: value for key, value in one.items() if key != "dur"} | {"ph": "B"}
        kept = ("pid", "tid") if bare_ends else ("pid", "tid", "cat", "name")
        end = {key: one[key] for key in kept} | {"ph": "E", "ts": f"@{1_700_000_000_000_000_000 + one['to']}"}
        marks += [((one["from"], 1, -one["level"], number), begin), ((one["to"], 0, one["level"], -number), end)]
    return [mark for _, mark in sorted(marks, key=lambda each: each[0])]


def _rows(trace) -> list[tuple]:
    host, device, launches = trace.host, trace.device, trace.launches
    named = trace.strings
    found = [
        (named[n], int(s), int(d), int(e))
        for table in (host, device, launches)
        for n, s, d, e in zip(table.name, table.start_ns, table.duration_ns, table.external_id, strict=True)
    ]
    return sorted(found)


@settings(max_examples=60, deadline=None)
@given(events=nested(), bare_ends=st.booleans(), chunk_bytes=st.sampled_from([200, 1000, 1 << 20]))
def test_pairs_read_as_complete_events_do(tmp_path_factory, events, bare_ends, chunk_bytes):
    folder = tmp_path_factory.mktemp("pairs")
    anchor = [event(99, "cpu_op", tid=9)]
    whole = read_kineto(write(folder / "x.json", _text([*events, *anchor])))
    paired = read_kineto(
        write(folder / "b.json", _text([*_as_pairs(events, bare_ends), *anchor])), chunk_bytes=chunk_bytes
    )
    assert _rows(paired) == _rows(whole)
    assert paired.report.dropped == {} and paired.report.fault is None


def test_what_lost_its_other_half_is_counted_and_the_rest_is_read(tmp_path):
    def mark(phase: str, at: int, name: str = "", tid: int = 2) -> dict[str, Any]:
        named = {"cat": "cpu_op", "name": name} if name else {}
        return {"ph": phase, "pid": 1, "tid": tid, "ts": at, **named}

    events = [
        mark("E", 1),  # its begin is before the capture
        mark("B", 2, "outer"),
        mark("B", 3, "lost"),
        mark("B", 4, "inner"),
        mark("E", 5, "inner"),
        mark("E", 9, "outer"),  # "lost" inside it has no end
        mark("B", 10, "never ended"),
        mark("B", 11, "elsewhere", tid=3),
        mark("E", 12, tid=3),
    ]
    trace = read_kineto(write(tmp_path / "t.json", events))
    names = [trace.strings[code] for code in trace.host.name]
    assert sorted(zip(names, trace.host.start_ns, trace.host.duration_ns, strict=True)) == [
        ("elsewhere", 11_000, 1_000),
        ("inner", 4_000, 1_000),
        ("outer", 2_000, 7_000),
    ]
    assert trace.report.dropped == {"an end event without its begin": 1, "a begin event without its end": 2}


def test_an_end_before_its_begin_is_no_duration(tmp_path):
    events = [event(1), event(9, ph="B", dur=...), event(4, ph="E", dur=..., name="operator 9")]
    trace = read_kineto(write(tmp_path / "t.json", events))
    assert trace.report.dropped == {OUT_OF_ORDER: 2}
    assert np.array_equal(trace.host.start_ns, [1000])


def test_begins_that_all_stand_before_the_ends_make_no_false_durations(tmp_path):
    """Two kernels of one name, one after the other: by the stack alone, the second end closed the first begin."""
    marks = [("B", 1), ("B", 3), ("E", 2), ("E", 4)]
    events = [event(20), *(event(at, ph=phase, dur=..., name="gemm", tid=5) for phase, at in marks)]
    trace = read_kineto(write(tmp_path / "t.json", events))
    assert np.array_equal(trace.host.start_ns, [20_000])
    assert sum(trace.report.dropped.values()) == 4 and OUT_OF_ORDER in trace.report.dropped


@pytest.mark.parametrize(
    "changes", [{"ph": "B", "dur": ...}, {"ts": "soon"}, {"dur": -1}, {"ts": 9.3e18}, {"dur": "long"}]
)
def test_a_file_of_which_no_event_can_be_used_is_refused_with_the_reasons(tmp_path, changes):
    path = write(tmp_path / "t.json", [event(index, **changes) for index in range(3)])
    with pytest.raises(BadInputError, match=r"none of its 3 events can be used: 3 × "):
        read_kineto(path)
