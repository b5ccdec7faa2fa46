"""Folders with what is no file, or has a name that no table holds: named and left out, while the others go on."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from tests.small_run import rank_file
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.read.layouts import discover
from traceviz_dag.read.nsys.open import is_whole_export, open_nsys
from traceviz_dag.read.topology_file import read_topology_file


@pytest.fixture
def run(tmp_path):
    rank_file(0, 2).write(tmp_path / "run/iteration_7/rank_0000_iter_7.pt.trace.json")
    return tmp_path / "run"


def _problems(run):
    found = inputs_below([run])
    assert [entry.rank for inputs in found for entry in inputs.ranks if inputs.iteration == 7] == [0]
    return [line for inputs in found for line in inputs.problems]


def test_what_is_no_file_is_named_and_nothing_waits_for_it(run, monkeypatch):
    inside = run / "iteration_7"
    os.mkfifo(inside / "rank_0001_iter_7.pt.trace.json")
    (inside / "rank_0002_iter_7.pt.trace.json").symlink_to("nowhere")
    (inside / "rank_0003_iter_7.pt.trace.json").symlink_to("rank_0003_iter_7.pt.trace.json")
    (inside / "rank_0004_iter_7.pt.trace.json").symlink_to("/dev/zero")
    os.mkfifo(run / "unique_parallel_groups_1.txt")
    os.mkfifo(run / "export.sqlite")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(inside)  # The name of a socket has 107 bytes at most.
        listening.bind("rank_5.json")
        problems = _problems(run)
    words = ("a FIFO", "No such file", "Too many levels", "a device", "a socket", "export.sqlite: a FIFO")
    for word in words:
        assert any(word in line for line in problems), word
    assert len(problems) == len(words)


def test_a_folder_that_may_not_be_entered_takes_none_of_the_others_along(run, monkeypatch):
    locked = run / "iteration_8"
    locked.mkdir()
    (locked / "rank_0001_iter_8.pt.trace.json").write_text("{}")
    look = Path.stat

    def refused(path, **options):  # Root may enter every folder.
        if path.parent == locked:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", refused)
    (line,) = _problems(run)
    assert "rank_0001_iter_8.pt.trace.json: may not be looked at; check the permissions of its folder" in line


def test_names_that_are_not_utf_8_are_named_and_left_out(run):
    folder = run / os.fsdecode(b"iteration_\xff")
    folder.mkdir()
    (folder / "rank_0001_iter_8.pt.trace.json").write_bytes(b"{}")
    (line,) = _problems(run)
    assert "not UTF-8" in line
    assert line.isprintable()


def test_numbers_that_no_table_holds_are_named_and_left_out(run):
    rank_file(1, 2).write(run / f"iteration_{10**30}" / "rank_0001.pt.trace.json")
    rank_file(1, 2).write(run / "iteration_7" / f"rank_{10**30}_iter_7.pt.trace.json")
    problems = _problems(run)
    assert sum("no job reaches" in line for line in problems) == 1
    assert sum("which no job has" in line for line in problems) == 1


def test_names_with_line_feeds_and_escapes_make_one_plain_line(run):
    (run / "iteration_7" / "rank_x\n\x1b[2J.pt.trace.json").write_text("{}")
    (line,) = _problems(run)
    assert "\\u000a\\u001b[2J" in line
    assert line.isprintable()


@pytest.mark.parametrize("reader", [read_kineto, read_topology_file, lambda path: discover([path])])
def test_a_fifo_that_is_named_is_refused_at_once(tmp_path, reader):
    os.mkfifo(tmp_path / "rank_0.json")
    with pytest.raises(BadInputError, match="a FIFO"):
        reader(tmp_path / "rank_0.json")


def test_a_link_in_a_circle_is_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(BadInputError, match="no such file or folder"):
        discover([tmp_path / "a"])


def test_nothing_waits_for_a_fifo_among_the_tables_of_an_export(tmp_path):
    os.mkfifo(tmp_path / "NVTX_EVENTS.parquet")
    assert is_whole_export(tmp_path)
    assert digest_of(tmp_path)
    with pytest.raises(BadInputError, match=r"NVTX_EVENTS\.parquet: a FIFO, not a file"):
        open_nsys(tmp_path)
