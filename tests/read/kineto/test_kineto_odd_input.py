"""Old, foreign and careless writers: what means something is read, what does not is dropped and counted."""

from __future__ import annotations

import json

import pytest

from tests.read.synthetic import event, write
from traceviz_dag.read.events import CPU_OP, KERNEL, MEMORY_COPY, MEMORY_SET, MISSING, PYTHON_FUNCTION
from traceviz_dag.read.kineto.reader import read_kineto


def test_control_characters_in_names_become_blanks(tmp_path):
    text = json.dumps([event(1, name="a_b"), event(2, name="c")]).replace("a_b", "a\x01\n\tb")
    trace = read_kineto(write(tmp_path / "t.json", text))
    assert trace.strings[trace.host.name[0]] == "a   b"
    assert trace.report.dropped == {}
    assert trace.report.fault is None


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "-inf"])
def test_words_for_numbers_are_read_as_absent(tmp_path, word):
    ignored = event(1, args={"memory bandwidth (GB/s)": "@", "External id": 5})
    text = json.dumps([ignored, event(2, name="NaN, -inf"), event(3, ts="@")]).replace('"@"', word)
    trace = read_kineto(write(tmp_path / "t.json", text))
    assert trace.host.external_id.tolist() == [5, 2]
    assert trace.strings[trace.host.name[1]] == "NaN, -inf", "words inside strings stay"
    assert trace.report.dropped == {"no time stamp that is a number, or one beyond 142 years": 1}


def test_wrong_escapes_and_bytes_that_are_no_text_are_fixed(tmp_path):
    text = json.dumps([event(1, name="@"), event(2, name="%"), event(3, name="#"), event(4, name="ok \\u00e9 \\n")])
    text = text.replace("@", r"C:\Work\x").replace("%", r"half \ud83d pair").replace("\\\\", "\\")
    path = write(tmp_path / "t.json", text)
    path.write_bytes(path.read_bytes().replace(b"#", b"caf\xe9"))
    trace = read_kineto(path)
    names = [trace.strings[code] for code in trace.host.name]
    assert names == [r"C:\Work\x", "half \ufffd pair", "caf\ufffd", "ok é \n"]


def test_events_without_usable_times_are_dropped_with_a_reason(tmp_path):
    events = [
        event(1),
        event(2, ts=...),
        event(3, ts="soon"),
        event(4, ts=None),
        event(5, dur=-0.001),
        event(6, dur=...),
        event(7, ph="E", dur=...),
        event(8, ts=True),
        "no event",
        17,
        event(10, ts=2**63),
        event(9, dur=0),
    ]
    for chunk_bytes in (100, 1 << 20):
        trace = read_kineto(write(tmp_path / "t.json", events), chunk_bytes=chunk_bytes)
        assert trace.host.start_ns.tolist() == [1000, 9000]
        assert trace.report.rows_read == len(events)
        assert trace.report.dropped == {
            "no time stamp that is a number, or one beyond 142 years": 5,
            "negative or impossible duration": 1,
            "no duration": 1,
            "an end event without its begin": 1,
            "not an object": 2,
        }


def test_one_event_of_odd_types_does_not_spoil_its_neighbours(tmp_path):
    odd = event(2, "kernel", name=5, pid="0", tid=7.0, args={"stream": "9", "correlation": 12.0, "grid": "none"})
    trace = read_kineto(write(tmp_path / "t.json", [event(1, "kernel"), odd, event(3, "kernel", args=None)]))
    device = trace.device
    assert [trace.strings[code] for code in device.name] == ["operator 1", "5", "operator 3"]
    assert device.device.tolist() == [1, 0, 1]
    assert device.stream.tolist() == [2, 9, 2]
    assert device.correlation.tolist() == [1, 12, MISSING]
    assert device.grid_x.tolist() == [MISSING] * 3
    assert trace.report.dropped == {}


