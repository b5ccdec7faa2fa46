"""What the allocator holds over time, read from the memory events of a trace."""

from __future__ import annotations

import gzip

import pytest

from tests.kineto_file import KinetoFile
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.kineto.memory import MEMORY, read_memory

BASE = 1_770_682_389_013_347_357


def test_events_are_read_by_device_in_the_order_of_time_to_the_nanosecond(tmp_path):
    file = KinetoFile()
    file.header["baseTimeNanoseconds"] = BASE
    file.operator("aten::empty", 100, 900)
    file.memory(2_001, 3_000)
    file.memory(1_003, 1_000)
    file.memory(1_500, 77, device_type=0)
    path = file.write(tmp_path / "rank_0.json")
    rows = [
        (BASE + 1_003, "gpu:0", 1_000, 2_000),
        (BASE + 1_500, "cpu", 77, 154),
        (BASE + 2_001, "gpu:0", 3_000, 6_000),
    ]
    assert [tuple(row.values())[:4] for row in read_memory(path).to_pylist()] == rows
    packed = tmp_path / "rank_0.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_memory(packed).equals(read_memory(path))


def test_a_trace_without_memory_events_and_one_with_half_an_event_give_what_they_hold(tmp_path):
    file = KinetoFile()
    file.operator("aten::empty", 100, 900)
    assert read_memory(file.write(tmp_path / "none.json")).equals(MEMORY.empty_table())
    file.memory(1_000, 5)
    file.events.append({"ph": "i", "name": "[memory]", "ts": 2, "args": {"Bytes": 1}})
    file.events.append({"ph": "i", "name": "[memory]", "ts": 3, "args": {"Total Allocated": "much"}})
    assert read_memory(file.write(tmp_path / "half.json"))["allocated_bytes"].to_pylist() == [5]


def test_what_is_no_trace_is_one_line(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"[memory]": 1}')
    with pytest.raises(BadInputError, match=r"other\.json"):
        read_memory(path)
