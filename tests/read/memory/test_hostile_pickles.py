"""Whatever a pickle holds, it is read as plain containers or refused in one line; nothing in it is ever run."""

from __future__ import annotations

import collections
import os
import pickle
import struct
from io import BufferedReader, BytesIO
from pathlib import Path

import pytest

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.memory.child import encoded
from traceviz_dag.read.memory.extraction import NotASnapshotError
from traceviz_dag.read.memory.plain_pickle import NotPlainError, read_plain
from traceviz_dag.read.memory.reader import read_snapshot


class _Runs:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


class _Persistent(pickle.Pickler):
    def persistent_id(self, obj):
        return 1 if obj == "elsewhere" else None


def _persistent(path: Path) -> bytes:
    with path.open("wb") as file:
        _Persistent(file).dump(["elsewhere"])
    return path.read_bytes()


def _opened(data: bytes) -> BufferedReader:
    """As a process has it on its standard input."""
    return BufferedReader(BytesIO(data))


_SNAPSHOT = {"segments": [], "device_traces": [[]], "allocator_settings": {}}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("inside", [lambda bad: bad, lambda bad: {**_SNAPSHOT, "segments": [{"blocks": [bad]}]}])
def test_what_would_run_code_is_refused_and_not_run(protocol, inside, tmp_path):
    marker = tmp_path / "ran"
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(inside(_Runs(marker)), protocol))
    with pytest.raises(BadInputError, match="it names a class or a function, which no memory snapshot does"):
        read_snapshot(path)
    assert not marker.exists()


def _with_rows(rows: int) -> bytes:
    """One segment with many blocks, referred to as often: a small file with 10^10 rows."""
    block = {"address": 0, "size": 512, "state": "inactive"}
    segment = {"address": 0, "total_size": 512, "blocks": [block] * rows}
    return pickle.dumps({"segments": [segment] * rows})


def _nested_tuples() -> bytes:
    """A tuple of tuples: hashing one as a key would take 2 ** 60 steps."""
    doubled = b"".join(b"\x94h" + bytes([index]) + b"\x86" for index in range(60))
    return b"\x80\x04})" + doubled + b"K\x01s."


HOSTILE = {
    "an index stored twice": b"]q\x00]q\x00.",
    "a million lists": b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "a million marks": b"(" * 1_000_000,
    "a million tuples": b")" + b"\x85" * 1_000_000 + b".",
    "tuples in tuples by reference": b")\x94" + b"h\x00\x85\x94h\x01\x86" * 100 + b".",
    "an integer of 2 GiB": b"\x8b\xff\xff\xff\x7f",
    "digits without end": b"I" + b"9" * 100_000 + b"\n.",
    "a text longer than the file": b"\x8d" + b"\xff" * 7 + b"\x7fabc.",
    "a tuple as a key": b"})K\x01s.",
    "a set": pickle.dumps({1, 2}),
    "an ordered dictionary": pickle.dumps(collections.OrderedDict(segments=[])),
    "a registered class": b"\x82\x01.",
    "DUP": b"]" + b"2" * 10,
    "nothing behind a mark": b"(.",
    "nothing on the stack": b".",
    "no end": b"\x80\x04]",
    "an unknown opcode": b"\xff.",
    "a protocol of the future": b"\x80\x09].",
    "rows over and over": _with_rows(100_000),
    "a list": pickle.dumps([1, 2, 3]),
    "a number": pickle.dumps(7),
    "a state of a model": pickle.dumps({"model": {"weight": [1.0]}, "epoch": 3}),
    "segments that are a text": pickle.dumps({"segments": "none"}),
    "nothing": b"",
}


