"""Files that are no trace raise one line with file, fault and remedy; files that break off give what they hold."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from tests.read.synthetic import event, write
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.kineto.peek import peek, peek_header
from traceviz_dag.read.kineto.reader import read_kineto

NO_TRACE = {
    "empty": (b"", "empty file"),
    "blank": (b"  \n ", "only blanks"),
    "text": (b"rank 0 finished\n", "not JSON"),
    "broken": (b'{"schemaVersion": 1, oops}', "not JSON"),
    "cut_header": (b'{"schemaVersion": 1, "deviceProp', "ends before the first event"),
    "other_json": (b'{"schemaVersion": 1, "note": "traceEvents"}', "JSON without traceEvents"),
    "no_array": (b'{"traceEvents": null}', "JSON without traceEvents"),
    "cut_gzip": (gzip.compress(b'{"schemaVersion": 1, ' + b" " * 5000)[:25], "gzip stream ends early"),
    "damaged_gzip": (b"\x1f\x8b\x08\x00" + b"\xff" * 60, "gzip stream is damaged"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(100), "a picture (PNG)"),
}


@pytest.mark.parametrize("name", NO_TRACE)
@pytest.mark.parametrize("reader", [read_kineto, peek, peek_header])
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, name, reader):
    content, fault = NO_TRACE[name]
    path = tmp_path / f"{name}.json"
    path.write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        reader(path)
    assert fault in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(BadInputError, match="no such file"):
        read_kineto(tmp_path / "nothing.json")
    with pytest.raises(BadInputError, match="a folder"):
        read_kineto(tmp_path)


@pytest.mark.long
def test_a_file_that_breaks_off_anywhere_gives_all_its_whole_events(tmp_path):
    nested = {"shapes": [{"a": [1, {"b": "}, {"}]}, {"c": 2}], "text": '"}]}, {"ph": "X"'}
    events = [event(index, ("cpu_op", "kernel", "ac2g")[index % 3], args=nested) for index in range(6)]
    whole = write(tmp_path / "whole.json", events, behind={"baseTimeNanoseconds": 5}).read_bytes()
    decoder, text = json.JSONDecoder(), whole.decode()
    position, ends = text.index("[", text.index('"traceEvents"')) + 1, []
    for _ in events:
        position = text.index("{", position)
        _, position = decoder.raw_decode(text, position)
        ends.append(position)
    path = tmp_path / "cut.json"
    for cut in range(ends[0], len(whole)):
        path.write_bytes(whole[:cut])
        trace = read_kineto(path, chunk_bytes=64 if cut % 2 else 1 << 20)
        assert trace.report.rows_read == sum(end <= cut for end in ends), f"cut at {cut}"
        assert trace.report.fault is not None, f"cut at {cut}"


def test_a_gzip_file_that_breaks_off_gives_what_was_inflated(tmp_path):
    plain = write(tmp_path / "whole.json", [event(index, name=str(hash(index) * 7919)) for index in range(20_000)])
    packed = gzip.compress(plain.read_bytes())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    trace = read_kineto(path)
    assert 8_000 < trace.report.rows_read < 12_000
    assert trace.host.start_ns.tolist() == [index * 1000 for index in range(trace.report.rows_read)]
    assert trace.report.fault.startswith("the gzip stream ends early")
    assert trace.report.dropped == {"cut off by the end of the file": 1}


def test_a_gzip_file_with_a_wrong_check_sum_is_reported(tmp_path):
    packed = bytearray(gzip.compress(write(tmp_path / "t.json", [event(i) for i in range(50_000)]).read_bytes()))
    packed[-8:-4] = (zlib.crc32(bytes(packed)) ^ 0xFFFF).to_bytes(4, "little")
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    report = read_kineto(path).report
    assert report.fault.startswith("the gzip stream is damaged")
    assert report.rows_read > 10_000


def test_a_damaged_event_costs_only_itself(tmp_path):
    events = [event(index) for index in range(100)]
    text = json.dumps(events).replace('"operator 40", "pid": 1', '"operator 40" "pid": 1')
    for chunk_bytes in (200, 1 << 20):
        trace = read_kineto(write(tmp_path / "t.json", text), chunk_bytes=chunk_bytes)
        assert trace.report.dropped == {"malformed JSON": 1}
        assert trace.report.fault is None
        assert [time // 1000 for time in trace.host.start_ns.tolist()] == [i for i in range(100) if i != 40]


@pytest.mark.parametrize("index", [0, 99])
def test_a_damaged_first_or_last_event_costs_only_itself(tmp_path, index):
    events = [event(index) for index in range(100)]
    text = json.dumps(events).replace(f'"operator {index}", "pid": 1', f'"operator {index}",, "pid": 1')
    trace = read_kineto(write(tmp_path / "t.json", text, behind={"baseTimeNanoseconds": 7}))
    assert (len(trace.host), trace.report.dropped) == (99, {"malformed JSON": 1})
    assert trace.header.base_time_ns == 7


DAMAGE = {
    "missing brace": ("}}, ", "}, "),
    "missing bracket": ('"shapes": [1, 2]', '"shapes": [1, 2'),
    "stray bracket": ("}}, ", "}}], "),
    "stray brace": ("}}, ", "}}}, "),
    "missing quote": ('"cat": "cpu_op"', '"cat": "cpu_op'),
    "missing comma": ("}}, ", "}} "),
    "half a number": ('"dur": 0.5', '"dur": 0.'),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("chunk_bytes", [500, 1 << 20])
def test_no_damage_costs_more_than_its_neighbour(tmp_path, damage, chunk_bytes):
    rows = [json.dumps(event(index, args={"shapes": [1, 2]})) + ", " for index in range(200)]
    rows[77] = rows[77].replace(*DAMAGE[damage])
    text = "[" + "".join(rows).removesuffix(", ") + "]"
    path = write(tmp_path / "t.json", text, behind={"baseTimeNanoseconds": 7})
    trace = read_kineto(path, chunk_bytes=chunk_bytes)
    kept = [time // 1000 for time in trace.host.start_ns.tolist()]
    assert set(range(200)) - set(kept) <= {76, 77, 78}
    assert len(kept) >= 198
    assert trace.report.dropped == {"malformed JSON": 1}
    assert (trace.header.base_time_ns, trace.report.fault) == (7, None)


def test_a_file_of_damaged_events_is_given_up_soon(tmp_path):
    text = "[" + ",".join('{"ph": "X", "cat": "cpu_op", "ts": 1 2}' for _ in range(3000)) + "]"
    with pytest.raises(BadInputError, match="too many of its events are malformed"):
        read_kineto(write(tmp_path / "t.json", text))


def test_an_unreadable_header_is_a_fault_and_the_events_are_read(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"schemaVersion": , "traceEvents": ' + json.dumps([event(1)]) + "}")
    trace = read_kineto(path)
    assert len(trace.host) == 1
    assert trace.report.fault.startswith("the header before the events cannot be read")


@pytest.mark.parametrize(
    ("written", "told"), [("", ""), ('""tp""', "tp"), ("mesh_tp", "mesh_tp"), ("null", ""), ('"a"', "a")]
)
def test_a_description_of_a_process_group_that_is_no_json_costs_no_communication(tmp_path, written, told):
    """Some versions of PyTorch leave it empty, or quote it twice."""
    row = (
        '{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce_Sum_f32_RING_LL","pid":0,"tid":7,"ts":%d,"dur":5,'
        '"args":{"device":0,"stream":7,"correlation":%d,"Collective name":"allreduce","Process Group Name":"1",'
        '"Process Group Description": %s,"Seq":%d,"Comms Id":12345678901234567890}}'
    )
    path = tmp_path / "rank_0.json"
    path.write_text('{"traceEvents":[%s]}' % ",".join(row % (10 * n, n, written, n) for n in (1, 2, 3)))  # noqa: UP031
    trace = read_kineto(path)
    facts = trace.device.collective
    assert facts.sequence.tolist() == [1, 2, 3] and not trace.report.dropped
    assert [trace.strings[code] for code in facts.group_description.tolist()] == [told] * 3