def test_numbers_written_as_text_or_floats_are_numbers(tmp_path):
    args = {"External id": "41", "correlation": 42.0, "bytes": "8", "device": 1, "stream": 7.0}
    trace = read_kineto(write(tmp_path / "t.json", [event(1, "gpu_memcpy", args=args)]))
    found = trace.device
    values = (found.external_id, found.correlation, found.bytes, found.device, found.stream)
    assert [value.tolist() for value in values] == [[41], [42], [8], [1], [7]]


def test_categories_of_old_and_other_writers(tmp_path):
    names = ["Operator", "cpu_op", "Python function", "Kernel", "Memcpy", "Memset", "Runtime"]
    more = ["privateuse1_runtime", "xpu_driver", "mtia_runtime", "gpu_user_annotation", "invented"]
    trace = read_kineto(write(tmp_path / "t.json", [event(index, name) for index, name in enumerate(names + more)]))
    assert trace.host.category.tolist() == [CPU_OP, CPU_OP, PYTHON_FUNCTION]
    assert trace.device.category.tolist() == [KERNEL, MEMORY_COPY, MEMORY_SET]
    assert trace.launches.start_ns.tolist() == [6000, 7000, 8000, 9000]
    assert (trace.report.rows_read, trace.report.dropped) == (12, {})


def test_external_ids_under_their_key_of_2021(tmp_path):
    old = {"external id": 77, "correlation": 3}
    events = [event(1, "Kernel", args=old), event(2, "Runtime", args=old)]
    trace = read_kineto(write(tmp_path / "t.json", events))
    assert trace.device.external_id.tolist() == trace.launches.external_id.tolist() == [77]
    today = [event(1, "kernel", args=old), event(2, "cuda_runtime", args=old)]
    assert read_kineto(write(tmp_path / "t.json", today)).launches.external_id.tolist() == [77]


def test_process_and_thread_ids_may_be_text(tmp_path):
    events = [event(1, tid="loader"), event(2, tid=5), event(3, tid="loader"), event(4, tid="saver")]
    trace = read_kineto(write(tmp_path / "t.json", events))
    assert trace.host.thread.tolist() == [0, 1, 0, 2]
    assert [thread.name for thread in trace.threads] == ["loader", "", "saver"]
    assert len({thread.thread_id for thread in trace.threads}) == 3


@pytest.mark.parametrize("first", ["7", 7, "loader"])
def test_ids_that_are_numbers_in_text_are_these_numbers_whatever_comes_first(tmp_path, first):
    named = {"ph": "M", "name": "thread_name", "pid": "1", "tid": "7", "args": {"name": "pt_main_thread"}}
    rows = [event(1, tid=first), event(2, tid=7, pid=1), event(3, tid="7", pid="1")]
    kernels = [event(4, "kernel", pid="0", tid="20", args={"correlation": 4})]
    trace = read_kineto(write(tmp_path / "t.json", [named, *rows, *kernels]))
    assert len(set(trace.host.thread[-2:].tolist())) == 1
    one = trace.threads[trace.host.thread[-1]]
    assert (one.process_id, one.thread_id, one.name) == (1, 7, "pt_main_thread")
    assert (trace.device.device.tolist(), trace.device.stream.tolist()) == ([0], [20])


def test_many_threads_and_processes_keep_their_rows(tmp_path):
    events = [event(index, pid=index % 3, tid=100 + index % 40) for index in range(400)]
    trace = read_kineto(write(tmp_path / "t.json", events))
    found = [(trace.threads[i].process_id, trace.threads[i].thread_id) for i in trace.host.thread]
    assert found == [(index % 3, 100 + index % 40) for index in range(400)]


