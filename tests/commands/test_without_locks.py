"""A home on a file system without locks, as Lustre mounted without ``flock``: one user at a time, and no fault."""

from __future__ import annotations

import errno
import os

from tests.damage import call
from tests.small_run import write_run
from traceviz_dag.lake.under_way import analyses


def test_where_nothing_can_be_locked_jobs_are_analysed_asked_packed_and_verified(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    run = write_run(tmp_path / "job", world=2)
    monkeypatch.setattr("fcntl.flock", refused)
    for words in (["analyze", run], ["findings", "--json"], ["lake", "pack", "--at-least", "2"], ["lake", "verify"]):
        answer = call(*words, "--home", tmp_path / "home")
        assert (answer.code, answer.err) == (0, ""), words
    assert not analyses(tmp_path / "home")
