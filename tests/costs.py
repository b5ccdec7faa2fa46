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
    threads = Path("/proc/self/task").iterdir()
    return [child for thread in threads for child in _read(thread / "children").split()]


def _of_living_child(child: str) -> float:
    # Behind the name, which may hold anything: user, system, and both of its own children that have ended.
    ticks = _read(Path("/proc", child, "stat")).rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _read(file: Path) -> str:
    """A file of /proc; empty where its thread or process has ended meanwhile, which would else end the whole run."""
    try:
        return file.read_text()
    except OSError:
        return ""


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
