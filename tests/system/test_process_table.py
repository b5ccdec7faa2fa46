"""A process is known by its number and its start."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from traceviz_dag.system.process_table import is_alive


def test_a_process_is_known_by_its_number_and_its_start():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert is_alive(process.pid, since=time.time())
        assert not is_alive(process.pid, since=time.time() - 3600), "another one bore the number an hour ago"
    finally:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process.pid, since=time.time()), "it has ended, though nobody has waited for it yet"
        process.wait()
    assert not is_alive(process.pid, since=time.time())
