"""Every column of real traces equals what the standard library and decimal arithmetic make of the same file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.read.plain_rows import assert_same, plain_rows
from tests.read.reference_reader import reference_rows
from tests.sets import fast
from traceviz_dag.read.events import MISSING, CollectiveFacts, DeviceRows, HostRows, LaunchRows
from traceviz_dag.read.kineto.reader import read_kineto

REAL = [
    "kineto/dlrm8/rank3.json.gz",
    "kineto/hta/nccl_parser_config.json.gz",
    "kineto/hta/ns_resolution_rank-0.json.gz",
    "kineto/hta/trace_filter_rank-1.json.gz",
    "kineto/tracelens/b200_vllm_eager.json.gz",
    "kineto/tracelens/mi300_resnet_act_checkpoint.json.gz",
    "megatron_gpu/tp2_pp2_vpp2_full/iteration_2/rank_0001_iter_2.pt.trace.json.gz",
    "megatron_cpu/pp2_ep2_moe/iteration_2/rank_0003_iter_2.pt.trace.json.gz",
]


@pytest.mark.parametrize("name", fast(REAL, *REAL[::2]))
def test_every_row_of_a_real_trace_is_exact(shared_data, name):
    expected = reference_rows(shared_data / name)
    found = plain_rows(read_kineto(shared_data / name))
    for table, rows in expected.items():
        assert len(rows) == len(found[table])
        different = [(want, got) for want, got in zip(rows, found[table], strict=True) if want != got]
        assert different[:3] == [], f"{len(different)} rows of {table} differ"


def test_a_double_alone_would_lose_nanoseconds_of_epoch_microseconds(shared_data):
    path = shared_data / "kineto/hta/ns_resolution_rank-0.json.gz"
    host = read_kineto(path).host
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    rounded = np.array(
        [round(event["ts"] * 1000) for event in events if event.get("cat") in ("cpu_op", "user_annotation")]
    )
    wrong = np.count_nonzero(rounded != host.start_ns)
    assert wrong > 0.9 * len(host), "the file no longer needs the exact path, so this suite proves nothing about it"
    assert np.abs(rounded - host.start_ns).max() < 300


def test_pieces_plain_and_compressed_give_the_same_columns(shared_data, tmp_path):
    source = shared_data / "megatron_gpu/pp4_1f1b/iteration_2/rank_0000_iter_2.pt.trace.json.gz"
    plain = tmp_path / "plain.json.gz"
    plain.write_bytes(gzip.decompress(source.read_bytes()))
    whole = read_kineto(source, chunk_bytes=1 << 30)
    assert_same(whole, read_kineto(source, chunk_bytes=50_000))
    assert_same(whole, read_kineto(plain))


def test_headers_keep_facts_from_both_sides_of_the_events(shared_data):
    a100 = read_kineto(shared_data / "kineto/hta/nccl_parser_config.json.gz").header
    assert (a100.rank, a100.world_size, a100.backend) == (0, 2, "nccl")
    assert a100.base_time_ns == 1711964646000000000, "stands behind the events"
    assert (a100.device_name, a100.nccl_version, a100.schema_version) == ("NVIDIA A100-PG509-200", "2.17.1", 1)
    assert [(group.name, group.description, group.ranks, group.size) for group in a100.process_groups] == [
        ("0", "default_pg", (0, 1), 2)
    ]
    b200 = read_kineto(shared_data / "kineto/tracelens/b200_vllm_eager.json.gz").header
    assert b200.process_groups[1].description is None, "torch writes undefined where there is no description"
    assert b200.with_stack is True and b200.record_shapes is True


def test_threads_get_their_most_telling_name(shared_data):
    trace = read_kineto(shared_data / "megatron_gpu/pp4_1f1b/iteration_2/rank_0001_iter_2.pt.trace.json.gz")
    assert [thread.name for thread in trace.threads] == ["thread 5976 (pt_main_thread)", "thread 12976 (pt_autograd_0)"]


def test_columns_have_the_dtypes_of_the_contract(shared_data):
    trace = read_kineto(shared_data / "megatron_gpu/pp4_1f1b/iteration_2/rank_0001_iter_2.pt.trace.json.gz")
    small = {"Int8": np.int8, "Int32": np.int32, "Int64": np.int64}
    tables = {HostRows: trace.host, LaunchRows: trace.launches, DeviceRows: trace.device}
    tables[CollectiveFacts] = trace.device.collective
    for kind, table in tables.items():
        for name, annotation in kind.__annotations__.items():
            if annotation in small:
                column = getattr(table, name)
                assert column.dtype == small[annotation], f"{kind.__name__}.{name}"
                assert len(column) == len(table)
    assert trace.host.python_id[trace.host.category == 0].max(initial=MISSING) == MISSING


def test_memory_stays_a_fraction_of_the_file(shared_data, tmp_path):
    source = gzip.decompress((shared_data / "kineto/tracelens/mi300_resnet_act_checkpoint.json.gz").read_bytes())
    path = tmp_path / "trace.json"
    path.write_bytes(source)
    assert _peak_bytes(path) < 1.5 * len(source)


def _peak_bytes(path: Path) -> int:
    import tracemalloc

    tracemalloc.start()
    try:
        # The scanner takes 30 MB more, whatever the file.
        read_kineto(path, scan=False)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
