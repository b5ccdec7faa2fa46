"""A look into a trace by byte searches shows the same as decoding all of it."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from tests.read.kineto.test_kineto_exact import REAL
from tests.read.synthetic import event, write
from tests.sets import fast
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import CPU_OP, KERNEL, PYTHON_FUNCTION, USER_ANNOTATION
from traceviz_dag.read.kineto.peek import is_trace, peek, peek_header
from traceviz_dag.read.kineto.reader import read_kineto


@pytest.mark.parametrize("name", fast(REAL, *REAL[::2]))
def test_a_peek_agrees_with_the_reader(shared_data, name):
    path = shared_data / name
    trace, seen = read_kineto(path), peek(path)
    names = [trace.strings[code] for code in trace.host.name[trace.host.category == USER_ANNOTATION]]
    steps = {int(name.removeprefix("ProfilerStep#")) for name in names if name.startswith("ProfilerStep#")}
    assert seen.header == trace.header
    assert seen.steps == tuple(sorted(steps))
    assert seen.has_kernels == bool((trace.device.category == KERNEL).any())
    assert seen.has_stacks == bool((trace.host.category == PYTHON_FUNCTION).any())
    assert seen.has_operators == bool((trace.host.category == CPU_OP).any())
    assert peek_header(path).process_groups == trace.header.process_groups


@pytest.mark.parametrize("rows", [0, 10, 20_000])
def test_rank_and_arrays_behind_the_events_are_found(tmp_path, rows):
    nested = {"shapes": [{"a": 1}], "more": [{"ranks": []}]}
    behind = {"deviceProperties": [{"name": "H100"}], "distributedInfo": {"rank": 6, "pg_config": [{"pg_name": "a"}]}}
    events = [event(index, "user_annotation", name=f"ProfilerStep#{index % 3}", args=nested) for index in range(rows)]
    path = write(tmp_path / "t.json", events, behind=behind)
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for file in (path, packed):
        seen = peek(file)
        assert (seen.header.rank, seen.header.device_name, len(seen.header.process_groups)) == (6, "H100", 1)
        assert peek_header(file) == seen.header == read_kineto(file).header
        assert seen.steps == tuple(range(min(rows, 3)))


def test_a_header_that_was_read_is_read_again_once_its_file_is_another(tmp_path):
    path = tmp_path / "t.json"
    for rank in (3, 4, None):
        path.write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": []}))
        os.utime(path, ns=(0, 10**18 + (rank or 0)))
        assert peek_header(path).rank == rank
    path.unlink()
    with pytest.raises(BadInputError, match="no such file"):
        peek_header(path)


def test_a_trace_is_distinguished_from_other_json(tmp_path):
    assert is_trace(write(tmp_path / "a.json", []))
    for name, text in {"b.json": '{"ranks": []}', "c.json": "[1, 2]", "d.json": "", "e.json": "rank"}.items():
        (tmp_path / name).write_text(text)
        assert not is_trace(tmp_path / name)
