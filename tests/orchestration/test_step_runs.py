"""Runs of Dagster in the program's own process."""

import subprocess
import sys

_INTERRUPTED_WHILE_A_CONNECTION_CLOSES = """
import signal

import dagster as dg
from sqlalchemy.pool import NullPool

from traceviz_dag.orchestration.step_runs import materialise


class Connection:
    def close(self):
        signal.raise_signal(signal.SIGINT)

    def rollback(self):
        pass


@dg.asset
def interrupted():
    NullPool(Connection).connect().close()


with dg.instance_for_test() as instance:
    try:
        materialise("interrupted", instance, [interrupted], [interrupted], {})
    except KeyboardInterrupt:
        print("stopped")
"""


def test_an_interrupt_that_a_library_logs_on_its_way_prints_no_traceback():
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_WHILE_A_CONNECTION_CLOSES],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("stopped\n", "", 0)
