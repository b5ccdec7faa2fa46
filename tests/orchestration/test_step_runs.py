"""Runs of Dagster in the program's own process."""

import signal
import subprocess
import sys

import dagster as dg
import pytest

from traceviz_dag.orchestration.step_runs import materialise

_INTERRUPTED = """
import signal
import threading
import time
import weakref

import dagster as dg
from sqlalchemy.pool import NullPool

from traceviz_dag.orchestration.step_runs import materialise


def interrupt(_=None):
    signal.raise_signal(signal.SIGINT)


class Connection:
    close = interrupt

    def rollback(self):
        pass


def while_a_connection_closes():
    NullPool(Connection).connect().close()


def while_something_is_collected():
    gone = set()
    reference = weakref.ref(gone, interrupt)
    del gone
    time.sleep(60)


def while_something_is_collected_and_threads_start_slowly():
    # As on a machine with much else to do.
    start = threading.Thread.start
    threading.Thread.start = lambda thread: (start(thread), time.sleep(0.5))
    while_something_is_collected()


def while_nothing_is_raised():
    # As Dagster does while it stores events, and forgets what came.
    former = signal.signal(signal.SIGINT, lambda *_: None)
    interrupt()
    signal.signal(signal.SIGINT, former)


@dg.asset
def interrupted():
    {place}()


with dg.instance_for_test() as instance:
    try:
        materialise("interrupted", instance, [interrupted], [interrupted], {{}})
    except KeyboardInterrupt:
        print("stopped")
"""


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("while_a_connection_closes", marks=pytest.mark.long),
        "while_something_is_collected_and_threads_start_slowly",
        pytest.param("while_nothing_is_raised", marks=pytest.mark.long),
    ],
)
def test_an_interrupt_ends_a_run_wherever_it_comes_and_prints_no_traceback(place):
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED.format(place=place)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("stopped\n", "", 0)


@dg.asset
def nothing() -> None:
    """An asset that does nothing."""


def test_a_job_in_the_background_can_still_be_ended_after_a_run():
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Other tests of this process may have run steps by Dagster alone, which leaves it ignored.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with dg.instance_for_test() as instance:
            materialise("of_nothing", instance, [nothing], [nothing], {})
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, former)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