def test_the_most_telling_of_several_thread_names_wins_wherever_it_is(tmp_path):
    def named(name: str) -> dict[str, object]:
        return {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": name}}

    names = ["thread 2 (python3)", "thread 2 (pt_autograd_0) ", "thread 2 (pt_main_thread)"]
    for order in (names, names[::-1]):
        events = [named(order[0]), event(1), named(order[1]), {"ph": "M", "name": "process_name"}, named(order[2])]
        trace = read_kineto(write(tmp_path / "t.json", events))
        assert [thread.name for thread in trace.threads] == ["thread 2 (pt_autograd_0)"]


def test_kernels_of_several_processes_are_distinguished_by_their_launches(tmp_path):
    def kernel(index: int, correlation: int) -> dict[str, object]:
        return event(index, "kernel", pid=0, tid=7, args={"correlation": correlation, "device": 0, "stream": 7})

    launches = [event(1, "cuda_runtime", pid=11), event(2, "cuda_runtime", pid=12)]
    shared = [event(3, "cuda_runtime", pid=pid, args={"correlation": 9}) for pid in (11, 12)]
    kernels = [kernel(4, 1), kernel(5, 2), kernel(6, 9), kernel(7, 100)]
    trace = read_kineto(write(tmp_path / "t.json", [*launches, *shared, *kernels]))
    assert trace.device.process.tolist() == [0, 1, -1, -1], "two processes share 9, none launched 100"
    alone = read_kineto(write(tmp_path / "t.json", [launches[0], *kernels]))
    assert alone.device.process.tolist() == [0, 0, 0, 0]


def test_facts_of_communication_in_all_their_spellings(tmp_path):
    facts = {
        "Collective name": "all_to_all",
        "In msg nelems": 8.0,
        "Out msg nelems": "16",
        "Group size": 2,
        "dtype": "BFloat16",
        "In split size": "[4, 4]",
        "Process Group Name": 7,
        "Process Group Description": "undefined",
        "Process Group Ranks": [0, 3],
        "Seq": 12,
        "Src Rank": 1,
        "Dst Rank": 0,
    }
    spellings = ("[0,3]", "0, 3", [0, 3], "[0, 1, ..., 31]")
    events = [event(1, "kernel"), *(event(2, "kernel", args=facts | {"Process Group Ranks": one}) for one in spellings)]
    events += [event(2, "kernel", args={"Collective name": "all_to_all"})]
    events += [event(3, name="record_param_comms"), event(4, name="record_param_comms", args=facts)]
    trace = read_kineto(write(tmp_path / "t.json", events))
    found = trace.device.collective
    texts = {name: [trace.strings[code] for code in getattr(found, name)] for name in ("group_ranks", "group_name")}
    assert texts["group_ranks"] == ["", "[0, 3]", "[0, 3]", "[0, 3]", "[0, 1, ..., 31]", ""]
    assert texts["group_name"] == ["", "7", "7", "7", "7", ""]
    assert found.group_description.tolist() == [0] * 6
    assert found.in_elements.tolist()[:2] == [MISSING, 8]
    assert found.out_elements.tolist()[:2] == [MISSING, 16]
    assert (found.sequence[1], found.source_rank[1], found.destination_rank[1]) == (12, 1, 0)
    assert trace.communication_operators.tolist() == [1]
    assert trace.strings[trace.operator_facts.in_split[0]] == "[4, 4]"
    assert len(trace.operator_facts) == 1


def test_a_group_alone_is_a_fact(tmp_path):
    events = [event(1, "kernel"), event(2, "kernel", args={"Process Group Name": "5"})]
    trace = read_kineto(write(tmp_path / "t.json", events))
    assert [trace.strings[code] for code in trace.device.collective.group_name] == ["", "5"]


def test_kernels_that_appear_twice_count_once_and_are_reported(tmp_path):
    """A trace that was appended to itself would double every sum of kernel times."""
    same = {"cat": "kernel", "name": "gemm", "args": {"stream": 7, "device": 0, "correlation": 5}}
    other = same | {"args": same["args"] | {"correlation": 6}}
    empty = {"dur": 0} | same
    rows = [
        event(1, **same),
        event(2, **other),
        event(1, **same),
        event(1, **other),
        event(3, **empty),
        event(3, **empty),
    ]
    trace = read_kineto(write(tmp_path / "t.json", rows))
    assert trace.device.start_ns.tolist() == [1000, 2000, 1000, 3000, 3000]
    assert trace.device.correlation.tolist() == [5, 6, 6, 5, 5]
    assert len(trace.device.collective) == 5
    assert trace.report.dropped == {"a repetition of another kernel or copy": 1}
