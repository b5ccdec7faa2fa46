"""Nsight Systems exports become columns: real ones, bent ones, secret ones, broken ones."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.nsys_file import PROCESS, SECRET, THREAD, Export, global_tid, small_export
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.nsys import cache
from traceviz_dag.read.nsys.cache import cache_folder, open_profile
from traceviz_dag.read.nsys.profile import SCHEMAS
from traceviz_dag.read.nsys.reader import read_nsys


@pytest.mark.parametrize(
    ("name", "kernels", "launched"), [("mfu_2gpu_before", 4010, 3986), ("h100_2gpu_1s", 3442, 1632)]
)
def test_real_exports_join_kernels_to_launches_of_their_own_process(shared_data, name, kernels, launched):
    operations = read_nsys(shared_data / "nsys" / f"{name}.sqlite").table("operations")
    of_kernels = operations.filter(pc.equal(operations["category"], 0))
    assert of_kernels.num_rows == kernels
    assert pc.sum(pc.greater_equal(of_kernels["launch"], 0)).as_py() == launched


def test_ids_that_two_processes_share_join_to_the_right_one(tmp_path):
    export = Export()
    for process, device, start in ((11, 0, 100), (22, 1, 200)):
        export.call(start, start + 5, correlation=9, process=process, thread=process)
        export.kernel(start + 50, start + 60, device=device, correlation=9, process=process)
    profile = read_nsys(export.write(tmp_path / "two.sqlite"))
    operations, calls = profile.table("operations").to_pylist(), profile.table("calls").to_pylist()
    assert [calls[row["launch"]]["thread"] for row in operations] == [global_tid(11, 11), global_tid(22, 22)]


def test_ranges_have_their_names_from_text_or_id_without_what_pytorch_appends(tmp_path):
    export = Export()
    export.range(0, 90, "aten::add, seq = 3, op_id = 7, sizes = [[2, 3], []]")
    export.range(1, 80, None, registered="ncclAllReduce", domain=4)
    export.range(2, None, "never closed")
    export.range(3, 40, "start and end", kind=60)
    export.range(4, None, "a mark", kind=34)
    export.range(5, None, "NCCL", kind=75, domain=4)
    export.range(6, 7, "two\nlines, op_id = 12")
    export.kernel(10, 500)
    ranges = read_nsys(export.write(tmp_path / "ranges.sqlite")).table("ranges").to_pylist()
    assert [(row["name"], row["kind"], row["end_ns"], row["open"]) for row in ranges] == [
        ("aten::add", 0, 90, False),
        ("ncclAllReduce", 0, 80, False),
        ("never closed", 0, 500, True),
        ("start and end", 1, 40, False),
        ("a mark", 2, 4, False),
        ("two\nlines", 0, 7, False),
    ]
    assert (ranges[0]["sequence"], ranges[0]["operator"], ranges[2]["operator"]) == (3, True, False)
    assert (ranges[1]["domain_name"], ranges[0]["domain_name"]) == ("NCCL", None)


def test_nccl_payloads_are_read_from_json_and_from_bytes(tmp_path):
    header = (4).to_bytes(4, "little") + bytes(4) + (9).to_bytes(4, "little") + bytes(4)
    body = (16).to_bytes(8, "little") + (48).to_bytes(8, "little")
    body += (0xF0000000000000AB).to_bytes(8, "little") + (4096).to_bytes(8, "little")
    export = Export()
    export.range(0, 10, "ncclSend", payload='{"NCCL communicator ID": 255, "Message size [bytes]": 64, "Peer rank": 3}')
    columns, rows = export.tables["NVTX_EVENTS"]
    columns.append("binaryData")
    rows[0].append(None)  # type: ignore[attr-defined]
    rows.append([5, 9, 59, "ncclAllReduce", None, global_tid(), 4, None, header + body])
    entries = [(4, 9, 0, 18, "NCCL communicator ID", None), (4, 9, 1, 22, "Message size [bytes]", 8)]
    export.table("NVTX_PAYLOAD_SCHEMA_ENTRIES", ["domainId", "schemaId", "idx", "type", "name", "offset"], entries)
    ranges = read_nsys(export.write(tmp_path / "nccl.sqlite")).table("ranges").to_pylist()
    assert [(row["communicator"], row["message_bytes"], row["peer"]) for row in ranges] == [
        ("0x00000000000000ff", 64, 3),
        ("0xf0000000000000ab", 4096, MISSING),
    ]


def test_old_and_new_schemas_are_read_by_what_exists_and_what_is_missing_is_said(tmp_path):
    export = small_export()
    columns, rows = export.tables.pop("CUPTI_ACTIVITY_KIND_KERNEL")
    dropped = {columns.index(name) for name in ("globalPid", "gridX", "graphNodeId")}
    kept = [place for place in range(len(columns)) if place not in dropped]
    export.table("CUPTI_ACTIVITY_KIND_KERNEL", columns, rows[:1])
    export.table("CUPTI_ACTIVITY_KIND_KERNEL_V3", [columns[p] for p in kept], [[row[p] for p in kept] for row in rows])
    profile = read_nsys(export.write(tmp_path / "bent.sqlite"))
    operations = profile.table("operations").to_pylist()
    assert [row["name"] for row in operations] == ["gemm", "ncclDevKernel_AllReduce_Sum", "Memcpy HtoD", "gemm"]
    assert [row["launch"] for row in operations] == [0, 1, -1, 2]
    assert any("KERNEL_V3 has no column globalPid" in sentence for sentence in profile.facts.missing)
    assert any("TARGET_INFO_GPU" in sentence for sentence in profile.facts.missing)


def test_graphs_metrics_gpu_names_and_device_numbers_are_read_where_present(tmp_path):
    export = small_export()
    export.add(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", {"start": 800, "end": 900, "deviceId": 0, "graphId": 3, "streamId": 7}
    )
    export.add("TARGET_INFO_GPU", {"id": 5, "name": "NVIDIA H200"})
    export.add("TARGET_INFO_CUDA_DEVICE", {"gpuId": 5, "cudaId": 0, "pid": PROCESS})
    export.add("TARGET_INFO_GPU_METRICS", {"typeId": 0x1005, "metricId": 2, "metricName": "SMs Active [%]"})
    export.add("GPU_METRICS", {"timestamp": 500, "typeId": 0x1005, "metricId": 2, "value": 77})
    profile = read_nsys(export.write(tmp_path / "more.sqlite"))
    operations = profile.table("operations").to_pylist()
    assert {row["device"] for row in operations if row["category"] and row["process"] != MISSING} == {5}
    assert [row["name"] for row in operations if row["graph_id"] == 3] == ["CUDA graph 3"]
    assert [(gpu.device, gpu.name) for gpu in profile.facts.gpus][-1] == (5, "NVIDIA H200")
    assert profile.table("metrics").to_pylist() == [
        {"time_ns": 500, "device": 5, "metric": "SMs Active [%]", "value": 77}
    ]


def test_a_folder_of_parquet_files_gives_what_the_sqlite_file_gives(shared_data, tmp_path):
    export = shared_data / "nsys" / "mfu_2gpu_before.sqlite"
    folder = tmp_path / "parquet"
    folder.mkdir()
    connection = sqlite3.connect(f"file:{export}?mode=ro", uri=True)
    for table in (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
        "NVTX_EVENTS",
        "StringIds",
        "ThreadNames",
        "TARGET_INFO_SYSTEM_ENV",
    ):
        pd.read_sql(f"SELECT * FROM {table}", connection).convert_dtypes().to_parquet(folder / f"{table}.parquet")
    connection.close()
    ours, theirs = read_nsys(folder), read_nsys(export)
    for name in SCHEMAS:
        assert ours.table(name).to_pylist() == theirs.table(name).to_pylist(), name


def test_secret_rows_are_never_read_or_kept(tmp_path):
    export = small_export()
    export.secrets()
    home = tmp_path / "home"
    profile = open_profile(export.write(tmp_path / "secret.sqlite"), home)
    assert profile.facts.schema_version == "3.24.0"
    assert (profile.facts.driver_version, profile.facts.driver_release) == ("CUDA 13.0", "580.95.05")
    kept = [path for path in home.rglob("*") if path.is_file()]
    assert len(kept) > 5
    for path in kept:
        table = duckdb.read_parquet(str(path)).fetchall() if path.suffix == ".parquet" else path.read_text()
        assert SECRET not in str(table), path
        assert SECRET.encode() not in path.read_bytes()


def test_a_kept_profile_equals_a_fresh_one_and_is_read_again_when_the_export_changes(tmp_path):
    path, home = tmp_path / "one.sqlite", tmp_path / "home"
    small_export().write(path)
    first, again, fresh = open_profile(path, home), open_profile(path, home), read_nsys(path)
    for name in SCHEMAS:
        assert first.table(name).to_pylist() == again.table(name).to_pylist() == fresh.table(name).to_pylist()
    assert again.facts == fresh.facts
    (facts,) = cache_folder(path, home).glob("*/facts.json")
    before = facts.stat().st_mtime_ns
    open_profile(path, home)
    assert facts.stat().st_mtime_ns == before
    facts.with_name("notes.txt").write_text("somebody's own")
    path.unlink()
    longer = small_export()
    longer.kernel(2000, 3000)
    longer.write(path)
    assert open_profile(path, home).table("operations").num_rows == first.table("operations").num_rows + 1
    assert [path.name for path in facts.parent.iterdir()] == ["notes.txt"]


def test_an_export_replaced_by_one_of_its_size_and_time_is_read_again(tmp_path):
    path, home = tmp_path / "one.sqlite", tmp_path / "home"
    small_export().write(path)
    first, before = open_profile(path, home).table("operations"), path.stat()
    path.unlink()
    small_export(701).write(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert open_profile(path, home).table("operations") != first


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: bytes(len(data))])
def test_a_damaged_file_of_a_kept_profile_is_made_anew(tmp_path, damage):
    path, home = tmp_path / "one.sqlite", tmp_path / "home"
    small_export().write(path)
    operations = open_profile(path, home).table("operations")
    (kept,) = cache_folder(path, home).rglob("operations.parquet")
    kept.write_bytes(damage(kept.read_bytes()))
    assert open_profile(path, home).table("operations").equals(operations)


@pytest.mark.parametrize("name", ["operations.parquet", "operations.words.json", "facts.json"])
def test_a_flipped_bit_in_what_is_kept_of_a_profile_gives_no_other_values(tmp_path, name):
    path, home = tmp_path / "one.sqlite", tmp_path / "home"
    small_export().write(path)
    first = open_profile(path, home)
    (kept,) = cache_folder(path, home).rglob(name)
    # As a disk does it: only the bytes show it.
    changed, times = bytearray(kept.read_bytes()), kept.stat()
    changed[len(changed) // 2] ^= 1
    kept.write_bytes(changed)
    os.utime(kept, ns=(times.st_atime_ns, times.st_mtime_ns))
    cache._digest_in.cache_clear()
    if name != "facts.json":
        with pytest.raises(BadInputError, match=rf"{name}: is damaged; run the command again, which reads"):
            open_profile(path, home).table("operations")
    again = open_profile(path, home)
    assert (again.facts, again.table("operations")) == (first.facts, first.table("operations"))


def _damaged(path: Path) -> None:
    export = small_export()
    for number in range(3000):
        export.kernel(number * 10, number * 10 + 5, f"kernel {number}", correlation=number + 10)
    export.write(path)
    data = bytearray(path.read_bytes())
    data[8192 : len(data) // 2] = os.urandom(len(data) // 2 - 8192)
    path.write_bytes(data)


def _cut(path: Path) -> None:
    small_export().write(path)
    path.write_bytes(path.read_bytes()[:9000])


def _being_written(path: Path) -> None:
    small_export().write(path)
    path.with_name(path.name + "-journal").write_bytes(b"\xd9\xd5\x05\xf9 journal")


def _foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photos (id)")
    connection.commit()


def _without_start(path: Path) -> None:
    export = small_export()
    columns, rows = export.tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    export.table("CUPTI_ACTIVITY_KIND_KERNEL", ["begin", *columns[1:]], rows)
    export.write(path)


ONE_TEXT_IN_ALL_ROWS = pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int32()), ["x" * 1_000_000])


def _with_a_long_default(path: Path) -> None:
    small_export().write(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"ALTER TABLE NVTX_EVENTS ADD COLUMN more TEXT DEFAULT '{'x' * 100_000}'")


def _as_parquet(path: Path, texts: pa.Array | None = None) -> None:
    """The export as a folder; with ``texts``, its ranges are the first one with each of these as its text."""
    export = small_export().write(path.with_name("small.sqlite"))
    path.mkdir()
    with closing(sqlite3.connect(export)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in tables:
            table = pa.Table.from_pandas(pd.read_sql(f"SELECT * FROM {name}", connection).convert_dtypes())
            if texts is not None and name == "NVTX_EVENTS":
                table = table.take([0] * len(texts))
                table = table.set_column(table.column_names.index("text"), "text", texts)
            pq.write_table(table, path / f"{name}.parquet")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.write_bytes(b""), "empty file"),
        (lambda path: path.write_text("hello world, this is text"), "not a SQLite file"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(2000)), "damaged|cut short|no tables|not a SQLite"),
        (_foreign, "no export of Nsight Systems"),
        (_damaged, "damaged or was cut short"),
        (_cut, "damaged or was cut short"),
        (_being_written, "still being written"),
        (_with_a_long_default, "a default that no export has"),
        (partial(_as_parquet, texts=ONE_TEXT_IN_ALL_ROWS), "300,000,000 bytes of text, far more than names"),
        (partial(_as_parquet, texts=pa.array([[1, 2]])), "column text of a table is nested"),
        (_without_start, "CUPTI_ACTIVITY_KIND_KERNEL has no column start"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(tmp_path, make, words):
    path = tmp_path / "export.sqlite"
    make(path)
    with pytest.raises(BadInputError, match=words) as caught:
        read_nsys(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_folder_is_read_whatever_its_path_says(tmp_path):
    folder = tmp_path / "start=7" / "a*[b]?"
    folder.parent.mkdir()
    _as_parquet(folder)
    assert read_nsys(folder).table("ranges").equals(read_nsys(folder.with_name("small.sqlite")).table("ranges"))


def test_a_text_longer_than_any_name_is_left_out_and_the_others_stay(tmp_path):
    export = small_export()
    export.kernel(800, 900, "x" * (2 << 20), correlation=9)
    profile = read_nsys(export.write(tmp_path / "export.sqlite"))
    names = profile.table("operations")["name"].to_pylist()
    assert names.count("") == 1 and len(set(names)) > 1
    assert [one for one in profile.facts.missing if "texts of more than 1 MiB" in one]


def test_a_locked_export_is_said_to_be_locked(tmp_path):
    path = small_export().write(tmp_path / "locked.sqlite")
    script = textwrap.dedent(
        """
        import sqlite3, sys
        connection = sqlite3.connect(sys.argv[1])
        connection.execute("BEGIN EXCLUSIVE")
        print("locked", flush=True)
        sys.stdin.read()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "locked"
        try:
            with pytest.raises(BadInputError, match="another program has locked it"):
                read_nsys(path)
        finally:
            other.communicate("")


def test_a_report_is_exported_by_the_program_or_refused_with_the_reason(tmp_path, monkeypatch):
    report, home = tmp_path / "job.nsys-rep", tmp_path / "home"
    report.write_bytes(b"only nsys can read this")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(BadInputError, match=r"nsys program.*not installed"):
        open_profile(report, home)
    small_export().write(tmp_path / "prepared.sqlite")
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        f"shutil.copy({str(tmp_path / 'prepared.sqlite')!r}, sys.argv[sys.argv.index('--output') + 1])\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert open_profile(report, home).table("operations").num_rows == 4
    assert shutil.which("nsys") == str(program)


def test_operations_on_threads_of_one_process_need_no_process_id():
    from traceviz_dag.read.nsys.launching import join_launches

    one = np.array([5, 5])
    joined = join_launches(np.array([MISSING, MISSING]), np.array([8, 9]), one, np.array([9, 7]))
    assert joined.tolist() == [-1, 0]
    two = join_launches(np.array([MISSING, MISSING]), np.array([8, 9]), np.array([5, 6]), np.array([9, 7]))
    assert two.tolist() == [-1, -1], THREAD
