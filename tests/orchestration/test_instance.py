"""Faults of Dagster's records are a line with the folder and the remedy, whenever they show."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy.exc import OperationalError

from traceviz_dag.errors import BadInputError
from traceviz_dag.orchestration.instance import open_instance, prepare_instance
from traceviz_dag.orchestration.run_launcher import CheckedRunLauncher


@pytest.mark.parametrize(
    "text", ["storage: [\n", "storage: 7\n", "concurrency: 3\n", "- a\n", "storage:\n  postgres: {}\n"]
)
def test_settings_that_dagster_does_not_take_are_named(tmp_path, text):
    settings = prepare_instance(tmp_path) / "dagster.yaml"
    settings.write_text(text)
    told = r"dagster\.yaml: Dagster does not take these settings"
    with pytest.raises(BadInputError, match=told) as refused, open_instance(tmp_path):
        pass
    assert "\n" not in str(refused.value)


def test_a_disk_that_gets_full_under_the_records_is_a_line(tmp_path):
    full = OperationalError("INSERT INTO runs", {}, sqlite3.OperationalError("database or disk is full"))
    with pytest.raises(BadInputError, match=r"disk is full.*free space there") as refused, open_instance(tmp_path):
        raise full
    assert "INSERT" not in str(refused.value)


def test_settings_that_name_the_former_place_of_the_run_launcher_are_brought_up_to_date(tmp_path):
    settings = prepare_instance(tmp_path) / "dagster.yaml"
    today = settings.read_text()
    former = today.replace("traceviz_dag.orchestration.", "traceviz_dag.")
    settings.write_text("# mine\n" + former)
    with open_instance(tmp_path) as instance:
        assert isinstance(instance.run_launcher, CheckedRunLauncher)
    assert settings.read_text() == "# mine\n" + today
