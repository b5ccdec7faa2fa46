"""What is written is whole, equal for equal tables, and exactly of the table's schema."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.tables import KERNELS


def kernels(sample, names: list[str | None]) -> pa.Table:
    rows = len(names)
    return sample("kernels", rows, kernel_id=list(range(rows)), name=names, start_ns=list(range(rows)), phase="forward")


def test_equal_tables_give_equal_bytes_however_they_were_made(lake: Lake, sample):
    table = kernels(sample, ["b", "a", None, "a", "c"] * 20)
    first = lake.write("kernels", table, run="r", iteration=1, rank=0)
    chunked = pa.concat_tables([table.slice(0, 7), table.slice(7, 30), table.slice(37)])
    values = pa.array(["never used", "a", "c", "b"])
    index = {value: position for position, value in enumerate(values.to_pylist())}
    indices = pa.array([index.get(name) for name in table["name"].to_pylist()], pa.int32())
    other_dictionary = table.set_column(
        table.column_names.index("name"), "name", pa.DictionaryArray.from_arrays(indices, values)
    )
    with_metadata = table.replace_schema_metadata({"made": "elsewhere"})
    # What is behind a NULL is not used.
    behind = pa.array(np.array([0, 1, 2, 1, 3] * 20, np.int32), mask=np.array([False, False, True, False, False] * 20))
    names = pa.DictionaryArray.from_arrays(behind, pa.array(["b", "a", "never used", "c"]))
    hidden = table.set_column(table.column_names.index("name"), "name", names)
    for rank, variant in enumerate([chunked, other_dictionary, with_metadata, hidden], start=1):
        written = lake.write("kernels", variant, run="r", iteration=1, rank=rank)
        assert written.path.read_bytes() == first.path.read_bytes()
        assert written.digest == first.digest
    assert first.rows == 100
    assert first.bytes == first.path.stat().st_size
    assert first.digest == xxhash.xxh3_128_hexdigest(first.path.read_bytes())
    changed = lake.write("kernels", kernels(sample, ["b", "a", None, "a", "d"] * 20), run="r", iteration=1, rank=9)
    assert changed.digest != first.digest


def test_what_is_read_back_has_the_types_of_the_definition(lake: Lake, sample):
    table = kernels(sample, ["b", "a", None])
    written = lake.write("kernels", table, run="r", iteration=1, rank=0)
    back = lake.table("kernels").arrow()
    assert back.drop_columns(["run", "iteration", "rank"]).equals(table)
    assert back.column_names[:3] == ["run", "iteration", "rank"]
    columns = pq.ParquetFile(written.path).metadata.row_group(0)
    number, word = (columns.column(table.column_names.index(name)) for name in ("start_ns", "name"))
    assert number.compression == "SNAPPY"
    assert (number.has_dictionary_page, word.has_dictionary_page) == (False, True)
    assert (number.is_stats_set, word.is_stats_set) == (True, False)
    lake.write("kernels", table.slice(0, 0), run="r", iteration=1, rank=0)
    assert lake.table("kernels").arrow().schema.equals(back.schema)
    assert lake.table("kernels").df().empty


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop_columns(["name"]),
        lambda table: table.append_column("extra", pa.array([1])),
        lambda table: table.set_column(0, "kernel_id", pa.array([1], pa.int32())),
        lambda table: table.select(table.column_names[::-1]),
    ],
    ids=["missing", "unknown", "type", "order"],
)
def test_other_schemas_are_refused_and_nothing_is_written(lake: Lake, sample, change):
    with pytest.raises(ValueError, match="table kernels"):
        lake.write("kernels", change(kernels(sample, ["a"])), run="r", iteration=1, rank=0)
    assert not lake.exists("kernels", run="r", iteration=1, rank=0)


def test_a_failed_rename_leaves_the_former_file_and_no_temporary(lake: Lake, sample, monkeypatch):
    before = lake.write("kernels", kernels(sample, ["a"]), run="r", iteration=1, rank=0)

    def fail(*_arguments):
        raise OSError("disk gone")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk gone"):
        lake.write("kernels", kernels(sample, ["b"]), run="r", iteration=1, rank=0)
    monkeypatch.undo()
    assert [path.name for path in before.path.parent.iterdir()] == ["part.parquet"]
    assert lake.table("kernels").arrow(["name"])["name"].to_pylist() == ["a"]


KILLED_WRITER = """
import os, sys, time
from pathlib import Path
import pyarrow as pa
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.upgrade import upgrade
from traceviz_dag.tables import TOPOLOGY
table = TOPOLOGY.from_columns({column.name: [None] for column in TOPOLOGY.columns})
def wait(descriptor):
    print("ready", flush=True)
    time.sleep(60)
