"""What the writer of Perfetto traces writes, decoded with Perfetto's own protobuf classes."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, Trace

from traceviz_dag.show.perfetto.protobuf_rows import Messages
from traceviz_dag.show.perfetto.trace import Slices, perfetto_trace
from traceviz_dag.show.perfetto.trace_lanes import begin_end_order, lanes_of, nests

ZERO = 1_770_682_389_000_000_001
BEGIN, END, COUNTER = 1, 2, 4


def decoded(path: Path) -> Trace:
    """The trace, by Perfetto's own classes."""
    return Trace.FromString(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


def replayed(trace: Trace) -> list[tuple[str, str, int, int, int]]:
    """(track name, slice name, track, start, end) of every slice, paired by a stack a track as Perfetto does it."""
    names = {entry.iid: entry.name for packet in trace.packet for entry in packet.interned_data.event_names}
    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor.name
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }
    events = [packet for packet in trace.packet if packet.HasField("track_event")]
    stacks: dict[int, list[tuple[str, int]]] = {}
    found = []
    for packet in sorted(events, key=lambda packet: packet.timestamp):
        event = packet.track_event
        stack = stacks.setdefault(event.track_uuid, [])
        if event.type == BEGIN:
            stack.append((names.get(event.name_iid, ""), packet.timestamp))
        elif event.type == END:
            name, start = stack.pop()
            found.append((tracks[event.track_uuid], name, event.track_uuid, start, packet.timestamp))
    assert not any(stacks.values())
    return found


@pytest.mark.parametrize("name", ["out.pftrace", "out.pftrace.gz"])
def test_slices_keep_names_times_facts_and_places(tmp_path: Path, name: str) -> None:
    with perfetto_trace(tmp_path / name, "clocks as recorded", {"run": "job"}) as trace:
        rank = trace.add_track("stage 0 · rank 3", order=3, description="slow")
        stream = trace.add_track("stream 7", rank, order=1)
        depth = trace.add_counter("in flight", rank, unit="micro-batches")
        trace.add_slices(
            stream,
            Slices(
                np.array([ZERO, ZERO + 10]),
                np.array([7, 0]),
                pa.array(["gemm", "copy"]).dictionary_encode(),
                pa.array(["fwd_computation", None]),
                {"kernel_id": np.array([5, -1]), "share": pa.array([None, 0.25]), "graph": pa.array([True, None])},
                flows_out=[np.array([9, 0], np.uint64)],
                flows_in=[np.array([0, 9], np.uint64)],
            ),
        )
        trace.add_counts(depth, np.array([ZERO, ZERO + 5]), np.array([1, -2]))
    written = decoded(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert [(row[:2], row[3:]) for row in replayed(written)] == [
        (("stream 7", "gemm"), (ZERO, ZERO + 7)),
        (("stream 7", "copy"), (ZERO + 10, ZERO + 10)),
        (("about this trace", "clocks as recorded"), (ZERO, ZERO + 10)),
    ]
    descriptors = {
        p.track_descriptor.name: p.track_descriptor for p in written.packet if p.HasField("track_descriptor")
    }
    assert descriptors["stream 7"].parent_uuid == descriptors["stage 0 · rank 3"].uuid
    assert descriptors["stage 0 · rank 3"].description == "slow"
    assert descriptors["in flight"].counter.unit_name == "micro-batches"
    first = next(p.track_event for p in written.packet if p.track_event.type == BEGIN)
    assert list(first.flow_ids) == [9]
    flows = [(p.track_event.type, p.timestamp) for p in written.packet if p.track_event.flow_ids]
    assert flows == [(BEGIN, ZERO), (END, ZERO + 10)]
    assert first.category_iids and first.correlation_id_str_iid
    arguments = [list(p.track_event.debug_annotations) for p in written.packet if p.track_event.type == BEGIN]
    assert [[a.WhichOneof("value") for a in row] for row in arguments[:2]] == [
        ["int_value", "bool_value"],
        ["int_value", "double_value"],
    ]
    assert [arguments[0][0].int_value, arguments[1][0].int_value] == [5, -1]
    assert [p.track_event.counter_value for p in written.packet if p.track_event.type == COUNTER] == [1, -2]


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="negative"), perfetto_trace(tmp_path / "out.pftrace", "clocks") as trace:
        trace.add_slices(trace.add_track("t"), Slices(np.array([1]), np.array([-1]), "x"))
    assert not list(tmp_path.iterdir())


