"""What the processes of ``traceviz dev`` leave behind when all of them are killed is known by its name, and goes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from traceviz_dag.orchestration.services import _temporary_files_in

_SEMAPHORE = (
    "import traceviz_dag.definitions, multiprocessing; traceviz_dag.definitions.defs(); "
    "print(multiprocessing.get_context('spawn').Lock()._semlock.name)"
)
_FOLDER = "import tempfile; print(tempfile.gettempdir())"


def said(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere semaphores bear no names")
def test_semaphores_that_a_code_server_shares_with_its_runs_show_whose_they_are():
    assert said(_SEMAPHORE).startswith("/traceviz-")


def test_sockets_lie_in_a_folder_that_the_next_command_removes_unless_it_is_too_deep(tmp_path: Path):
    before = tempfile.gettempdir(), os.environ.get("TMPDIR")
    short = Path(tempfile.mkdtemp(dir="/tmp"))
    with _temporary_files_in(short):
        assert tempfile.gettempdir() == said(_FOLDER) == str(short)
    deep = tmp_path / ("deep" * 20)
    with _temporary_files_in(deep):
        assert tempfile.gettempdir() == before[0]
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == before
    short.rmdir()