lake = open_lake(Path(sys.argv[1]))
upgrade(lake.tables_folder)
os.fsync = wait
lake.write("topology", table, run="r", iteration=1)
"""


def test_a_killed_writer_leaves_nothing_visible_and_its_temporary_goes_with_the_next_write(lake: Lake, sample):
    writer = subprocess.Popen([sys.executable, "-c", KILLED_WRITER, str(lake.home)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "ready\n"
        folder = lake.home / "lake" / "topology" / "run=r" / "iteration=1"
        (temporary,) = folder.iterdir()
        assert not lake.exists("topology", run="r", iteration=1)
        assert lake.partitions("topology") == []
        lake.write("topology", sample("topology", rank=7), run="r", iteration=1)
        assert temporary.exists(), "the temporary of a living writer was taken away"
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    assert lake.query("SELECT rank FROM topology").to_pylist() == [{"rank": 7}]
    lake.write("topology", sample("topology", rank=8), run="r", iteration=1)
    assert [path.name for path in folder.iterdir()] == ["part.parquet"]


def write_repeatedly(home: Path, sample_rows: pa.Table, writer: int, times: int) -> None:
    lake = open_lake(home)
    marked = sample_rows.schema.get_field_index("start_ns")
    for version in range(times):
        rows = len(sample_rows)
        values = pa.array([writer * times + version] * rows, pa.int64())
        table = sample_rows.set_column(marked, "start_ns", values)
        lake.write("kernels", table, run="shared", iteration=1, rank=0)
        lake.write("kernels", table, run="own", iteration=version, rank=writer)
        if version % 5 == 0:
            lake.refresh_catalogue()


@pytest.mark.long
def test_four_writers_and_readers_never_see_a_part_of_a_file(lake: Lake, sample):
    rows, times = 2_000, 15
    table = kernels(sample, ["a", "b"] * (rows // 2))
    lake.write("kernels", table, run="shared", iteration=1, rank=0)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_repeatedly, args=(lake.home, table, n, times)) for n in range(4)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        seen = lake.query("SELECT count(*) AS n, count(DISTINCT start_ns) AS v FROM kernels WHERE run = 'shared'")
        assert seen.to_pylist() == [{"n": rows, "v": 1}]
        starts = lake.table("kernels", run="shared").arrow(["start_ns"])["start_ns"]
        assert len(starts) == rows
        assert len(starts.unique()) == 1
        reads += 1
        time.sleep(0.02)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert reads > 3
    assert len(lake.partitions("kernels", run="own")) == 4 * times
    assert lake.query("SELECT count(*) AS n FROM kernels WHERE run = 'own'").to_pylist() == [{"n": 4 * times * rows}]
    left = [path for path in (lake.home / "lake").glob("[!.]*/**/*") if path.is_file() and path.name != "part.parquet"]
    assert not left


def test_deleting_takes_the_empty_folders_along_and_only_what_was_named(lake: Lake, sample):
    for iteration in (1, 2):
        for rank in (0, 1):
            lake.write("kernels", kernels(sample, ["a"]), run="r", iteration=iteration, rank=rank)
    lake.refresh_catalogue()
    assert len(lake.delete("kernels", run="r", iteration=1)) == 2
    assert not (lake.home / "lake" / "kernels" / "run=r" / "iteration=1").exists()
    assert [(p.iteration, p.rank) for p in lake.partitions("kernels")] == [(2, 0), (2, 1)]
    assert lake.delete("kernels", run="r", iteration=1) == []
    assert len(lake.delete("kernels", run="r")) == 2
    assert lake.query("SELECT count(*) AS n FROM kernels").to_pylist() == [{"n": 0}]


def test_files_of_another_version_are_read_with_what_they_have(lake: Lake, sample):
    written = lake.write("kernels", kernels(sample, ["a"]), run="r", iteration=1, rank=0)
    older = kernels(sample, ["a"]).drop_columns(["stage"]).append_column("gone", pa.array([1]))
    pq.write_table(older, written.path)
    shutil.rmtree(lake.home / "lake/.recorded")
    rows = open_lake(lake.home).table("kernels").arrow(["name", "stage"]).to_pylist()
    assert rows == [{"name": "a", "stage": None}]


def test_reading_what_is_not_there_says_what_is(lake: Lake, sample):
    with pytest.raises(BadInputError, match="holds no analysed traces; analyse a trace into it first, or name"):
        lake.table("kernels")
    lake.write("kernels", kernels(sample, ["a"]), run="night 1", iteration=1, rank=0)
    with pytest.raises(BadInputError, match="for run nite, rank 3; runs with this table: night 1"):
        lake.table("kernels", run="nite", rank=3)
    with pytest.raises(UsageError, match=r"there is no table kernel; the tables are .*kernels"):
        lake.table("kernel")
    with pytest.raises(UsageError, match=r"no column .'nam'.; it has run, iteration"):
        lake.table("kernels").arrow(["nam"])
    assert KERNELS.name in lake.table("kernels").folder.parts
