"""Profiles by process: what is read alone equals that part of the whole; nesting equals what a stack gives."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nsys_file import Export
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.read.nsys.nesting import Launches, NestingColumns, nest
from traceviz_dag.read.nsys.profile import KEYS, PROCESS_BITS, SCHEMAS
from traceviz_dag.read.nsys.reader import read_nsys
from traceviz_dag.read.nsys.rows import Runs, array_of, order_by_key
from traceviz_dag.read.nsys.store import is_text
from traceviz_dag.read.nsys.strings import TextCodes, range_names


@pytest.fixture
def profiles(tmp_path):
    """One export of two processes and three GPUs, with marks and names of both kinds: kept, and in memory."""
    export = Export()
    for number, (process, device) in enumerate([(22, 2), (11, 0), (11, 1), (22, 2)]):
        begin = 100 * number
        export.range(begin, begin + 90, f"outer {number % 2}", process=process, thread=process)
        export.range(begin + 5, begin + 50, None, registered="ncclAllReduce", process=process, thread=process)
        export.range(begin + 6, None, "mark", kind=34, process=process, thread=process)
        export.call(begin + 10, begin + 12, correlation=number + 1, process=process, thread=process)
        export.system_call(begin + 60, begin + 70, process=process, thread=process)
        export.kernel(begin + 20, begin + 30, f"k{number}", device=device, correlation=number + 1, process=process)
        export.allocation(begin + 9, 512, device=device, process=process)
        export.synchronization(begin + 40, begin + 42, correlation=number + 1, process=process)
    path = export.write(tmp_path / "two.sqlite")
    return open_profile(path, tmp_path / "home"), read_nsys(path)


@pytest.mark.parametrize("name", sorted(KEYS))
def test_rows_of_one_key_are_those_of_the_whole_table(profiles, name):
    for profile in profiles:
        whole = profile.table(name).to_pylist()
        keys = profile.keys(name)
        assert keys == sorted(keys)
        assert len(keys) > 1
        for chosen in (*([key] for key in keys), keys, keys[:2]):
            rows = profile.rows(name, *SCHEMAS[name].names, of=chosen)
            wanted = [whole[row] for row in rows.runs.rows().tolist()]
            assert len(rows) == len(wanted)
            for column in SCHEMAS[name].names:
                values = rows[column].tolist()
                if is_text(name, column):
                    values = profile.texts(name, column, rows[column]).to_pylist()
                assert values == [row[column] for row in wanted], column
            if "thread" in SCHEMAS[name].names:
                assert {row["thread"] >> PROCESS_BITS for row in wanted} == set(chosen)
            elif KEYS[name] == "process":
                assert {row["process"] for row in wanted} == set(chosen)
            if KEYS[name] == "device" and "device" in SCHEMAS[name].names:
                assert {row["device"] for row in wanted} == set(chosen)


def test_places_lead_back_to_the_rows_of_the_table(profiles):
    for profile in profiles:
        rows = profile.rows("calls", "correlation", of=profile.keys("calls")[1:])
        assert rows.place(rows.runs.rows()).tolist() == list(range(len(rows)))
        assert rows.place(np.array([-1, 0, 10**6])).tolist() == [-1, -1, -1]


def test_each_launch_knows_its_innermost_range_and_each_range_its_path(profiles):
    for profile in profiles:
        ranges, paths = profile.table("ranges").to_pylist(), profile.table("paths").to_pylist()
        names = profile.names("ranges", "name")
        inner = [ranges[row] for row in profile.table("launch_ranges")["range"].to_pylist()]
        assert {row["name"] for row in inner} == {"ncclAllReduce"}
        for row, operation in zip(inner, profile.table("operations").to_pylist(), strict=True):
            outer, path = ranges[row["parent"]], paths[row["path"]]
            assert outer["name"] == f"outer {int(operation['name'][1:]) % 2}"
            assert (names[path["name"]], names[paths[path["parent"]]["name"]]) == ("ncclAllReduce", outer["name"])
        assert {(row["parent"], row["path"]) for row in ranges if row["name"] == "mark"} == {(-1, -1)}


slices = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 1), st.integers(0, 30), st.integers(0, 12), st.integers(0, 2)),
    max_size=40,
)


@given(slices, st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1), st.integers(0, 45)), max_size=10))
@settings(max_examples=100, deadline=None)
def test_nesting_is_what_a_stack_gives(events, launches):
    process, thread, start, length, name = np.array(events, dtype=np.int64).reshape(-1, 5).T
    order = order_by_key(process, start, length)
    assert order.tolist() == np.lexsort((-length, start, process)).tolist()
    process, start, length, name = process[order], start[order], length[order], name[order]
    thread = (process << PROCESS_BITS) + thread[order]
    columns = NestingColumns(name.astype(np.int32), thread, start, start + length, np.ones(len(name), dtype=bool))
    asked = np.array([((owner << PROCESS_BITS) + own, time) for owner, own, time in launches], np.int64).reshape(-1, 2)
    found = nest(columns, Runs.of(process), Launches(asked[:, 0] >> PROCESS_BITS, asked[:, 0], asked[:, 1]))

    stacks: dict[int, list[int]] = {}
    words: list[tuple[int, ...]] = []
    for row in range(len(name)):
        stack = stacks.setdefault(thread[row], [])
        while stack and start[stack[-1]] + length[stack[-1]] <= start[row]:
            stack.pop()
        assert found.parent[row] == (stack[-1] if stack else -1)
        words.append((*(words[stack[-1]] if stack else ()), int(name[row])))
        stack.append(row)
    texts: list[tuple[int, ...]] = []
    for own, parent, depth in zip(found.path_name, found.path_parent, found.path_depth, strict=True):
        texts.append((*(texts[parent] if parent >= 0 else ()), int(own)))
        assert len(texts[-1]) == depth + 1
    assert [texts[path] for path in found.path] == words
    assert len(set(texts)) == len(texts) == len(set(words))
    for (one, time), row in zip(asked.tolist(), found.launch_range.tolist(), strict=True):
        holding = [r for r in range(len(name)) if thread[r] == one and start[r] <= time < start[r] + length[r]]
        assert row == (max(holding, key=lambda r: (start[r], r)) if holding else -1)


@given(
    st.lists(st.sampled_from(["aten::add", "a, b", "", "x\ny", "f(a, seq = 1)", "é"]), min_size=1, max_size=8),
    st.data(),
)
@settings(max_examples=50, deadline=None)
def test_what_pytorch_appends_is_parted_from_names_with_and_without_commas(names, data):
    endings = {
        "": (MISSING, False),
        ", seq = 7": (7, True),
        ", op_id = 9": (MISSING, True),
        ", seq = 12, op_id = 3": (12, True),
        ", op_id = 3, sizes = [[2, 3], []]": (MISSING, True),
    }
    chosen = [data.draw(st.sampled_from(sorted(endings))) for _ in names]
    parts = range_names(pa.array([name + ending for name, ending in zip(names, chosen, strict=True)], pa.string()))
    assert parts.name.to_pylist() == names
    assert list(zip(parts.sequence.tolist(), parts.operator.tolist(), strict=True)) == [endings[one] for one in chosen]


_PIECES = [
    ", seq = ",
    ", op_id = ",
    ", sizes = [[2, 3]]",
    "12",
    "9" * 19,
    ",",
    " ",
    "é",
    "\n",
    "aten::mm",
    ", input_op_ids = [1]",
]


@given(st.lists(st.lists(st.sampled_from(_PIECES), max_size=5).map("".join), max_size=8), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_texts_of_ranges_are_parted_as_the_regular_expression_says(texts, left_out):
    pattern = re.compile(
        r"(.*?)(?:, seq = ([0-9]{1,18}))?(?:, op_id = ([0-9]{1,18}))?(?:, (?:sizes|input_op_ids) = .*)?", re.DOTALL
    )
    parts = range_names(pa.array(texts, pa.string())[left_out:])
    expected = [pattern.fullmatch(text).groups() for text in texts[left_out:]]
    assert parts.name.to_pylist() == [name for name, _, _ in expected]
    assert parts.sequence.tolist() == [MISSING if number is None else int(number) for _, number, _ in expected]
    assert parts.operator.tolist() == [(number or other) is not None for _, number, other in expected]


@given(st.lists(st.lists(st.sampled_from(["a", "b", "", None]), max_size=6), max_size=5))
@settings(max_examples=50, deadline=None)
def test_codes_of_pieces_are_the_codes_of_the_whole(pieces):
    codes = TextCodes()
    found = [codes.codes(pa.array(piece, pa.string())) for piece in pieces]
    column = codes.column(np.concatenate([np.empty(0, dtype=np.int32), *found]))
    assert column.to_pylist() == [word for piece in pieces for word in piece]
    assert None not in column.dictionary.to_pylist()


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.int8(), pa.bool_()])
def test_arrays_are_what_the_column_holds_whatever_its_pieces(kind):
    values = [1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0]
    whole = pa.array(values).cast(kind)
    column = pa.chunked_array([whole.slice(0, 3), whole.slice(3, 0), whole.slice(3)], kind)
    assert array_of(column).astype(int).tolist() == values
    assert len(array_of(pa.chunked_array([], kind))) == 0