DEMANDING = {
    "an index that would take 2 GiB": (b"\x80\x04K\x01r" + struct.pack("<I", 1 << 27) + b".", "asks for more memory"),
    "a large PUT": (b"I1\np99999999999\n.", "asks for more memory"),
    "nested tuples as a key": (_nested_tuples(), "takes longer than a snapshot of its size does"),
    "a key of a million tuples": (
        b"\x80\x04})" + b"\x85" * 1_000_000 + b"K\x01s.",
        "not read: the process that read it",
    ),
}
"""What costs much before it can be refused: the child process may not go on for long."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_before_it_costs_anything(name):
    with pytest.raises((NotPlainError, NotASnapshotError)) as refused:
        encoded(read_plain(_opened(HOSTILE[name])), len(HOSTILE[name]))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name == "nested tuples as a key" else ()) for name in DEMANDING],
)
def test_a_pickle_that_asks_for_much_is_stopped(name, tmp_path):
    data, fault = DEMANDING[name]
    path = tmp_path / "s.pickle"
    path.write_bytes(data)
    with pytest.raises(BadInputError, match=fault):
        read_snapshot(path)


def test_persistent_objects_are_refused(tmp_path):
    with pytest.raises(NotPlainError, match="an object elsewhere"):
        read_plain(_opened(_persistent(tmp_path / "p")))


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04rest", "a zip archive, such as torch.save writes, is no snapshot"),
        (b"\x1f\x8brest", "it is compressed; unpack it first"),
        (b'{"traceEvents": []}', "a JSON text is no snapshot"),
        (b"\x93NUMPY", "an array of NumPy is no snapshot"),
        (HOSTILE["a state of a model"], "a dictionary without 'segments' (it has 'model', 'epoch')"),
        (b"\x80\x04K\x01r" + struct.pack("<I", 1 << 27) + b".", "it asks for more memory than a snapshot of its size"),
    ],
)
def test_a_file_that_is_no_snapshot_is_one_line_with_a_remedy(data, fault, tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(data)
    with pytest.raises(BadInputError) as refused:
        read_snapshot(path)
    assert fault in str(refused.value) and str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_plain_containers_of_every_protocol_come_out_as_they_went_in(shared_data, tmp_path):
    path = shared_data / "memory" / "transformer_512_inference.pickle"
    value = pickle.loads(path.read_bytes())
    value["odd"] = [None, True, False, 1.5, -3, 1 << 63, "ä\ud800", b"bytes", (), (1,), (1, 2, 3, 4), {"a": {}}]
    value["device_traces"][0] = value["device_traces"][0][:500]
    for protocol in range(6):
        if protocol < 3:
            value["odd"][7] = None  # Bytes are calls of a codec there.
        assert read_plain(_opened(pickle.dumps(value, protocol))) == value


@pytest.mark.parametrize("share", [0.999999, 0.5, 0.01])
def test_a_real_snapshot_that_is_cut_off_says_so(share, shared_data, tmp_path):
    whole = (shared_data / "memory" / "transformer_512_inference.pickle").read_bytes()
    path = tmp_path / "s.pickle"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BadInputError, match="cut off or broken"):
        read_snapshot(path)


def test_a_child_that_needs_more_memory_than_it_may_take_is_reported_so(tmp_path, monkeypatch):
    path = tmp_path / "s.pickle"
    # An empty dictionary takes a byte here and 72 in memory.
    path.write_bytes(b"]" + (b"(" + b"}" * 30_000 + b"e") * 400 + b".")
    monkeypatch.setattr("traceviz_dag.read.memory.reader._ALONE", _TIGHT)
    with pytest.raises(BadInputError, match="asks for more memory than a snapshot of its size needs"):
        read_snapshot(path)


_TIGHT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from traceviz_dag.read.memory import child; "
    "child.BASE_BYTES = 1 << 28; child.main()"
)


def test_a_list_in_one_batch_is_read_however_long_it_is():
    """As PyTorch's pickler in C++ writes it, where that of Python marks each thousand."""
    event = b"}(X\x06\x00\x00\x00action" + b"X\x04\x00\x00\x00snap" + b"X\x04\x00\x00\x00sizeK\x05u"
    assert read_plain(_opened(b"\x80\x02](" + event * 100_000 + b"e.")) == [{"action": "snap", "size": 5}] * 100_000
