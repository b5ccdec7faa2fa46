"""The commands on a terminal of the system, and what they say without one."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time

import pytest

CALL = (sys.executable, "-c", "from traceviz_dag.commands.main import main; main()")


def run(words: list[str], keys: bytes, seen: bytes, **environment: str) -> tuple[int, bytes]:
    """Run a command on a terminal of its own, press keys once it shows something; exit code and what it wrote."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LC_ALL", "COLUMNS")}
    process = subprocess.Popen(
        [*CALL, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "LINES": "24", "COLUMNS": "80", **environment},
        start_new_session=True,
    )
    os.close(theirs)
    written, pressed, until = b"", False, time.monotonic() + 60
    while time.monotonic() < until:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                written += os.read(ours, 65_536)
            except OSError:
                break
        if not pressed and seen in written:
            os.write(ours, keys)
            pressed = True
        if process.poll() is not None and not select.select([ours], [], [], 0)[0]:
            break
    process.kill() if process.poll() is None else None
    os.close(ours)
    return process.wait(), written


@pytest.mark.parametrize(
    ("environment", "shows"),
    [
        ({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}, "…"),
        ({"TERM": "xterm", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "NO_COLOR": "1"}, None),
    ],
)
def test_a_screen_opens_and_q_ends_it(tmp_path, environment, shows):
    home = tmp_path / ("long" * 30)
    home.mkdir()
    code, written = run(["top", "--home", str(home)], b"q", b"0 runs", **environment)
    assert code == 0
    # The screen was the terminal's second one, and is given back.
    assert b"\x1b[?1049h" in written and b"\x1b[?1049l" in written
    if shows is None:
        assert written.isascii()
        assert b"[38;" not in written and b"[48;" not in written
    else:
        assert shows.encode() in written and b"[38;" in written


def test_a_terminal_that_cannot_move_its_cursor_is_told_in_one_line(tmp_path):
    code, written = run(["top", "--home", str(tmp_path)], b"", b"never", TERM="dumb")
    assert code == 2
    line = "traceviz: traceviz top moves the cursor, which TERM=dumb cannot: set TERM, as to xterm"
    assert " ".join(written.decode().split()) == line
