"""What the tests cost: processor seconds by test and folder, printed at the end of a run; a plugin of pytest."""

from __future__ import annotations

import json
import os
import resource
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

_PROPERTY = "processor_seconds"
_FILE = "TRACEVIZ_TEST_COSTS"
"""Names a file that gets the seconds of every test, as JSON."""


def _processor_seconds() -> float:
    """Of this process, its children, and theirs that have ended: workers of a pool end in the server they fork from."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used) + sum(map(_of_living_child, _living_children()))


def _living_children() -> list[str]:
    threads = os.listdir("/proc/self/task")  # noqa: PTH208 - a Path of each thread takes longer than all the rest
    return [child for thread in threads for child in _read(f"/proc/self/task/{thread}/children").split()]


def _of_living_child(child: str) -> float:
    # Behind the name, which may hold anything: user, system, and both of its own children that have ended.
    ticks = _read(f"/proc/{child}/stat").rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _read(file: str) -> str:
    """A file of /proc; empty where its thread or process has ended meanwhile, which would else end the whole run."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return ""
    try:
        # What is longer is read up to here: a few hundred children.
        return os.read(descriptor, 1 << 12).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


class Costs:
    """Measures each test in the process that runs it, and adds up in the one that prints.

    A fixture that tests share counts for the test that asked for it first.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._since = _processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        # Once a test, at its end: with the threads of Dagster, DuckDB and Arrow it takes several ms.
        if call.when == "teardown":
            now = _processor_seconds()
            report.user_properties = [(_PROPERTY, now - self._since)]
            self._since = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += sum(value for name, value in report.user_properties if name == _PROPERTY)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.seconds:
            return
        if file := os.environ.get(_FILE):
            Path(file).write_text(json.dumps(self.seconds, indent=0))
        folders: dict[str, float] = defaultdict(float)
        for test, seconds in self.seconds.items():
            folders["/".join(test.split("::")[0].split("/")[:2])] += seconds
        write = terminalreporter.write_line
        write(f"processor seconds: {sum(self.seconds.values()):.0f} in {len(self.seconds)} tests")
        for folder, seconds in sorted(folders.items(), key=lambda each: -each[1]):
            write(f"{seconds:8.1f}  {folder}")
        write("the ten dearest tests:")
        for test, seconds in sorted(self.seconds.items(), key=lambda each: -each[1])[:10]:
            write(f"{seconds:8.1f}  {test}")
