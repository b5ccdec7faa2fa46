"""Traces made to hurt: sizes, numbers and nesting that nothing backs are refused or flagged, and cost no memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.read.synthetic import event
from traceviz_dag.classify.topology.unite import topology_tables, unite
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import ProcessGroup, TraceHeader
from traceviz_dag.read.kineto import chunks, peek
from traceviz_dag.read.kineto import reader as kineto
from traceviz_dag.read.kineto.header import canonical_ranks
from traceviz_dag.read.kineto.peek import peek_header
from traceviz_dag.read.kineto.reader import read_kineto

DEEP = "[" * 20_000 + "]" * 20_000
"""Deeper than the decoder goes in any Python: about 1,000 levels, 10,000 in 3.13."""


def _write(path: Path, events: list[str], **header: Any) -> Path:
    before = "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in header.items())
    path.write_text("{" + before + '"traceEvents": [' + ", ".join(events) + "]}")
    return path


def _event(index: int, **changes: Any) -> str:
    return json.dumps(event(index, "kernel", **changes))


def test_an_event_that_nests_too_deeply_is_dropped_alone(tmp_path):
    deep = _event(1).replace('"args": {', '"args": {"x": ' + DEEP + ", ", 1)
    path = _write(tmp_path / "t.json", [_event(0), deep, _event(2), deep, _event(3)])
    events = read_kineto(path)
    assert events.report.dropped == {"malformed JSON": 2}
    assert len(events.device) == 3


@pytest.mark.parametrize("chunk_bytes", [64, 1000, 1 << 20])
def test_deep_events_are_dropped_whatever_the_pieces(tmp_path, chunk_bytes):
    deep = _event(1).replace('"args": {', '"args": {"x": ' + DEEP + ", ", 1)
    path = _write(tmp_path / "t.json", [_event(0), deep, _event(2)])
    assert len(read_kineto(path, chunk_bytes=chunk_bytes).device) == 2


def test_a_header_that_nests_too_deeply_is_flagged_and_the_events_stay(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"schemaVersion": 1, "x": ' + DEEP + ', "traceEvents": [' + _event(0) + "]}")
    events = read_kineto(path)
    assert events.report.rows_read == 1
    assert "header before the events cannot be read" in str(events.report.fault)
    assert peek_header(path).rank is None


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"world_size": 4503599627370497}, "world size of 4503599627370497"),
        ({"world_size": -4}, "world size of -4"),
        ({"rank": 10**12}, "rank 1000000000000"),
        ({"rank": 10**30}, "rank 1000000000000"),
        ({"world_size": 4.5}, "world size of 4.5"),
    ],
)
def test_numbers_that_no_job_has_are_not_believed_and_said(tmp_path, facts, words):
    path = _write(tmp_path / "t.json", [_event(0)], distributedInfo={"rank": 0, "world_size": 2, **facts})
    events = read_kineto(path)
    assert words in str(events.report.fault)
    assert getattr(events.header, next(iter(facts))) is None


@pytest.mark.parametrize("digits", [20, 310, 400, 5000])
@pytest.mark.parametrize("place", [0, 1])
def test_a_time_with_too_many_digits_costs_its_event_alone(tmp_path, digits, place):
    """The first time of a text decides how the others are read; the times of real traces have 16 digits."""
    events = [_event(index, ts=1_779_000_000_000_000 + index) for index in range(3)]
    events[place] = events[place].replace(f'"ts": {1_779_000_000_000_000 + place}', f'"ts": {"9" * digits}')
    events = read_kineto(_write(tmp_path / "t.json", events))
    assert sum(events.report.dropped.values()) == 1
    assert len(events.device) == 2


def test_a_size_is_believed_only_as_far_as_ranks_are_named():
    group = ProcessGroup("0", "default_pg", (), 10**6)
    united = unite({0: TraceHeader(rank=0, world_size=10**6, process_groups=(group,))})
    assert united.world_size is None
    assert "traces and groups name only 1 ranks" in united.disagreements[0]
    assert topology_tables(united)[0].num_rows <= 1
    named = ProcessGroup("0", "default_pg", tuple(range(70_000)), 70_000)
    assert unite({0: TraceHeader(rank=0, world_size=70_000, process_groups=(named,))}).world_size == 70_000


def test_true_is_no_size_and_long_digits_are_no_ranks(tmp_path):
    facts = {"Collective name": "allreduce", "Group size": True, "In msg nelems": 8}
    path = _write(tmp_path / "t.json", [_event(0, args=facts), _event(1, args={**facts, "Group size": 4})])
    sizes = read_kineto(path).device.collective.group_size.tolist()
    assert sizes[1] == 4
    assert sizes[0] < 0
    assert canonical_ranks("[" + "9" * 5000 + "]") == "[" + "9" * 5000 + "]"


def test_a_gzip_stream_that_becomes_hundreds_of_times_its_size_is_not_read_on(tmp_path, monkeypatch):
    monkeypatch.setattr("traceviz_dag.read.sources.SMALLEST_BOMB", 1 << 16)
    monkeypatch.setattr("traceviz_dag.read.sources._COMPRESSED_BLOCK", 1 << 10)
    text = '{"traceEvents": [' + ", ".join([_event(0)] * 20_000) + "]}"
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text.encode(), 9))
    events = read_kineto(path)
    assert "times its size" in str(events.report.fault)
    assert 0 < events.report.rows_read < 20_000


def test_an_event_longer_than_the_bound_ends_the_reading_and_what_came_before_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "LONGEST_TEXT", 1 << 16)
    long = _event(1, name="x" * (1 << 20))
    path = _write(tmp_path / "t.json", [_event(0), long, _event(2)])
    events = read_kineto(path, chunk_bytes=4096)
    assert "longer than" in str(events.report.fault)
    assert len(events.device) == 1


def test_more_events_than_the_bound_end_the_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto, "MOST_ROWS", 10)
    path = _write(tmp_path / "t.json", [_event(index) for index in range(2000)])
    events = read_kineto(path, chunk_bytes=1000)
    assert "more than 10 events" in str(events.report.fault)
    assert 10 < len(events.device) < 1000


def test_blanks_without_end_are_refused(tmp_path, monkeypatch):
    for module in (chunks, peek):
        monkeypatch.setattr(module, "LONGEST_TEXT", 1 << 16)
    path = tmp_path / "t.json"
    path.write_text(" " * (1 << 20))
    for reader in (read_kineto, peek_header):
        with pytest.raises(BadInputError, match=r"only blanks|without traceEvents"):
            reader(path)


def test_steps_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(peek, "MOST_STEPS", 5)
    path = _write(tmp_path / "t.json", [_event(index, name=f"ProfilerStep#{index}") for index in range(9)])
    with pytest.raises(BadInputError, match="more than 5 ProfilerSteps"):
        peek.peek(path)


@pytest.mark.parametrize("given", ["abc", "-1", "0", "9" * 20, "1.5"])
def test_a_bound_that_is_no_number_is_refused_and_not_passed_over(given):
    code = "import traceviz_dag.read.limits"
    environment = {**os.environ, "TRACEVIZ_MOST_ROWS": given}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert f"TRACEVIZ_MOST_ROWS={given} is no number from 1 to" in ended.stderr


def test_the_options_before_a_command_set_the_bounds_of_its_readers():
    code = (
        "from traceviz_dag.commands.main import app;"
        "app(['--longest-text-mib', '7', '--most-rows', '99', 'doctor', '--help'], standalone_mode=False);"
        "from traceviz_dag.read import limits; print(limits.LONGEST_TEXT >> 20, limits.MOST_ROWS)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "7 99"
