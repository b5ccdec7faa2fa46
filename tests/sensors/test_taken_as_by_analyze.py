"""The sensor takes whatever ``analyze`` takes, of every trace format and under each of its names."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from sensors.ledger import FolderState
from sensors.listing import FolderLook, LocalFolders, walk
from sensors.registration import FolderTask, Registration, register_folder
from tests.nsys_file import node_export
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import all_registered
from traceviz_dag.pipeline.discovery import inputs_below


def parquet_export(folder: Path) -> Path:
    """The export of a node as a folder with a Parquet file a table, as ``nsys export --type parquetdir`` writes it."""
    file = node_export(folder.with_suffix(".sqlite"))
    folder.mkdir()
    with closing(sqlite3.connect(file)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master").fetchall():
            rows = pd.read_sql(f'SELECT * FROM "{name}"', connection).convert_dtypes()
            rows.to_parquet(folder / f"{name}.parquet")
    file.unlink()
    return folder


def registered_by_sensor(root: Path, home: Path) -> list[Registration]:
    """What a registering run makes of every folder that the sensor's walk finds."""
    looks = [look for look in walk(LocalFolders(), str(root)) if isinstance(look, FolderLook)]
    return [register_folder(home, FolderTask(look.folder, str(root), look.digest)) for look in looks]


@pytest.mark.parametrize("name", ["a.sqlite", "a.sqlite3", "a.db", "a.SQLITE"])
def test_an_export_is_registered_under_every_name_that_analyze_takes(tmp_path, name):
    node_export(tmp_path / "root/job" / name)
    (outcome,) = registered_by_sensor(tmp_path / "root", tmp_path / "home")
    assert outcome.record.state is FolderState.REGISTERED
    (taken,) = inputs_below([tmp_path / "root"])
    (registered,) = all_registered(tmp_path / "home")
    assert [(each.rank, each.path) for each in registered.ranks] == [(each.rank, each.path) for each in taken.ranks]


def test_a_report_that_needs_the_nsys_program_is_said_to_need_it_as_analyze_says(tmp_path):
    report = tmp_path / "root/job/a.qdrep"
    report.parent.mkdir(parents=True)
    report.write_bytes(b"a report of an old nsys")
    with pytest.raises(BadInputError) as said:
        inputs_below([report], home=tmp_path / "home")
    (outcome,) = registered_by_sensor(tmp_path / "root", tmp_path / "home")
    assert outcome.record.reason == str(said.value)


def test_folders_of_parquet_exports_are_registered_together_and_anew_once_one_changes(tmp_path):
    root, home = tmp_path / "root", tmp_path / "home"
    (root / "job").mkdir(parents=True)
    for node in (0, 1):
        parquet_export(root / f"job/node{node}")
    (outcome,) = registered_by_sensor(root, home)
    assert outcome.record.state is FolderState.REGISTERED and not outcome.record.is_leaf
    (taken,) = inputs_below([root])
    (registered,) = all_registered(home)
    assert [(each.rank, each.path) for each in registered.ranks] == [(each.rank, each.path) for each in taken.ranks]
    assert [each.rank for each in registered.ranks] == [0, 1, 2, 3]
    cut = root / "job/node1/CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-4])
    (outcome,) = registered_by_sensor(root, home)
    assert (outcome.record.state, outcome.record.reason) == (FolderState.WAITING, "still being written: node1")
