"""Microseconds of any size become nanoseconds exactly, by the fast way or by the slow one."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.read.synthetic import write
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.read.kineto.timestamps import exact_times, restore_times, shorten_times, to_nanoseconds


def written(nanoseconds: int) -> str:
    return format(Decimal(nanoseconds) / 1000, "f")


@given(st.lists(st.integers(-(2**43) * 1000 + 1000, 2**43 * 1000 - 1000), min_size=1))
def test_doubles_below_the_limit_are_exact(nanoseconds):
    microseconds = np.array([float(written(value)) for value in nanoseconds])
    assert to_nanoseconds(microseconds).tolist() == nanoseconds


@given(st.integers(2**43, 2**51), st.lists(st.integers(0, 10**14), min_size=1, max_size=20))
def test_longer_times_are_exact_whatever_digits_they_begin_with(first, offsets):
    nanoseconds = [first * 1000 + 123, *(first * 1000 + offset for offset in offsets)]
    text = "[" + ",".join(f'{{"ts": {written(value)}}}' for value in nanoseconds) + "]"
    assert exact_times(text.encode()) == nanoseconds
    shortened = shorten_times(memoryview(text.encode()))
    assert shortened is not None
    times = np.array([row["ts"] for row in msgspec.json.decode(shortened.text)], float)
    restored = restore_times(times, shortened)
    assert restored is None or restored.tolist() == nanoseconds


def test_times_of_different_lengths_in_one_file_are_exact(tmp_path):
    nanoseconds = [1_712_195_495_519_689_047, 9, 1_712_195_495_519_689_048, 999_999_999_999_999]
    nanoseconds += [1_713_000_000_000_000_001, 171_219_549_551_968_904, 9_123_456_789_012_345, -5_001]
    events = ",".join(f'{{"cat": "cpu_op", "ts": {written(value)}, "dur": 1}}' for value in nanoseconds)
    found = read_kineto(write(tmp_path / "t.json", f"[{events}]")).host.start_ns
    assert found.tolist() == nanoseconds


def test_thirteen_digits_are_shortened_too():
    shortened = shorten_times(memoryview(b'[{"ts": 9123456789012.345}]'))
    assert shortened is not None
    assert shortened.text == b'[{"ts": -123456789012.345}]'
    restored = restore_times(np.array([-123456789012.345]), shortened)
    assert restored is not None
    assert restored.tolist() == [9123456789012345]


def test_what_looks_shortened_but_is_not_is_refused():
    shortened = shorten_times(memoryview(b'[{"ts": 1712195495519689.047}]'))
    assert shortened is not None
    for foreign in (-5.0, -0.5e12, -2.5e12, 1.8e15):
        assert restore_times(np.array([-1.195e12, foreign]), shortened) is None


def test_keys_inside_strings_are_left_alone():
    text = rb'[{"ts": 1712195495519689.047, "name": "\"ts\": 1712195495519689.047"}]'
    shortened = shorten_times(memoryview(text))
    assert shortened is not None
    assert shortened.text.count(b"1712195495519689.047") == 1
    assert len(shortened.text) == len(text)


def test_the_base_time_is_added_as_an_integer(tmp_path):
    events = '[{"cat": "kernel", "ts": 4294160216230.551, "dur": 0.001}]'
    trace = read_kineto(write(tmp_path / "t.json", events, baseTimeNanoseconds=1790857026000000000))
    assert trace.device.start_ns.tolist() == [1790857026000000000 + 4294160216230551]