def test_overlapping_slices_take_lanes_of_one_name_and_nested_ones_stay(tmp_path: Path) -> None:
    starts, durations = np.array([0, 2, 4, 20]), np.array([10, 3, 20, 1])
    with perfetto_trace(tmp_path / "out.pftrace", "clocks") as trace:
        assert trace.add_slices(trace.add_track("crossing"), Slices(starts, durations, "x"), nested=True) == 3
        nested = Slices(np.array([0, 0, 5]), np.array([10, 5, 5]), "y")
        assert trace.add_slices(trace.add_track("nested"), nested, nested=True) == 1
        assert trace.add_slices(trace.add_track("flat"), nested) == 2
    found = replayed(decoded(tmp_path / "out.pftrace"))
    assert sorted(row[3:] for row in found if row[0] == "crossing") == [(0, 10), (2, 5), (4, 24), (20, 21)]
    assert sorted(row[3:] for row in found if row[0] == "nested") == [(0, 5), (0, 10), (5, 10)]


_SLICES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=40)


@given(_SLICES)
@settings(max_examples=100, deadline=None)
def test_no_two_slices_of_a_lane_overlap_and_no_lane_is_wasted(drawn: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in drawn], np.int64)
    ends = starts + np.array([length for _, length in drawn], np.int64)
    lanes = lanes_of(starts, ends)
    for lane in set(lanes.tolist()):
        own = sorted(zip(starts[lanes == lane].tolist(), ends[lanes == lane].tolist(), strict=True))
        assert all(before[1] <= after[0] for before, after in pairwise(own))
    needed = max((int(((starts <= at) & (ends > at)).sum()) for at in starts.tolist()), default=0)
    assert int(lanes.max(initial=-1)) + 1 <= max(needed, 1) + int((starts == ends).any())


@given(_SLICES)
@settings(max_examples=100, deadline=None)
def test_a_stack_pairs_begins_and_ends_of_lanes_rightly(drawn: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in drawn], np.int64)
    ends = starts + np.array([length for _, length in drawn], np.int64)
    lanes = lanes_of(starts, ends)
    stacks: dict[int, list[int]] = {}
    order, begins = begin_end_order(starts, ends)
    times = np.where(begins, starts[order], ends[order])
    assert (np.diff(times) >= 0).all()
    for number, begin in zip(order.tolist(), begins.tolist(), strict=True):
        stack = stacks.setdefault(int(lanes[number]), [])
        if begin:
            stack.append(number)
        else:
            assert stack.pop() == number


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.booleans(), st.integers(0, 2**64 - 1)), min_size=1))
@settings(max_examples=100, deadline=None)
def test_encoded_rows_are_what_protobuf_reads(drawn: list[tuple[int, bool, int]]) -> None:
    values = np.array([row[0] for row in drawn], np.int64)
    present = np.array([row[1] for row in drawn])
    identities = np.array([row[2] for row in drawn], np.uint64)
    inner = Messages(len(drawn))
    inner.varint(4, values, present)
    inner.varint(1, identities)
    outer = Messages(len(drawn))
    outer.messages(11, inner)
    whole = Messages(len(drawn))
    whole.messages(11, outer)
    read = DebugAnnotation.FromString(whole.encode())
    entries = [entry.dict_entries[0] for entry in read.dict_entries]
    assert [entry.int_value for entry in entries] == np.where(present, values, 0).tolist()
    assert [entry.name_iid for entry in entries] == identities.tolist()


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), max_size=25))
@settings(max_examples=100)
def test_slices_nest_where_every_two_are_apart_or_one_holds_the_other(slices):
    starts = np.array([start for start, _ in slices], np.int64)
    ends = starts + np.array([length for _, length in slices], np.int64)
    crossing = any(a < c < b < d for a, b in zip(starts, ends, strict=True) for c, d in zip(starts, ends, strict=True))
    assert nests(starts, ends) == (not crossing)
