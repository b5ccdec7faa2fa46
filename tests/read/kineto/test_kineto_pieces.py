"""What a trace says does not depend on where the reader cuts it, nor on how it is written down."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.read.plain_rows import assert_same
from tests.read.synthetic import AWKWARD_NAMES, event, write
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.read.kineto.reader import read_kineto

NESTED = {"shapes": [{"a": [{"b": 1}, {"ph": "M"}]}, {"name": "}, {"}], "External id": 7}
CATEGORIES = ("cpu_op", "python_function", "user_annotation", "kernel", "cuda_runtime", "ac2g", "gpu_memcpy", "Trace")

rows = st.builds(
    lambda category, name, nested, microseconds, thread: (category, name, nested, microseconds, thread),
    st.sampled_from(CATEGORIES),
    st.sampled_from([*AWKWARD_NAMES, "record_param_comms"]),
    st.booleans(),
    st.integers(0, 2**42),
    st.integers(0, 3),
)


def as_event(row: tuple[str, str, bool, int, int]) -> dict[str, Any]:
    category, name, nested, microseconds, thread = row
    args = NESTED if nested else {"Collective name": name, "Process Group Ranks": [0, thread], "Python parent id": None}
    return event(0, category, name, ts=microseconds, tid=thread, args=args)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, max_size=30), st.integers(1, 3000), st.sampled_from([None, 1, 4]))
def test_any_piece_size_gives_the_same_columns(tmp_path_factory, drawn, chunk_bytes, indent):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    metadata = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "thread 2 (pt_main_thread)"}}
    events = [as_event(row) for row in drawn]
    events.insert(len(events) // 2, metadata)
    write(path, events, indent=indent, behind={"deviceProperties": [{"name": "H100"}], "baseTimeNanoseconds": 3})
    whole = read_kineto(path, chunk_bytes=1 << 20)
    assert whole.report.rows_read == len(events)
    assert (whole.header.base_time_ns, whole.header.device_name) == (3, "H100")
    assert_same(whole, read_kineto(path, chunk_bytes=chunk_bytes))


def test_names_with_brackets_and_quotes_come_back_as_they_are(tmp_path):
    events = [event(index, name=name) for index, name in enumerate(AWKWARD_NAMES * 50)]
    trace = read_kineto(write(tmp_path / "t.json", events), chunk_bytes=256)
    assert [trace.strings[code] for code in trace.host.name] == list(AWKWARD_NAMES * 50)


def test_an_event_larger_than_a_piece_is_read(tmp_path):
    events = [event(1), event(2, name="x" * 100_000), event(3)]
    trace = read_kineto(write(tmp_path / "t.json", events), chunk_bytes=1000)
    assert trace.host.start_ns.tolist() == [1000, 2000, 3000]


def test_long_text_behind_the_events_is_read_to_its_end(tmp_path):
    notes = [{"INFO": "x" * 50}, {"INFO": '}, {"ph"'}] * 200
    path = write(tmp_path / "t.json", [event(1)], behind={"INFO": notes, "distributedInfo": {"rank": 5}})
    for chunk_bytes in (64, 1000, 1 << 20):
        assert read_kineto(path, chunk_bytes=chunk_bytes).header.rank == 5


def test_gzip_is_known_from_content_and_members_may_follow_one_another(tmp_path):
    plain = write(tmp_path / "t.json.gz", [event(index) for index in range(500)])
    text = plain.read_bytes()
    packed = tmp_path / "t.json"
    packed.write_bytes(gzip.compress(text[:700]) + gzip.compress(text[700:]) + bytes(20))
    assert_same(read_kineto(plain), read_kineto(packed))
    assert len(read_kineto(plain).host) == 500


def test_reading_gives_the_digest_of_all_bytes_of_the_file_or_none(tmp_path):
    plain = write(tmp_path / "t.json", [event(index) for index in range(3_000)], behind={"note": "x" * 5_000})
    packed = gzip.compress(plain.read_bytes())
    for name, content in (("packed", packed + bytes(70_000)), ("cut", plain.read_bytes()[:90_000])):
        (tmp_path / name).write_bytes(content)
    for name in ("t.json", "packed", "cut"):
        for chunk_bytes in (5_000, 1 << 20):
            assert read_kineto(tmp_path / name, chunk_bytes=chunk_bytes).report.digest == digest_of(tmp_path / name)
    damaged = bytearray(packed)
    damaged[20_000:20_040] = bytes(40)
    (tmp_path / "damaged").write_bytes(damaged + bytes(1 << 20))
    assert read_kineto(tmp_path / "damaged").report.digest is None


def test_a_bare_array_of_events_is_a_trace(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("\ufeff " + json.dumps([event(1, "kernel"), event(2, "kernel")]), encoding="utf-8")
    trace = read_kineto(path)
    assert (len(trace.device), trace.report.fault, trace.header.rank) == (2, None, None)


def test_an_empty_trace_has_no_rows_and_no_fault(tmp_path):
    trace = read_kineto(write(tmp_path / "t.json", [], distributedInfo={"rank": 1}))
    assert (len(trace.host), trace.report.rows_read, trace.report.fault, trace.header.rank) == (0, 0, None, 1)


def test_pieces_of_epoch_microseconds_keep_every_nanosecond(tmp_path):
    ticks = 1_712_195_495_519_689_047 + np.arange(400, dtype=np.int64) * 7_919
    digits = [f"{tick // 1000}.{tick % 1000:03}" for tick in ticks.tolist()]
    text = ",".join(f'{{"ph":"X","cat":"cpu_op","name":"a","ts":{digit},"dur":0.001}}' for digit in digits)
    for chunk_bytes in (300, 1 << 20):
        trace = read_kineto(write(tmp_path / "t.json", f"[{text}]"), chunk_bytes=chunk_bytes)
        assert trace.host.start_ns.tolist() == ticks.tolist()
        assert set(trace.host.duration_ns.tolist()) == {1}


def test_a_comma_that_lacks_before_metadata_is_as_malformed_as_elsewhere(tmp_path):
    metadata = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "thread 2"}}
    path = write(tmp_path / "t.json", [event(1), event(2), metadata, metadata])
    text = path.read_text()
    at = text.rindex(",", 0, text.index('"ph": "M"'))
    path.write_text(text[:at] + " " + text[at + 1 :])
    assert sum(read_kineto(path).report.dropped.values()) == 1
