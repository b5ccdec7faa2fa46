"""The sensor takes whatever ``analyze`` takes, of every trace format and under each of its names."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from sensors.ledger import FolderState, read_ledger
from tests.nsys_file import node_export
from tests.sensors.ticks import Sensor
from tests.small_run import write_run
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import IterationInputs, all_registered
from traceviz_dag.pipeline.discovery import inputs_below


def parquet_export(folder: Path) -> Path:
    """The export of a node as a folder with a Parquet file per table, as ``nsys export --type parquetdir`` does."""
    file = node_export(folder.with_suffix(".sqlite"))
    folder.mkdir()
    with closing(sqlite3.connect(file)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master").fetchall():
            rows = pd.read_sql(f'SELECT * FROM "{name}"', connection).convert_dtypes()
            rows.to_parquet(folder / f"{name}.parquet")
    file.unlink()
    return folder


def placed(found: Iterable[IterationInputs]) -> set[tuple[str, int, str, str]]:
    return {(one.key, rank.rank, rank.path, rank.format) for one in found for rank in one.ranks}


def test_every_name_that_analyze_takes_is_registered_at_one_evaluation(tmp_path):
    root, home = tmp_path / "root", tmp_path / "home"
    names = ["a.sqlite", "a.sqlite3", "a.db", "a.SQLITE"]
    for number, name in enumerate(names):
        node_export(root / f"job{number}" / name)
    (root / "job4").mkdir()
    parquet_export(root / "job4/a")
    write_run(root / "job5", {7: 4})
    sensor = Sensor(home, root)
    assert sensor.asked() == []
    (request,) = sensor.tick().run_requests
    sensor.register(request)
    taken = placed(inputs_below([root]))
    assert placed(all_registered(home)) == taken
    assert len({path for _, _, path, _ in taken}) == len(names) + 1 + 4
    assert set(sensor.instance.get_dynamic_partitions("iteration")) == {key for key, _, _, _ in taken}


def test_a_report_that_needs_the_nsys_program_is_said_to_need_it_as_analyze_says(tmp_path):
    root, home = tmp_path / "root", tmp_path / "home"
    report = root / "job/a.qdrep"
    report.parent.mkdir(parents=True)
    report.write_bytes(b"a report of an old nsys")
    with pytest.raises(BadInputError) as said:
        inputs_below([report], home=tmp_path / "other home")
    sensor = Sensor(home, root)
    assert sensor.asked() == []
    (request,) = sensor.tick().run_requests
    sensor.register(request)
    (record,) = read_ledger(home).values()
    assert (record.state, record.reason) == (FolderState.NOTHING, str(said.value))


def test_folders_of_parquet_exports_are_registered_together_and_anew_once_one_changes(tmp_path):
    root, home = tmp_path / "root", tmp_path / "home"
    (root / "job").mkdir(parents=True)
    for node in (0, 1):
        parquet_export(root / f"job/node{node}")
    sensor = Sensor(home, root)
    assert sensor.asked() == []
    (request,) = sensor.tick().run_requests
    sensor.register(request)
    (registered,) = all_registered(home)
    assert placed([registered]) == placed(inputs_below([root]))
    assert [each.rank for each in registered.ranks] == [0, 1, 2, 3]
    cut = root / "job/node1/CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-4])
    assert sensor.asked() == []
    (request,) = sensor.tick().run_requests
    sensor.register(request)
    (record,) = read_ledger(home).values()
    assert (record.state, record.reason) == (FolderState.WAITING, "still being written: node1")
