"""The commands on a terminal of the system, and what they say without one."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from tests.sets import fast

GIVEN_BACK = ((b"[?1049h", b"[?1049l"), (b"[?25l", b"[?25h"), (b"[?1003h", b"[?1003l"))
CALL = (sys.executable, "-c", "from traceviz_dag.commands.main import main; main()")


def run(words: list[str], keys: bytes | signal.Signals, seen: bytes, **environment: str) -> tuple[int, bytes]:
    """Run a command on a terminal of its own, press keys once it shows something; exit code and what it wrote.

    Instead of keys it can be sent a signal, which it was started to ignore; SIGHUP takes its terminal away instead.
    """
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LC_ALL", "COLUMNS")}
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP TERM; exec "$@"', "sh", *CALL, *words] if isinstance(keys, int) else [*CALL, *words],
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
            pressed = True
            if keys is signal.SIGHUP:
                break
            process.send_signal(keys) if isinstance(keys, signal.Signals) else os.write(ours, keys)
        if process.poll() is not None and not select.select([ours], [], [], 0)[0]:
            break
    os.close(ours)
    try:
        return process.wait(30 if keys is signal.SIGHUP else 0), written
    except subprocess.TimeoutExpired:
        process.kill()
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


@pytest.mark.parametrize("ending", fast([signal.SIGTERM, signal.SIGHUP], signal.SIGTERM))
def test_a_screen_that_is_asked_to_stop_gives_the_terminal_back_and_none_outlives_it(tmp_path, ending):
    code, written = run(["top", "--home", str(tmp_path)], ending, b"0 runs", TERM="xterm-256color")
    assert code == (-ending if ending is signal.SIGTERM else 128 + ending)
    if ending is signal.SIGTERM:
        # The first screen, a cursor, and no reports of the mouse.
        assert all(written.rfind(on) < written.rfind(off) for on, off in GIVEN_BACK)


def test_a_terminal_that_cannot_move_its_cursor_is_reported_in_one_line(tmp_path):
    code, written = run(["top", "--home", str(tmp_path)], b"", b"never", TERM="dumb")
    assert code == 2
    line = "traceviz: traceviz top moves the cursor, which TERM=dumb cannot: set TERM, as to xterm"
    assert " ".join(written.decode().split()) == line
