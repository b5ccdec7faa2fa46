"""Of a trace's header only whitelisted facts are kept, however they are written."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from traceviz_dag.read.events import ProcessGroup
from traceviz_dag.read.kineto.header import decode_header


def header_of(**keys: object):
    return decode_header(json.dumps(keys).encode()[:-1] + b', "traceEvents": ', b', "traceName": "x"}')[0]


def test_groups_of_all_versions():
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": "1", "pg_desc": "undefined", "group_size": 2, "ranks": "[0, 2]"},
        {"pg_name": 2, "pg_size": 4, "ranks": []},
        {"pg_name": "3", "pg_size": 64, "ranks": "[0, 1, ..., 63]"},
        {"ranks": [5, 6]},
        "no group",
    ]
    assert header_of(distributedInfo={"rank": 1, "pg_config": groups}).process_groups == (
        ProcessGroup("0", "default_pg", (0, 1, 2, 3), 4),
        ProcessGroup("1", None, (0, 2), 2),
        ProcessGroup("2", None, (), 4),
        ProcessGroup("3", None, (), 64),
        ProcessGroup(None, None, (5, 6), 2),
    )


def test_nothing_of_hosts_users_and_paths_is_kept():
    secrets = {"host_name": "node17.cluster", "username": "alice", "traceName": "/home/alice/t.json", "tw_job": "j"}
    header = header_of(distributedInfo={"rank": 0, "host": "node17"}, **secrets)
    kept = json.dumps(asdict(header))
    assert not any(word in kept for word in ("node17", "alice", "tw_job"))


def test_versions_of_cuda_and_hip_are_reported_in_their_own_words_and_no_version_is_made_up():
    cuda = header_of(cuda_runtime_version=12080, cuda_driver_version=13000)
    assert (cuda.runtime_version, cuda.driver_version) == ("CUDA 12.8", "CUDA 13.0")
    hip = header_of(hip_runtime_version=60443483, hip_driver_version="60443483")
    assert (hip.runtime_version, hip.driver_version) == ("HIP 6.4.43483", "HIP 6.4.43483")
    odd = header_of(cuda_runtime_version=-1, cuda_driver_version=[10**40])
    assert (odd.runtime_version, odd.driver_version) == (None, None)
    assert header_of(cupti_version=28).profiler_version == "CUPTI 28"
    assert header_of(roctracer_version=4.1).profiler_version == "roctracer 4.1"
    assert header_of(cupti_version="/home/alice", roctracer_version=[1]).profiler_version is None


def test_settings_of_the_job_are_kept_and_what_may_be_a_secret_is_not():
    settings = {
        "NCCL_ALGO": "Ring",
        "tp_comm_overlap": "True",
        "HF_TOKEN": "hf_" + "a" * 34,
        "API_KEY": "abcdefgh12345678",
    }
    odd = {"path": "/home/alice/x", "a b": "1", "number": 5, "long": "x" * 101, "login": "u:p@h"}
    header = header_of(traceviz_capture={"settings": settings | odd})
    assert header.settings == (("NCCL_ALGO", "Ring"), ("tp_comm_overlap", "True"))
    for wrong in ("text", ["list"], {"settings": [1]}, {"settings": None}, None):
        assert header_of(traceviz_capture=wrong).settings == ()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("0-1,8-9", "0-1, 8-9"),
        ("9,8, 0", "0, 8-9"),
        ("3-1", None),
        ("0-16", None),
        ("0-99999999999", None),
        ([1], None),
    ],
)
def test_the_ranks_that_a_capture_chose_are_those_of_its_world(given, kept):
    world = {"rank": 0, "world_size": 16}
    header = header_of(distributedInfo=world, traceviz_capture={"captured_ranks": given})
    assert header.captured_ranks == kept
    assert header_of(traceviz_capture={"captured_ranks": given}).captured_ranks is None


def test_the_clocks_of_a_host_are_read_where_both_are_clocks():
    start = {"monotonic_ns": 696_211_450_822, "utc_ns": 1_795_790_671_283_689_653, "uncertainty_ns": 966}
    header = header_of(traceviz_capture={"clock": {"start": start}})
    assert header.host_clock_ns == 1_795_789_975_072_238_831
    for wrong in ({"utc_ns": None}, {"monotonic_ns": -1}, {"utc_ns": 2**70}, {"monotonic_ns": True}, {"utc_ns": 1.5}):
        assert header_of(traceviz_capture={"clock": {"start": start | wrong}}).host_clock_ns is None
    for odd in ({"clock": [1]}, {"clock": {"start": 5}}, {"clock": None}, [], "text"):
        assert header_of(traceviz_capture=odd).host_clock_ns is None


def test_odd_types_are_read_or_left_out():
    header = header_of(
        distributedInfo={"rank": "3", "world_size": 8.0, "nccl_version": [2, 27, 5], "pg_config": {"0": 1}},
        with_stack="true",
        record_shapes=0,
        deviceProperties=[{"id": 0}, {"id": 1, "name": "H100"}],
    )
    assert (header.rank, header.world_size, header.nccl_version, header.process_groups) == (3, 8, "[2, 27, 5]", ())
    assert (header.with_stack, header.record_shapes, header.device_name) == (True, False, "H100")
    nothing = header_of(distributedInfo="none", deviceProperties={}, baseTimeNanoseconds=None)
    assert (nothing.rank, nothing.device_name, nothing.base_time_ns) == (None, None, 0)


def test_facts_stand_before_or_behind_the_events_and_control_characters_do_not_matter():
    before = b'\xef\xbb\xbf{"host": "a\x01b", "distributedInfo": {"rank": 2}, "traceEvents" : '
    header, fault = decode_header(before, b' , "baseTimeNanoseconds": 12, "INFO": ["x\ny"] }\n')
    assert (header.rank, header.base_time_ns, fault) == (2, 12, None)
    header, fault = decode_header(before, b' , "baseTimeNano')
    assert (header.rank, header.base_time_ns, fault) == (2, 0, "the header behind the events cannot be read")


def test_a_second_array_of_events_is_reported():
    _, fault = decode_header(b'{"traceEvents": ', b', "traceEvents": [{"ph": "X"}]}')
    assert fault == "a second array traceEvents behind the first is not read"
