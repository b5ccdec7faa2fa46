"""The compiled scanner gives what msgspec gives, or leaves the piece to it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.read.plain_rows import assert_same
from tests.read.synthetic import write
from tests.sets import fast
from traceviz_dag.read.events import MISSING, TraceEvents, TraceHeader
from traceviz_dag.read.kineto import scanned_rows, scanning
from traceviz_dag.read.kineto.columns import ColumnBuilder
from traceviz_dag.read.kineto.event_decoder import EventDecoder
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.read.kineto.repair import repair
from traceviz_dag.read.kineto.scanned_rows import PieceScanner

REAL = [
    "kineto/dlrm8/rank3.json.gz",
    "kineto/hta/ns_resolution_rank-0.json.gz",
    "kineto/hta_sync/cuda_event_sync_multi_stream.json.gz",
    "kineto/tracelens/mi300_resnet_act_checkpoint.json.gz",
    "megatron_gpu/tp2_pp2_vpp2_full/iteration_2/rank_0001_iter_2.pt.trace.json.gz",
    "megatron_cpu/pp2_ep2_moe/iteration_2/rank_0003_iter_2.pt.trace.json.gz",
]

COMMUNICATION = {
    **{"Collective name": "allreduce", "In msg nelems": 4, "Out msg nelems": 4, "Group size": 2, "dtype": "Float"},
    **{"Process Group Name": "3", "Process Group Ranks": "[0, 1]", "Process Group Description": "Δ", "Seq": 5},
}
OLD_COMMUNICATION = {"Input Dims": [[[4, 4]]], "Concrete Inputs": ["", "7", "99", "0", "", "[]", "[]", "2"]}
INPUTS = {
    **{"Concrete Inputs": ["", "True", "[1, 2]"], "Input type": ["float", "Scalar"]},
    **{"Input Strides": [[4, 1], []], "Input Dims": [[2, 4], []]},
}
KERNEL = {
    **{"External id": 7, "device": 0, "stream": 7, "correlation": 9, "registers per thread": 32, "shared memory": 0},
    **{"warps per SM": 0.0014367816091954023, "grid": [4, 1, 1], "block": [128, 1, 1], "graph id": None},
}


def event(category: str | None, name: str, ts: str, args: object = None, **others: object) -> str:
    fields = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, **others}
    text = json.dumps({key: value for key, value in fields.items() if value is not None}, ensure_ascii=False)
    arguments = "" if args is None else f', "args": {json.dumps(args, ensure_ascii=False)}'
    return f'{text[:-1]}, "ts": {ts}, "dur": 12.5{arguments}}}'


EVENTS = [
    event(None, "thread_name", "0", {"name": "thread 2 (pt_main_thread)"}, ph="M"),
    event("cpu_op", "aten::addmm", "1712195495519689.047", {"External id": 3, "Sequence number": 4, **INPUTS}),
    event("python_function", "módule.py(3): f", "1712195495519690", {"Python id": 5, "Python parent id": None}),
    event("cpu_op", "aten::relu", "1712195495519691.5", {"External id": 6, "Fwd thread id": 0, **INPUTS}),
    event("user_annotation", "nccl:all_reduce", "1712195495519692.25", {"Input Dims": [[8]], "Input type": ["Float"]}),
    event("cpu_op", "record_param_comms", "1712195495519693.1", {"External id": 8, **COMMUNICATION}),
    event("cpu_op", "record_param_comms", "1712195495519693.2", OLD_COMMUNICATION),
    event("cuda_runtime", "cudaLaunchKernel", "1712195495519694", {"correlation": 9, "cbid": 211, "bytes": "128"}),
    event("kernel", 'void "k\\"<4>', "1712195495519695.001", KERNEL),
    event("kernel", "ncclDevKernel", "1712195495519696.01", {**KERNEL, **COMMUNICATION}),
    event("kernel", "ncclDevKernel", "1712195495519696.02", {**COMMUNICATION, "dtype": None, "In split size": [4, 4]}),
    event("gpu_memcpy", "Memcpy HtoD", "1712195495519697", {"stream": 7, "bytes": 4096, "memory bandwidth": 1e-05}),
    event("ac2g", "ac2g", "1712195495519698", id=3, bp="e"),
    event("Trace", "PyTorch Profiler (0)", "1712195495519699", pid="Spans", tid="PyTorch Profiler"),
    event("cuda_sync", "Stream Sync", "1712195495519700", {"stream": 4294967295, "wait_on_stream": -1}),
    event("cpu_op", "aten::relu", "1712195495519701", {}),
]
PLAIN = ("[\n  " + ",\n  ".join(EVENTS) + "\n]").encode()


def columns(piece: object) -> TraceEvents:
    builder = ColumnBuilder()
    builder.add(piece)  # type: ignore[arg-type]
    return builder.finish(TraceHeader())


def decoded(text: bytes) -> TraceEvents:
    try:
        return columns(EventDecoder().decode(memoryview(text)))
    except UnicodeDecodeError:
        return columns(EventDecoder().decode(memoryview(repair(text))))


def scanned(text: bytes) -> TraceEvents | None:
    """What a scanner makes of a text behind a plain one, which it expects to go on."""
    scanner, decoder = PieceScanner(), EventDecoder()
    for each in (PLAIN, text):
        piece = scanner.piece(memoryview(each), lambda few: decoder._decode_rows(few)[0])
    return None if piece is None else columns(piece)


@pytest.mark.parametrize("name", fast(REAL, *REAL[::2]))
def test_real_traces_are_scanned_and_nothing_differs(shared_data, name, monkeypatch):
    pieces: list[bool] = []
    piece_of = PieceScanner.piece
    monkeypatch.setattr(
        PieceScanner, "piece", lambda *given: pieces.append((piece := piece_of(*given)) is not None) or piece
    )
    decoded = read_kineto(shared_data / name, scan=False)
    assert not pieces
    for chunk_bytes in (50_000, 1 << 20):
        assert_same(decoded, read_kineto(shared_data / name, scan=True, chunk_bytes=chunk_bytes))
    assert sum(pieces) > 0.8 * len(pieces)


def test_what_kineto_writes_is_scanned():
    found = scanned(PLAIN)
    assert found is not None
    assert_same(found, decoded(PLAIN))
    assert (len(found.host), len(found.device), len(found.synchronizations)) == (7, 4, 1)
    assert found.communication_operators.tolist() == [3, 4, 5]
    assert found.operator_facts.sequence.tolist() == [MISSING, 5, 7]
    assert [found.strings[code] for code in found.device.collective.in_split] == ["", "", "[4, 4]", ""]
    assert found.device.collective.group_size.tolist() == [MISSING, 2, 2, MISSING]
    assert found.host.start_ns[0] == 1712195495519689047


ODD = {
    "escapes": PLAIN.replace(b"aten::relu", b"aten::\\u0072elu"),
    "a control character": PLAIN.replace(b"aten::relu", b"aten::\nrelu"),
    "a name that is no UTF-8": PLAIN.replace(b"aten::relu", b"aten::\xff"),
    "decimals that doubles round": PLAIN.replace(b"519694", b"519694.12345"),
    "an exponent": PLAIN.replace(b"1712195495519694", b"1.712195495519694e15"),
    "a late time": PLAIN.replace(b"1712195495519694", b"9712195495519694"),
    "an integer as text": PLAIN.replace(b'"correlation": 9', b'"correlation": "9"'),
    "an integer as float": PLAIN.replace(b'"correlation": 9', b'"correlation": 9.0'),
    "a large integer": PLAIN.replace(b'"correlation": 9', b'"correlation": 92233720368547758079'),
    "a size of a group as text": PLAIN.replace(b'"Group size": 2', b'"Group size": "2"'),
    "a description that is no UTF-8": PLAIN.replace("Δ".encode(), b"\xff"),
    "a size that is none": PLAIN.replace(b"[4, 1, 1]", b"[4, 1]"),
    "a key twice": PLAIN.replace(b'"pid": 1', b'"pid": 1, "pid": 2', 1),
    "arguments twice": PLAIN.replace(b'"dur"', b'"args": {"stream": 1}, "dur"'),
    "arguments that are none": PLAIN.replace(b'"args": {}', b'"args": null'),
    "no duration": PLAIN.replace(b'"dur": 12.5', b'"dud": 12.5'),
    "a negative duration": PLAIN.replace(b"12.5", b"-12.5"),
    "an empty event": PLAIN.replace(b"[\n", b"[{},", 1),
    "values before the name": PLAIN.replace(b'"cpu_op"', b'"cpu_op", "args": {"Concrete Inputs": []}').replace(
        b', "args": {"External id": 3', b', "x": {"External id": 3'
    ),
    "no name": PLAIN.replace(b'"name": "aten::addmm", ', b""),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_what_is_odd_is_left_to_msgspec(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    assert scanned(text) is None
    assert_same(read_kineto(path, scan=False), read_kineto(path, scan=True))


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(PLAIN) - 1),
            st.integers(0, 3),
            st.sampled_from(b'"\\{}[],:-+.0123456789eE \n\x00ntrufalsx\xc3'),
        ),
        max_size=3,
    ),
)
def test_mutated_pieces_are_read_alike_or_left(edits):
    text = bytearray(PLAIN)
    for place, removed, byte in edits:
        text[place : place + removed] = bytes([byte])
    found = scanned(bytes(text))
    if found is not None:
        assert_same(found, decoded(bytes(text)))


def test_what_is_known_is_forgotten_where_there_is_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(scanned_rows, "_TEXT_BYTES", 20_000)
    names = [f"aten::operator_{number % 350:03}" for number in range(3_000)]
    path = write(
        tmp_path / "trace.json", "[" + ",".join(event("cpu_op", name, str(at)) for at, name in enumerate(names)) + "]"
    )
    found = read_kineto(path, scan=True, chunk_bytes=10_000)
    assert [found.strings[code] for code in found.host.name] == names
    assert_same(found, read_kineto(path, scan=False))


def test_a_scanner_is_started_once_there_is_enough_to_read(monkeypatch):
    monkeypatch.setattr(scanning, "new_scanner", lambda: "a scanner")
    monkeypatch.setattr(scanning, "_told", scanning.Counter())
    assert scanning.scanner_for(3_500_000_000, compressed=False) is None
    assert scanning.scanner_for(40_000_000, compressed=True) is None
    assert scanning.scanner_for(10_000_000, compressed=True) == "a scanner"
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert scanning.scanner_for(10_000_000, compressed=True) is None


def test_without_numba_everything_is_read(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(PLAIN)
    program = (
        "import sys; from pathlib import Path; sys.modules['numba'] = None\n"
        "from traceviz_dag.read.kineto.reader import read_kineto\n"
        "from traceviz_dag.read.kineto.scanning import new_scanner\n"
        "print(new_scanner(), len(read_kineto(Path(sys.argv[1]), scan=True).host))"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "7"]


def test_the_scanner_is_right_without_compilation_too(shared_data, tmp_path):
    """Errors that compiled code does not report, such as reading behind an array, would be raised here."""
    source = gzip.decompress((shared_data / REAL[0]).read_bytes())
    path = tmp_path / "trace.json"
    path.write_bytes(source[:60_000])
    program = (
        "import sys; from pathlib import Path; from traceviz_dag.read.kineto.reader import read_kineto\n"
        "from tests.read.plain_rows import assert_same; path = Path(sys.argv[1])\n"
        "plain = read_kineto(path, scan=True, chunk_bytes=20_000)\n"
        "assert_same(plain, read_kineto(path, scan=False)); print(len(plain.host))"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", program, path]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=root)
    assert int(done.stdout) > 100


def test_compiled_code_that_reads_anything_else_is_not_used(monkeypatch):
    class Wrong(scanned_rows.PieceScanner):
        def _codes(self, tokens):
            return super()._codes(tokens)[::-1]

    monkeypatch.setattr(scanned_rows, "PieceScanner", Wrong)
    scanning._scanner.cache_clear()
    assert scanning.new_scanner() is None
    monkeypatch.undo()
    scanning._scanner.cache_clear()
    assert scanning.new_scanner() is not None
